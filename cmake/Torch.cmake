# PyTorch: the one of the Python environment, or a libtorch whose folder is in CMAKE_PREFIX_PATH.
# Sets CUDARELU_HAS_TORCH and the target cudarelu_libtorch.
#
# Torch's own CMake package is not used: it wants a CUDA toolkit even for code without CUDA, rewrites
# CMAKE_CUDA_FLAGS with architectures that CUDA 13 refuses, and links nvrtc.

set(CUDARELU_HAS_TORCH OFF)
if(CUDARELU_TORCH STREQUAL "OFF")
  cudarelu_report("PyTorch binding" "off" "CUDARELU_TORCH=OFF")
  return()
endif()

cudarelu_python_package(torch_folder torch)
cudarelu_python_package(nanobind_folder nanobind)
find_path(CUDARELU_TORCH_INCLUDE torch/library.h HINTS ${torch_folder}/include)
find_library(CUDARELU_TORCH_CPU torch_cpu HINTS ${torch_folder}/lib)
find_library(CUDARELU_TORCH_C10 c10 HINTS ${torch_folder}/lib)
find_library(CUDARELU_TORCH_PYTHON torch_python HINTS ${torch_folder}/lib)
mark_as_advanced(CUDARELU_TORCH_INCLUDE CUDARELU_TORCH_CPU CUDARELU_TORCH_C10
                 CUDARELU_TORCH_PYTHON)
if(NOT CUDARELU_TORCH_INCLUDE OR NOT CUDARELU_TORCH_CPU OR NOT CUDARELU_TORCH_C10)
  cudarelu_off(CUDARELU_TORCH "PyTorch binding"
    "no PyTorch in ${Python_EXECUTABLE}: pip install torch, or set Python_EXECUTABLE")
  return()
endif()
file(STRINGS ${CUDARELU_TORCH_INCLUDE}/torch/headeronly/version.h lines
     REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE "[^0-9;]" "" torch_version "${lines}")
string(REPLACE ";" "." torch_version "${torch_version}")
if(torch_version VERSION_LESS 2.11)
  cudarelu_off(CUDARELU_TORCH "PyTorch binding" "PyTorch ${torch_version} is older than 2.11")
  return()
endif()

set(CUDARELU_HAS_TORCH ON)
add_library(cudarelu_libtorch INTERFACE)
target_include_directories(cudarelu_libtorch SYSTEM INTERFACE ${CUDARELU_TORCH_INCLUDE}
  ${CUDARELU_TORCH_INCLUDE}/torch/csrc/api/include)
target_link_libraries(cudarelu_libtorch INTERFACE ${CUDARELU_TORCH_CPU} ${CUDARELU_TORCH_C10})
cudarelu_report("PyTorch binding" "on " "PyTorch ${torch_version} (${CUDARELU_TORCH_INCLUDE})")

set(CUDARELU_HAS_PYTHON_MODULE OFF)
if(nanobind_folder AND Python_Development.Module_FOUND AND CUDARELU_TORCH_PYTHON)
  find_package(nanobind CONFIG REQUIRED HINTS ${nanobind_folder}/cmake)
  set(CUDARELU_HAS_PYTHON_MODULE ON)
  cudarelu_report("Python module" "on " "Python ${Python_VERSION}, nanobind ${nanobind_VERSION}")
else()
  cudarelu_report("Python module" "off" "needs nanobind and Python's headers: pip install nanobind; apt-get install python3-dev")
endif()
