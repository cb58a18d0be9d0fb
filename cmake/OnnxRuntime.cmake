# ONNX Runtime's headers, from the first of: ORT_ROOT (a variable or in the environment); an installed
# copy; the official release archive; Debian's package. Only headers are needed to build: ort_infer
# opens the library when it runs, and CUDARELU_ORT_LIBRARY is merely where it looks first.
# Sets CUDARELU_HAS_ORT and the target cudarelu_ort_headers.

include(DebianPackage)
set(CUDARELU_ORT_ARCHIVE ON CACHE BOOL "Download ONNX Runtime's release archive where it is missing")
set(archive_version 1.30.0)
set(archive_sha256 a5ed5a3cac51fbb2e90da632ae43d19212faaa20e76484e62bcb7c23ddb3b3fd)

set(CUDARELU_HAS_ORT OFF)
if(CUDARELU_ORT STREQUAL "OFF")
  cudarelu_report("ONNX Runtime plugin" "off" "CUDARELU_ORT=OFF")
  return()
endif()

set(suffixes include include/onnxruntime include/onnxruntime/core/session)
if(DEFINED ENV{ORT_ROOT} AND NOT ORT_ROOT)
  set(ORT_ROOT $ENV{ORT_ROOT})
endif()

# The release archive of this machine, unpacked; empty where it cannot be had.
function(cudarelu_ort_archive variable)
  set(${variable} "" PARENT_SCOPE)
  if(NOT CUDARELU_ORT_ARCHIVE OR NOT CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
    return()
  endif()
  set(name onnxruntime-linux-x64-${archive_version})
  set(folder ${PROJECT_BINARY_DIR}/onnxruntime)
  if(NOT EXISTS ${folder}/${name})
    message(STATUS "Downloading ONNX Runtime ${archive_version}")
    file(DOWNLOAD
      https://github.com/microsoft/onnxruntime/releases/download/v${archive_version}/${name}.tgz
      ${folder}/${name}.tgz INACTIVITY_TIMEOUT 15 STATUS status)
    list(GET status 0 code)
    if(code EQUAL 0)
      file(SHA256 ${folder}/${name}.tgz sha256)
    endif()
    if(NOT code EQUAL 0 OR NOT sha256 STREQUAL archive_sha256)
      file(REMOVE ${folder}/${name}.tgz)
      message(STATUS "  not to be had: ${status}")
      return()
    endif()
    file(ARCHIVE_EXTRACT INPUT ${folder}/${name}.tgz DESTINATION ${folder})
  endif()
  set(${variable} ${folder}/${name} PARENT_SCOPE)
endfunction()

find_path(CUDARELU_ORT_INCLUDE onnxruntime_c_api.h HINTS ${ORT_ROOT} PATH_SUFFIXES ${suffixes})
if(ORT_ROOT AND NOT CUDARELU_ORT_INCLUDE)
  message(FATAL_ERROR "ORT_ROOT is ${ORT_ROOT}, which has no include/onnxruntime_c_api.h")
endif()
if(NOT CUDARELU_ORT_INCLUDE)
  cudarelu_ort_archive(root)
  if(NOT root)
    cudarelu_debian_package(root forky libonnxruntime-dev)
  endif()
  if(root)
    find_path(CUDARELU_ORT_INCLUDE onnxruntime_c_api.h PATHS ${root} PATH_SUFFIXES ${suffixes}
              NO_DEFAULT_PATH)
  endif()
endif()
mark_as_advanced(CUDARELU_ORT_INCLUDE)
if(NOT CUDARELU_ORT_INCLUDE)
  cudarelu_off(CUDARELU_ORT "ONNX Runtime plugin"
    "no onnxruntime_c_api.h: set ORT_ROOT to an unpacked release of ONNX Runtime")
  return()
endif()
file(STRINGS ${CUDARELU_ORT_INCLUDE}/onnxruntime_c_api.h line REGEX "#define ORT_API_VERSION ")
string(REGEX MATCH "[0-9]+" ort_api_version "${line}")
if(ort_api_version LESS 23)
  cudarelu_off(CUDARELU_ORT "ONNX Runtime plugin"
    "the headers in ${CUDARELU_ORT_INCLUDE} are of API ${ort_api_version}; 23 is the least")
  return()
endif()

# The library: beside the headers, or the one in Python's package, whose name has a version.
cudarelu_python_package(package onnxruntime)
file(GLOB libraries ${ORT_ROOT}/lib/libonnxruntime.so ${root}/lib/libonnxruntime.so
     ${package}/capi/libonnxruntime.so.*)
set(library "")
if(libraries)
  list(GET libraries 0 library)
endif()
set(CUDARELU_ORT_LIBRARY "${library}" CACHE FILEPATH "The ONNX Runtime that ort_infer opens first")

set(CUDARELU_HAS_ORT ON)
add_library(cudarelu_ort_headers INTERFACE)
target_include_directories(cudarelu_ort_headers SYSTEM INTERFACE ${CUDARELU_ORT_INCLUDE})
cudarelu_report("ONNX Runtime plugin" "on " "API ${ort_api_version} (${CUDARELU_ORT_INCLUDE})")
