# The C++ libraries that the executable and the tests use: installed, else Debian's package, else
# fetched from their repositories.
include(DebianPackage)
include(FetchContent)

# A macro, since find_package sets what its caller sees.
macro(cudarelu_helper_library name debian_package repository tag)
  find_package(${name} QUIET)
  if(NOT ${name}_FOUND)
    cudarelu_debian_package(prefix own ${debian_package})
    find_package(${name} QUIET PATHS ${prefix} NO_DEFAULT_PATH)
  endif()
  if(NOT ${name}_FOUND)
    FetchContent_Declare(${name} GIT_REPOSITORY ${repository} GIT_TAG ${tag} GIT_SHALLOW ON)
    FetchContent_MakeAvailable(${name})
  endif()
endmacro()

if(CUDARELU_HAS_ORT)
  cudarelu_helper_library(CLI11 libcli11-dev https://github.com/CLIUtils/CLI11 v2.4.2)
  cudarelu_helper_library(nlohmann_json nlohmann-json3-dev https://github.com/nlohmann/json v3.11.3)
endif()
if(CUDARELU_TESTS)
  set(INSTALL_GTEST OFF)
  cudarelu_helper_library(GTest libgtest-dev https://github.com/google/googletest v1.15.2)
endif()
