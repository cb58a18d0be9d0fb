# Finds CUDA: an installed toolkit, else the toolkit in Python's packages. Sets CUDARELU_HAS_CUDA
# and creates the target cudarelu_cublaslt_header. CudaToolkit.cmake has the rules for architectures.

include(${PROJECT_SOURCE_DIR}/cmake/sdk/CudaToolkit.cmake)

# Sets the variable to a folder with cublasLt.h, or to nothing. (The library is loaded at run time.)
# If the toolkit lacks the header, it comes from PyTorch's packages. Their folder also contains
# headers of CUDA, which must not hide those of the toolkit, so a folder in the build tree has links
# to the two headers that are needed.
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

set(CUDARELU_HAS_CUDA OFF)
if(CUDARELU_CUDA STREQUAL "OFF")
  cudarelu_report("CUDA kernels" "off" "CUDARELU_CUDA=OFF")
  return()
endif()
cudarelu_enable_cuda(missing source)
if(NOT missing)
  cudarelu_cublaslt_header_of(cublaslt_header)
  if(NOT cublaslt_header)
    set(missing "no cublasLt.h: install the toolkit's cuBLAS headers, or pip install 'cuda-toolkit[cublas]==13.0.*'")
  endif()
endif()
if(missing)
  cudarelu_off(CUDARELU_CUDA "CUDA kernels" "${missing}")
  return()
endif()
add_library(cudarelu_cublaslt_header INTERFACE)
target_include_directories(cudarelu_cublaslt_header SYSTEM INTERFACE ${cublaslt_header})
set(CUDARELU_HAS_CUDA ON)
cudarelu_contains(cuda-toolkit ${CMAKE_CUDA_COMPILER_VERSION}  # its static runtime, and CUB
  "LicenseRef-NVIDIA-CUDA-EULA AND Apache-2.0 WITH LLVM-exception" pkg:generic/cuda-toolkit)
cudarelu_report("CUDA kernels" "on " "nvcc ${CMAKE_CUDA_COMPILER_VERSION} (${CMAKE_CUDA_COMPILER}), architectures ${CMAKE_CUDA_ARCHITECTURES} (${source})")
