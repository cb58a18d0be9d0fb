#[=======================================================================[.rst:
FindTorch
---------

Find PyTorch's C++ libraries and headers, in an unpacked LibTorch or in Python's package ``torch``.
This module does not depend on other files and can be copied into another project.

Torch's own config package is not used. It requires a CUDA toolkit even for code without CUDA, sets
``CMAKE_CUDA_FLAGS`` to architectures that CUDA 13 rejects, and links nvrtc.

The module uses the first of these that contains PyTorch, with the libraries beside its headers:

1. ``Torch_ROOT``, a CMake or environment variable: the folder with ``include`` and ``lib``
2. ``Torch_DIR``, a CMake or environment variable: its folder ``share/cmake/Torch``
3. ``CMAKE_PREFIX_PATH``: that folder, or its folder ``share/cmake``, the value of
   ``torch.utils.cmake_prefix_path``
4. the package of the Python interpreter, after ``find_package(Python COMPONENTS Interpreter)``
5. the system's folders

Imported Targets
^^^^^^^^^^^^^^^^

``Torch::CPU``
  The headers, ``libtorch_cpu`` and ``libc10``. A library of operators that links only these works
  with and without CUDA.

``Torch::Torch``
  ``Torch::CPU`` and ``libtorch``, which loads the GPU libraries of a PyTorch with CUDA. Programs
  link this.

``Torch::Python``
  ``Torch::CPU`` and ``libtorch_python``, for Python modules. Defined only if that library exists.

Result Variables
^^^^^^^^^^^^^^^^

``Torch_FOUND``
  Whether PyTorch was found in a suitable version.

``Torch_VERSION``
  Its version, for example ``2.14.1``.

``Torch_INCLUDE_DIRS``
  The folders of its headers.

Cache Variables
^^^^^^^^^^^^^^^

``Torch_INCLUDE_DIR``
  The folder that holds ``torch/library.h``.

``Torch_LIBRARY``, ``Torch_CPU_LIBRARY``, ``Torch_C10_LIBRARY``, ``Torch_PYTHON_LIBRARY``
  The libraries.

#]=======================================================================]

set(_torch_folders ${Torch_ROOT} $ENV{Torch_ROOT})
foreach(_torch_folder IN ITEMS "${Torch_DIR}" "$ENV{Torch_DIR}")
  if(_torch_folder)
    get_filename_component(_torch_folder "${_torch_folder}/../../.." ABSOLUTE)
    list(APPEND _torch_folders "${_torch_folder}")
  endif()
endforeach()
string(REPLACE ":" ";" _torch_prefixes "$ENV{CMAKE_PREFIX_PATH}")
foreach(_torch_folder IN LISTS CMAKE_PREFIX_PATH _torch_prefixes)
  if(_torch_folder MATCHES "/share/cmake/?$")
    get_filename_component(_torch_folder "${_torch_folder}/../.." ABSOLUTE)
    list(APPEND _torch_folders "${_torch_folder}")
  endif()
endforeach()
set(_torch_package "")
if(Python_Interpreter_FOUND)  # the package is not imported
  execute_process(COMMAND ${Python_EXECUTABLE} -c
      "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE _torch_package OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
# The first call makes Torch_DIR come before CMAKE_PREFIX_PATH, as it does for config packages.
find_path(Torch_INCLUDE_DIR torch/library.h PATHS ${_torch_folders} PATH_SUFFIXES include
          NO_DEFAULT_PATH)
find_path(Torch_INCLUDE_DIR torch/library.h HINTS ${_torch_package} PATH_SUFFIXES include)

if(Torch_INCLUDE_DIR)
  foreach(_torch_header IN ITEMS torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(EXISTS "${Torch_INCLUDE_DIR}/${_torch_header}")
      file(STRINGS "${Torch_INCLUDE_DIR}/${_torch_header}" _torch_lines
           REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
      string(REGEX REPLACE "[^0-9;]" "" Torch_VERSION "${_torch_lines}")
      string(REPLACE ";" "." Torch_VERSION "${Torch_VERSION}")
      break()
    endif()
  endforeach()
  get_filename_component(_torch_folder "${Torch_INCLUDE_DIR}" DIRECTORY)
  set(_torch_beside PATHS "${_torch_folder}" PATH_SUFFIXES lib lib/${CMAKE_LIBRARY_ARCHITECTURE}
                    NO_DEFAULT_PATH)
  find_library(Torch_LIBRARY torch ${_torch_beside})
  find_library(Torch_CPU_LIBRARY torch_cpu ${_torch_beside})
  find_library(Torch_C10_LIBRARY c10 ${_torch_beside})
  find_library(Torch_PYTHON_LIBRARY torch_python ${_torch_beside})
endif()
mark_as_advanced(Torch_INCLUDE_DIR Torch_LIBRARY Torch_CPU_LIBRARY Torch_C10_LIBRARY
                 Torch_PYTHON_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Torch
  REQUIRED_VARS Torch_INCLUDE_DIR Torch_LIBRARY Torch_CPU_LIBRARY Torch_C10_LIBRARY
  VERSION_VAR Torch_VERSION HANDLE_VERSION_RANGE
  REASON_FAILURE_MESSAGE "Add an unpacked LibTorch, or torch.utils.cmake_prefix_path, to CMAKE_PREFIX_PATH")

if(Torch_FOUND)
  set(Torch_INCLUDE_DIRS "${Torch_INCLUDE_DIR}" "${Torch_INCLUDE_DIR}/torch/csrc/api/include")
  if(NOT TARGET Torch::CPU)
    add_library(Torch::CPU INTERFACE IMPORTED)
    target_include_directories(Torch::CPU INTERFACE ${Torch_INCLUDE_DIRS})
    target_link_libraries(Torch::CPU INTERFACE "${Torch_CPU_LIBRARY}" "${Torch_C10_LIBRARY}")
    # With --as-needed, the linker would drop libtorch, since no symbol of it is used.
    add_library(Torch::Torch INTERFACE IMPORTED)
    target_link_libraries(Torch::Torch INTERFACE Torch::CPU
      "-Wl,--push-state,--no-as-needed" "${Torch_LIBRARY}" "-Wl,--pop-state")
    if(Torch_PYTHON_LIBRARY)
      add_library(Torch::Python INTERFACE IMPORTED)
      target_link_libraries(Torch::Python INTERFACE Torch::CPU "${Torch_PYTHON_LIBRARY}")
    endif()
  endif()
endif()
