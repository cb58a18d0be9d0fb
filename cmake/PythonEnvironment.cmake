# Selects the Python whose packages the build uses: Python_EXECUTABLE, else the project's .venv,
# else the one on the PATH. Sets Python_EXECUTABLE.

if(NOT DEFINED Python_EXECUTABLE AND NOT DEFINED ENV{VIRTUAL_ENV}
   AND EXISTS ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  set(Python_EXECUTABLE ${PROJECT_SOURCE_DIR}/.venv/bin/python)
endif()
# tools/setup.sh installs Python's headers there if Python came without them.
file(GLOB headers ${PROJECT_SOURCE_DIR}/.venv/debian-python/usr/include/python3.*)
if(headers AND NOT EXISTS "${Python_INCLUDE_DIR}/Python.h")
  set(Python_INCLUDE_DIR ${headers})
  include_directories(SYSTEM ${PROJECT_SOURCE_DIR}/.venv/debian-python/usr/include)
endif()
set(Python_FIND_VIRTUALENV FIRST)
find_package(Python 3.11 COMPONENTS Interpreter OPTIONAL_COMPONENTS Development.Module)

include(${PROJECT_SOURCE_DIR}/cmake/sdk/PythonPackages.cmake)
