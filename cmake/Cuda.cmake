# CUDA: an installed toolkit, else the one that Python's packages carry. Sets CUDARELU_HAS_CUDA and
# makes the target cudarelu_cublaslt_header.
#
#   CUDARELU_CUDA_ARCHITECTURES  for example "90" or "80;90"; "" (default): the GPUs that are present,
#                                else those of the list below that this nvcc knows

set(CUDARELU_CUDA_ARCHITECTURES "" CACHE STRING "Compute capabilities, for example 80;90")
set(default_architectures 75 80 86 89 90 100 120)

# The packages nvidia-cuda-nvcc, -crt, -cccl, -runtime and nvidia-nvvm unpack into one folder, which
# lacks what a toolkit's has: lib64, and the names of the libraries without a version. A folder of
# links in the build tree completes it.
function(cudarelu_toolkit_of_packages variable)
  set(${variable} "" PARENT_SCOPE)
  cudarelu_python_package(packages nvidia)
  set(source ${packages}/cu13)
  if(NOT EXISTS ${source}/bin/nvcc)
    return()
  endif()
  set(root ${PROJECT_BINARY_DIR}/cuda-toolkit)
  # bin is a folder and no link, since nvcc looks for its toolkit at bin/.. .
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

# The folder of cublasLt.h: the library itself is opened when the program runs. A toolkit may come
# without it; PyTorch's packages have it. That folder holds headers of CUDA as well, which must not
# come before the toolkit's: a folder of links has the two that are wanted.
function(cudarelu_cublaslt_header_of variable)
  cudarelu_python_package(packages nvidia)
  find_path(CUDARELU_CUBLASLT_INCLUDE_DIR cublasLt.h
            HINTS ${CUDAToolkit_INCLUDE_DIRS} PATHS ${packages}/cu13/include NO_DEFAULT_PATH)
  mark_as_advanced(CUDARELU_CUBLASLT_INCLUDE_DIR)
  set(${variable} "" PARENT_SCOPE)
  if(CUDARELU_CUBLASLT_INCLUDE_DIR)
    set(folder ${PROJECT_BINARY_DIR}/cublaslt)
    file(MAKE_DIRECTORY ${folder})
    foreach(header cublasLt.h cublas_api.h)
      file(CREATE_LINK ${CUDARELU_CUBLASLT_INCLUDE_DIR}/${header} ${folder}/${header} SYMBOLIC)
    endforeach()
    set(${variable} ${folder} PARENT_SCOPE)
  endif()
endfunction()

function(cudarelu_choose_architectures variable)
  if(CUDARELU_CUDA_ARCHITECTURES)
    set(${variable} ${CUDARELU_CUDA_ARCHITECTURES} PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE present ERROR_QUIET RESULT_VARIABLE result)
  if(result EQUAL 0)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]+" present "${present}")
    list(REMOVE_DUPLICATES present)
    string(REPLACE "." "" present "${present}")
  endif()
  if(result EQUAL 0 AND present)
    set(${variable} ${present} PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-arch OUTPUT_VARIABLE known)
  set(chosen "")
  foreach(architecture IN LISTS default_architectures)
    if(known MATCHES "compute_${architecture}\n")
      list(APPEND chosen ${architecture}-real)
      set(newest ${architecture})
    endif()
  endforeach()
  list(APPEND chosen ${newest}-virtual)  # for the GPUs after it
  set(${variable} ${chosen} PARENT_SCOPE)
endfunction()

set(CUDARELU_HAS_CUDA OFF)
if(CUDARELU_CUDA STREQUAL "OFF")
  cudarelu_report("CUDA kernels" "off" "CUDARELU_CUDA=OFF")
else()
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
  if(CMAKE_CUDA_COMPILER OR DEFINED ENV{CUDACXX})
    set(CMAKE_CUDA_ARCHITECTURES OFF)  # for the compiler's test; chosen below, when nvcc is known
    enable_language(CUDA)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.0)
      cudarelu_off(CUDARELU_CUDA "CUDA kernels"
        "${CMAKE_CUDA_COMPILER} is ${CMAKE_CUDA_COMPILER_VERSION}; 12.0 is the oldest with C++20")
      return()
    endif()
    find_package(CUDAToolkit REQUIRED)
    cudarelu_cublaslt_header_of(cublaslt_header)
    if(NOT cublaslt_header)
      cudarelu_off(CUDARELU_CUDA "CUDA kernels"
        "no cublasLt.h: install the toolkit's cuBLAS headers, or pip install 'cuda-toolkit[cublas]==13.0.*'")
      return()
    endif()
    add_library(cudarelu_cublaslt_header INTERFACE)
    target_include_directories(cudarelu_cublaslt_header SYSTEM INTERFACE ${cublaslt_header})
    set(CUDARELU_HAS_CUDA ON)
    cudarelu_choose_architectures(CMAKE_CUDA_ARCHITECTURES)
    cudarelu_report("CUDA kernels" "on " "nvcc ${CMAKE_CUDA_COMPILER_VERSION} (${CMAKE_CUDA_COMPILER}), architectures ${CMAKE_CUDA_ARCHITECTURES}")
  else()
    cudarelu_off(CUDARELU_CUDA "CUDA kernels"
      "no nvcc: install a CUDA toolkit, or pip install 'cuda-toolkit[nvcc,cccl,cudart,crt,nvvm,cublas]==13.0.*'")
  endif()
endif()
