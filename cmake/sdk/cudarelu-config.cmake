# find_package(cudarelu): builds op modules.
#
#   cudarelu_add_ops(my_ops NAMESPACE my SOURCES swish.h top_k.h top_k.cpp top_k.cu)
#
# adds the target my_ops, whose file libmy_ops.so is an op module with the ops of these headers. An op
# is a struct of the C++ namespace `my` whose first member is `static constexpr OpSpec spec`; its
# headers are cudarelu/elementwise.h, cudarelu/product.h and cudarelu/kernel.h. The target needs
# C++20, and nothing of PyTorch or ONNX Runtime. CUDA sources are built if there is nvcc 12 or later
# (-DCUDARELU_CUDA=OFF: not; ON: required), for the architectures in CUDARELU_CUDA_ARCHITECTURES; see
# CudaToolkit.cmake.

get_filename_component(CUDARELU_SDK_DIR "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
find_package(Python QUIET COMPONENTS Interpreter)
include(${CMAKE_CURRENT_LIST_DIR}/CudaToolkit.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/ModuleFlags.cmake)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CUDARELU_CUDA AUTO CACHE STRING "CUDA kernels: AUTO, ON or OFF")
set(CUDARELU_BUILT_FOR "the CPU")
set(CUDARELU_HAS_CUDA OFF)
if(CUDARELU_CUDA)
  cudarelu_enable_cuda(_cudarelu_missing _cudarelu_source)
  if(NOT _cudarelu_missing)
    set(CUDARELU_HAS_CUDA ON)
    cudarelu_built_for(CUDARELU_BUILT_FOR)
  elseif(NOT CUDARELU_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "CUDARELU_CUDA=${CUDARELU_CUDA}, but there is ${_cudarelu_missing}")
  endif()
endif()
message(STATUS "Op modules are built for ${CUDARELU_BUILT_FOR}")

function(cudarelu_add_ops target)
  cmake_parse_arguments(PARSE_ARGV 1 argument "" "NAMESPACE" "SOURCES")
  if(NOT argument_NAMESPACE OR NOT argument_SOURCES OR argument_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "usage: cudarelu_add_ops(TARGET NAMESPACE name SOURCES file...)")
  endif()
  set(files "")
  foreach(file IN LISTS argument_SOURCES)
    get_filename_component(file ${file} ABSOLUTE)
    if(NOT EXISTS ${file})
      message(FATAL_ERROR "cudarelu_add_ops(${target}): there is no ${file}")
    endif()
    list(APPEND files ${file})
  endforeach()
  set(generated ${CMAKE_CURRENT_BINARY_DIR}/${target}_generated)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files})
  execute_process(COMMAND sh ${CUDARELU_SDK_DIR}/module/generate.sh ${generated}
                          ${argument_NAMESPACE} ${argument_NAMESPACE} ${files}
                  OUTPUT_VARIABLE lines ERROR_VARIABLE error RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "cudarelu_add_ops(${target}): ${error}")
  endif()
  string(REPLACE "\n" ";" lines "${lines}")
  foreach(part IN ITEMS cpu cuda)
    set(sources ${lines})
    list(FILTER sources INCLUDE REGEX "^${part} ")
    list(TRANSFORM sources REPLACE "^${part} " "" OUTPUT_VARIABLE ${part}_sources)
  endforeach()

  add_library(${target} MODULE ${CUDARELU_SDK_DIR}/module/module.cpp ${cpu_sources})
  target_compile_features(${target} PRIVATE cxx_std_20)
  cudarelu_module_flags(${target} ${CUDARELU_SDK_DIR}/module/flags.json)
  target_include_directories(${target} PRIVATE ${CUDARELU_SDK_DIR}/include ${generated})
  target_compile_definitions(${target} PRIVATE CUDARELU_MODULE="${argument_NAMESPACE}"
                             "CUDARELU_BUILT_FOR=\"${CUDARELU_BUILT_FOR}\"")
  set_target_properties(${target} PROPERTIES
    PREFIX lib POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    # libcudarelu_ops.so has the engines for matrix products.
    BUILD_RPATH "$ORIGIN;${CUDARELU_SDK_DIR}/.." INSTALL_RPATH "$ORIGIN;$ORIGIN/../cudarelu")
  if(CUDARELU_HAS_CUDA)
    target_sources(${target} PRIVATE ${cuda_sources})
    target_compile_definitions(${target} PRIVATE CUDARELU_WITH_CUDA)
    target_link_libraries(${target} PRIVATE CUDA::cudart_static)
  endif()
  target_link_libraries(${target} PRIVATE ${CUDARELU_SDK_DIR}/lib/libcudarelu_module.a
                                          ${CMAKE_DL_LIBS})
  target_link_options(${target} PRIVATE
    LINKER:--version-script=${CUDARELU_SDK_DIR}/module/exports.version)
endfunction()
