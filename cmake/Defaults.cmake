# Settings and functions for all targets.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})

if(PROJECT_IS_TOP_LEVEL)  # the CPU seconds of each compilation, for tools/budget.py
  set_property(GLOBAL PROPERTY RULE_LAUNCH_COMPILE
    "bash \"${CMAKE_CURRENT_LIST_DIR}/compile_seconds.sh\" \"${PROJECT_BINARY_DIR}/compile_seconds.txt\" <OBJECT>")
endif()

find_program(CCACHE ccache)
mark_as_advanced(CCACHE)
if(CCACHE)
  # Without this sloppiness, ccache does not cache files that use a precompiled header. With paths
  # relative to the sources, another clone finds what this one has compiled.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros)
  if(NOT DEFINED ENV{CCACHE_BASEDIR})
    list(APPEND launcher CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1)
  endif()
  list(APPEND launcher ${CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
  # Only where there is such a header: with the option, ccache takes unused -D and -I for a
  # difference.
  set(precompiles $<BOOL:$<TARGET_PROPERTY:PRECOMPILE_HEADERS>>)
  add_compile_options($<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,${precompiles}>:-fpch-preprocess>)
endif()

# cudarelu_unity_build(TARGET SIZE HEADER...): compiles up to SIZE sources as one (0: all), since most
# of the time goes into headers. With CMAKE_UNITY_BUILD=OFF each is compiled alone, with the headers
# precompiled: a change to one source is built faster, everything slower.
function(cudarelu_unity_build target size)
  if(NOT DEFINED CMAKE_UNITY_BUILD)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${size}
                          UNITY_BUILD_RELOCATABLE ON)  # for ccache in other clones
  elseif(ARGN)
    target_precompile_headers(${target} PRIVATE ${ARGN})
  endif()
endfunction()

# cudarelu_target(TARGET): sets the language, warnings and sanitizers for code of this project; and
# -O2, which cudarelu_module_flags() raises for kernels: elsewhere -O3 makes code larger, not faster.
function(cudarelu_target target)
  # Not CMAKE_CXX_STANDARD: CMake 3.25 would apply it to CUDA too, for which it does not know C++20.
  target_compile_features(${target} PRIVATE cxx_std_20)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wnon-virtual-dtor>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O2>
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>)
  if(CUDARELU_SANITIZE)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${CUDARELU_SANITIZE} -fno-omit-frame-pointer>)
    target_link_options(${target} PRIVATE -fsanitize=${CUDARELU_SANITIZE})
  endif()
endfunction()
