# cudarelu_module_flags(TARGET FILE): the options by which the numbers are the same on all devices,
# from flags.json. No implicit fused multiply-add, on the CPU and on CUDA. Without errno and traps,
# loops with square roots and conditions are vectorised. nvcc's warnings 177 and 186: a kernel leaves
# constants of a class unused; a functor compares an unsigned with 0.
function(cudarelu_module_flags target file)
  file(READ ${file} json)
  foreach(language IN ITEMS CXX CUDA)
    string(TOLOWER ${language} key)
    string(JSON count LENGTH "${json}" ${key})
    math(EXPR last "${count} - 1")
    set(flags "")
    foreach(i RANGE ${last})
      string(JSON flag GET "${json}" ${key} ${i})
      list(APPEND flags ${flag})
    endforeach()
    list(JOIN flags " " flags)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:${language}>:SHELL:${flags}>")
  endforeach()
endfunction()
