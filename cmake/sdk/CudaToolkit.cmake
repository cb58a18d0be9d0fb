# Finds nvcc and chooses the architectures, for this project and for op modules.
#
# The architectures are the first of these that is set:
#
#   CUDARELU_CUDA_ARCHITECTURES  for example "90" or "80;90"; "all": those of a release, compressed
#   CMAKE_CUDA_ARCHITECTURES     CMake's own variable, or CUDAARCHS in the environment
#   TORCH_CUDA_ARCH_LIST         PyTorch's environment variable, for example "8.0 9.0+PTX"
#
# If none is set, or if the first one is "native", they are those of the GPUs of this machine.
# Without a GPU they are CUDARELU_CUDA_ARCHITECTURES_WITHOUT_GPU, or "all" for a wheel.

include_guard(GLOBAL)
include(${CMAKE_CURRENT_LIST_DIR}/PythonPackages.cmake)
set(CUDARELU_CUDA_ARCHITECTURES "" CACHE STRING "Compute capabilities, for example 80;90, or all")
# 90 includes the kernels for Hopper.
set(CUDARELU_CUDA_ARCHITECTURES_WITHOUT_GPU 90 CACHE STRING "The same, where none is chosen or found")

# Sets the variable to a toolkit made of Python's packages, or to nothing. The packages
# nvidia-cuda-nvcc, -crt, -cccl, -runtime and nvidia-nvvm share one folder, which lacks lib64 and
# the libraries' names without a version. The toolkit is a folder of links in the build tree that
# adds them.
function(cudarelu_toolkit_of_packages variable)
  set(${variable} "" PARENT_SCOPE)
  cudarelu_python_package(packages nvidia)
  set(source ${packages}/cu13)
  if(NOT EXISTS ${source}/bin/nvcc)
    return()
  endif()
  set(root ${CMAKE_BINARY_DIR}/cuda-toolkit)
  # bin is a folder, not a link, since nvcc looks for its toolkit at bin/.. .
  file(MAKE_DIRECTORY ${root}/bin ${root}/lib)
  file(GLOB entries RELATIVE ${source} ${source}/* ${source}/bin/*)
  list(REMOVE_ITEM entries bin lib)
  foreach(entry IN LISTS entries)
    file(CREATE_LINK ${source}/${entry} ${root}/${entry} SYMBOLIC)
  endforeach()
  file(GLOB libraries ${source}/lib/*)
  foreach(library IN LISTS libraries)
    get_filename_component(name ${library} NAME)
    string(REGEX REPLACE "\\.so\\..*" ".so" unversioned ${name})
    file(CREATE_LINK ${library} ${root}/lib/${name} SYMBOLIC)
    file(CREATE_LINK ${library} ${root}/lib/${unversioned} SYMBOLIC)
  endforeach()
  file(CREATE_LINK lib ${root}/lib64 SYMBOLIC)
  set(${variable} ${root} PARENT_SCOPE)
endfunction()

# Sets CMAKE_CUDA_COMPILER, and CUDAToolkit_ROOT for Python's packages, unless CMake or the user has;
# leaves it unset without nvcc. A macro, since enable_language() reads the variables of its caller.
macro(cudarelu_find_nvcc)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(CUDARELU_NVCC nvcc HINTS ${CUDAToolkit_ROOT}/bin ENV CUDA_HOME ENV CUDA_PATH
                 PATHS /usr/local/cuda PATH_SUFFIXES bin)
    mark_as_advanced(CUDARELU_NVCC)
    if(CUDARELU_NVCC)
      set(CMAKE_CUDA_COMPILER ${CUDARELU_NVCC})
    else()
      cudarelu_toolkit_of_packages(toolkit)
      if(toolkit)
        set(CMAKE_CUDA_COMPILER ${toolkit}/bin/nvcc)
        set(CUDAToolkit_ROOT ${toolkit})
      endif()
    endif()
  endif()
endmacro()

# Sets the variable to the architectures of a release that this nvcc supports, and PTX of the last
# one for newer GPUs.
function(cudarelu_release_architectures variable)
  execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-arch OUTPUT_VARIABLE known)
  set(chosen "")
  foreach(architecture IN ITEMS 75 80 86 89 90 100 120)
    if(known MATCHES "compute_${architecture}\n")
      list(APPEND chosen ${architecture}-real)
      set(newest ${architecture})
    endif()
  endforeach()
  set(${variable} ${chosen} ${newest}-virtual PARENT_SCOPE)
endfunction()

# Sets the variable to the architectures of the GPUs of this machine; empty without a GPU.
function(cudarelu_present_architectures variable)
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE present ERROR_QUIET RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    set(present "")
  endif()
  string(REGEX MATCHALL "[0-9]+\\.[0-9]+" present "${present}")
  list(REMOVE_DUPLICATES present)
  string(REPLACE "." "" present "${present}")
  set(${variable} "${present}" PARENT_SCOPE)
endfunction()

# Converts TORCH_CUDA_ARCH_LIST to CMake's form: "8.0 9.0+PTX" becomes "80-real;90". Without +PTX,
# an entry means machine code only.
function(cudarelu_architectures_of_torch variable text)
  string(REGEX REPLACE "[ ,]+" ";" entries "${text}")
  list(TRANSFORM entries REPLACE "^Turing$" "7.5+PTX")
  list(TRANSFORM entries REPLACE "^Ampere$" "8.0;8.6+PTX")
  list(TRANSFORM entries REPLACE "^Ada$" "8.9+PTX")
  list(TRANSFORM entries REPLACE "^Hopper$" "9.0+PTX")
  list(TRANSFORM entries REPLACE "^Blackwell$" "10.0;12.0+PTX")
  set(chosen "")
  foreach(entry IN LISTS entries)
    if(entry STREQUAL "native")
      list(APPEND chosen native)
    elseif(entry MATCHES "^([0-9]+)\\.([0-9][af]?)(\\+PTX)?$")
      set(suffix -real)
      if(CMAKE_MATCH_3)
        set(suffix "")
      endif()
      list(APPEND chosen ${CMAKE_MATCH_1}${CMAKE_MATCH_2}${suffix})
    elseif(entry)
      message(FATAL_ERROR "TORCH_CUDA_ARCH_LIST is ${text}: ${entry} is not a compute capability")
    endif()
  endforeach()
  set(${variable} "${chosen}" PARENT_SCOPE)
endfunction()

# Sets `architectures` to the chosen ones and `source` to their origin, for the report. `of_cmake`
# is the user's value of CMAKE_CUDA_ARCHITECTURES.
function(cudarelu_choose_architectures architectures source of_cmake)
  set(chosen "")
  if(CUDARELU_CUDA_ARCHITECTURES)
    set(chosen ${CUDARELU_CUDA_ARCHITECTURES})
    set(from CUDARELU_CUDA_ARCHITECTURES)
  elseif(of_cmake)
    set(chosen ${of_cmake})
    set(from CMAKE_CUDA_ARCHITECTURES)
  elseif(NOT "$ENV{CUDAARCHS}" STREQUAL "")
    set(chosen $ENV{CUDAARCHS})
    set(from CUDAARCHS)
  elseif(NOT "$ENV{TORCH_CUDA_ARCH_LIST}" STREQUAL "")
    cudarelu_architectures_of_torch(chosen "$ENV{TORCH_CUDA_ARCH_LIST}")
    set(from TORCH_CUDA_ARCH_LIST)
  endif()
  set(others "set CUDARELU_CUDA_ARCHITECTURES for others")
  if(NOT chosen OR chosen STREQUAL "native")
    cudarelu_present_architectures(chosen)
    set(from "GPUs of this machine; ${others}")
  endif()
  if(NOT chosen)
    set(chosen ${CUDARELU_CUDA_ARCHITECTURES_WITHOUT_GPU})
    if(SKBUILD)
      set(chosen all)
    endif()
    set(from "no GPU found; ${others}")
  endif()
  if(chosen MATCHES "^all(-major)?$")
    cudarelu_release_architectures(chosen)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
      add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>)
    endif()
  endif()
  set(${architectures} "${chosen}" PARENT_SCOPE)
  set(${source} "${from}" PARENT_SCOPE)
endfunction()

# Enables CUDA and chooses the architectures, whose origin it sets `source` to. Sets `missing` to why
# CUDA cannot be used, or to nothing. A macro, since languages are enabled for the caller.
macro(cudarelu_enable_cuda missing source)
  set(${missing} "")
  set(_cudarelu_of_cmake "${CMAKE_CUDA_ARCHITECTURES}")
  cudarelu_find_nvcc()
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    set(${missing} "no nvcc: install a CUDA toolkit, or pip install 'cuda-toolkit[nvcc,cccl,cudart,crt,nvvm,cublas]==13.0.*'")
  else()
    set(CMAKE_CUDA_ARCHITECTURES OFF)  # while CMake tests the compiler
    enable_language(CUDA)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.0)
      set(${missing} "${CMAKE_CUDA_COMPILER} has version ${CMAKE_CUDA_COMPILER_VERSION}; C++20 needs 12.0 or later")
    else()
      find_package(CUDAToolkit REQUIRED)
      cudarelu_choose_architectures(CMAKE_CUDA_ARCHITECTURES ${source} "${_cudarelu_of_cmake}")
    endif()
  endif()
endmacro()

# Sets the variable to what a module with CUDA kernels is built for, without the semicolons of a
# list, which a compile definition would not keep.
function(cudarelu_built_for variable)
  string(REPLACE ";" " " text "the CPU and CUDA architectures ${CMAKE_CUDA_ARCHITECTURES}")
  set(${variable} "${text}" PARENT_SCOPE)
endfunction()
