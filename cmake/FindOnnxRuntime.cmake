#[=======================================================================[.rst:
FindOnnxRuntime
---------------

Find ONNX Runtime's C and C++ headers and its library, in an unpacked release or an installed copy.
This module does not depend on other files and can be copied into another project.

The config package of the release is not used, since it names folders that the release lacks.

``ORT_ROOT`` or ``OnnxRuntime_ROOT``, a CMake or environment variable, is the folder of an unpacked
release. If one of them is set, nothing else is searched. Otherwise ``CMAKE_PREFIX_PATH`` and the
system's folders are searched.

Imported Targets
^^^^^^^^^^^^^^^^

``OnnxRuntime::Headers``
  The headers. A custom-op library, or a program that loads ONNX Runtime at run time, needs nothing
  else.

Result Variables
^^^^^^^^^^^^^^^^

``OnnxRuntime_FOUND``
  Whether the headers were found in a suitable version.

``OnnxRuntime_API_VERSION``
  The version of the C API that the headers declare, for example ``23``.

``OnnxRuntime_VERSION``
  ``1.`` followed by the version of the API, which is ONNX Runtime's minor version. The headers do
  not contain the patch version.

``OnnxRuntime_INCLUDE_DIRS``
  The folder of the headers.

Cache Variables
^^^^^^^^^^^^^^^

``OnnxRuntime_INCLUDE_DIR``
  The folder that holds ``onnxruntime_c_api.h``.

``OnnxRuntime_LIBRARY``
  The library that belongs to the headers. It is optional, since some packages contain only headers.

#]=======================================================================]

set(_ort_roots ${ORT_ROOT} $ENV{ORT_ROOT} ${OnnxRuntime_ROOT} $ENV{OnnxRuntime_ROOT})
set(_ort_suffixes include include/onnxruntime include/onnxruntime/core/session)
if(_ort_roots)
  find_path(OnnxRuntime_INCLUDE_DIR onnxruntime_c_api.h PATHS ${_ort_roots}
            PATH_SUFFIXES ${_ort_suffixes} NO_DEFAULT_PATH)
else()
  find_path(OnnxRuntime_INCLUDE_DIR onnxruntime_c_api.h PATH_SUFFIXES ${_ort_suffixes})
endif()
if(OnnxRuntime_INCLUDE_DIR)
  file(STRINGS "${OnnxRuntime_INCLUDE_DIR}/onnxruntime_c_api.h" _ort_line
       REGEX "#define ORT_API_VERSION ")
  string(REGEX MATCH "[0-9]+" OnnxRuntime_API_VERSION "${_ort_line}")
  set(OnnxRuntime_VERSION 1.${OnnxRuntime_API_VERSION})
  string(REGEX REPLACE "/include(/onnxruntime(/core/session)?)?$" "" _ort_prefix "${OnnxRuntime_INCLUDE_DIR}")
  find_library(OnnxRuntime_LIBRARY onnxruntime PATHS "${_ort_prefix}"
               PATH_SUFFIXES lib lib/${CMAKE_LIBRARY_ARCHITECTURE} NO_DEFAULT_PATH)
endif()
mark_as_advanced(OnnxRuntime_INCLUDE_DIR OnnxRuntime_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OnnxRuntime
  REQUIRED_VARS OnnxRuntime_INCLUDE_DIR VERSION_VAR OnnxRuntime_VERSION HANDLE_VERSION_RANGE)

if(OnnxRuntime_FOUND)
  set(OnnxRuntime_INCLUDE_DIRS "${OnnxRuntime_INCLUDE_DIR}")
  if(NOT TARGET OnnxRuntime::Headers)
    add_library(OnnxRuntime::Headers INTERFACE IMPORTED)
    target_include_directories(OnnxRuntime::Headers INTERFACE ${OnnxRuntime_INCLUDE_DIRS})
  endif()
endif()
