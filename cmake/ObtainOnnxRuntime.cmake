# cudarelu_obtain_onnxruntime(VARIABLE): sets VARIABLE to a folder for OnnxRuntime_ROOT, unpacked
# into the build tree: the official release archive, else Debian's package; empty if both are
# unavailable.

include(DebianPackage)
set(CUDARELU_ORT_ARCHIVE ON CACHE BOOL "Download ONNX Runtime's release archive if it is missing")

function(cudarelu_obtain_onnxruntime variable)
  cudarelu_onnxruntime_archive(root 1.30.0
    a5ed5a3cac51fbb2e90da632ae43d19212faaa20e76484e62bcb7c23ddb3b3fd)
  if(NOT root)
    cudarelu_debian_package(root forky libonnxruntime-dev)
  endif()
  set(${variable} "${root}" PARENT_SCOPE)
endfunction()

# Downloads and unpacks the release archive for this machine; empty if it is unavailable.
function(cudarelu_onnxruntime_archive variable version expected_sha256)
  set(${variable} "" PARENT_SCOPE)
  if(NOT CUDARELU_ORT_ARCHIVE OR NOT CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
    return()
  endif()
  set(name onnxruntime-linux-x64-${version})
  set(folder ${PROJECT_BINARY_DIR}/onnxruntime)
  if(NOT EXISTS ${folder}/${name})
    message(STATUS "Downloading ONNX Runtime ${version}")
    file(DOWNLOAD
      https://github.com/microsoft/onnxruntime/releases/download/v${version}/${name}.tgz
      ${folder}/${name}.tgz INACTIVITY_TIMEOUT 15 STATUS status)
    list(GET status 0 code)
    if(code EQUAL 0)
      file(SHA256 ${folder}/${name}.tgz sha256)
    endif()
    if(NOT code EQUAL 0 OR NOT sha256 STREQUAL expected_sha256)
      file(REMOVE ${folder}/${name}.tgz)
      message(STATUS "  failed: ${status}")
      return()
    endif()
    file(ARCHIVE_EXTRACT INPUT ${folder}/${name}.tgz DESTINATION ${folder})
  endif()
  set(${variable} ${folder}/${name} PARENT_SCOPE)
endfunction()
