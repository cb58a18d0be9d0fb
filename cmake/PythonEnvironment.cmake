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

# cudarelu_python(VARIABLE CODE): sets VARIABLE to the output of Python code; empty if it fails.
function(cudarelu_python variable code)
  set(output "")
  if(Python_Interpreter_FOUND)
    execute_process(COMMAND ${Python_EXECUTABLE} -c "${code}" OUTPUT_VARIABLE output
                    ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE result)
    if(NOT result EQUAL 0)
      set(output "")
    endif()
  endif()
  set(${variable} "${output}" PARENT_SCOPE)
endfunction()

# cudarelu_python_package(VARIABLE NAME): sets VARIABLE to the folder of an installed package,
# without importing it.
function(cudarelu_python_package variable name)
  cudarelu_python(folder "import importlib.util as u; print(u.find_spec('${name}').submodule_search_locations[0])")
  set(${variable} "${folder}" PARENT_SCOPE)
endfunction()
