# Decides whether the plugin for ONNX Runtime and ort_infer are built. They need only its headers,
# which are downloaded if they are not found. Sets CUDARELU_HAS_ORT, and CUDARELU_ORT_LIBRARY, the
# library that ort_infer tries first at run time.

include(ObtainOnnxRuntime)

set(CUDARELU_HAS_ORT OFF)
if(CUDARELU_ORT STREQUAL "OFF")
  cudarelu_report("ONNX Runtime plugin" "off" "CUDARELU_ORT=OFF")
  return()
endif()
find_package(OnnxRuntime 1.23 QUIET MODULE)
if(NOT OnnxRuntime_INCLUDE_DIR)
  foreach(root IN ITEMS "${ORT_ROOT}" "$ENV{ORT_ROOT}")
    if(root)
      message(FATAL_ERROR "ORT_ROOT is ${root}, which has no include/onnxruntime_c_api.h")
    endif()
  endforeach()
  cudarelu_obtain_onnxruntime(OnnxRuntime_ROOT)
  find_package(OnnxRuntime 1.23 QUIET MODULE)
endif()
if(NOT OnnxRuntime_INCLUDE_DIR)
  cudarelu_off(CUDARELU_ORT "ONNX Runtime plugin"
    "no onnxruntime_c_api.h: set ORT_ROOT to an unpacked release of ONNX Runtime")
  return()
elseif(NOT OnnxRuntime_FOUND)
  cudarelu_off(CUDARELU_ORT "ONNX Runtime plugin"
    "the headers in ${OnnxRuntime_INCLUDE_DIR} have API version ${OnnxRuntime_API_VERSION}; 23 or later is needed")
  return()
endif()
set(CUDARELU_HAS_ORT ON)
cudarelu_report("ONNX Runtime plugin" "on " "API ${OnnxRuntime_API_VERSION} (${OnnxRuntime_INCLUDE_DIR})")

# The library that belongs to the headers, or the one in Python's package, whose name has a version.
set(library "${OnnxRuntime_LIBRARY}")
if(NOT library)
  cudarelu_python_package(package onnxruntime)
  file(GLOB libraries ${package}/capi/libonnxruntime.so.*)
  list(SUBLIST libraries 0 1 library)
endif()
set(CUDARELU_ORT_LIBRARY "${library}" CACHE FILEPATH "The ONNX Runtime that ort_infer tries first")
