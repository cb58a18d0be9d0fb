# cudarelu_module_flags(TARGET FILE): the options of op modules, from flags.json, by which the numbers
# are the same on all devices. No implicit fused multiply-add, on the CPU and on CUDA. Without errno
# and traps, loops with square roots and conditions are vectorised. nvcc's warnings 177 and 186: a
# kernel leaves constants of a class unused; a functor compares an unsigned with 0. The library of a
# module stays loaded (nodelete), since CUDA keeps pointers to its kernels.
function(cudarelu_module_flags target file)
  file(READ ${file} json)
  foreach(key IN ITEMS cxx cuda link)
    string(JSON count LENGTH "${json}" ${key})
    math(EXPR last "${count} - 1")
    set(${key} "")
    foreach(i RANGE ${last})
      string(JSON flag GET "${json}" ${key} ${i})
      string(APPEND ${key} " ${flag}")
    endforeach()
  endforeach()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:SHELL:${cxx}>"
                                           "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:${cuda}>")
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "MODULE_LIBRARY")
    target_link_options(${target} PRIVATE "SHELL:${link}")
  endif()
endfunction()
