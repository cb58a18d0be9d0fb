# What is asked of the Python in Python_EXECUTABLE.

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
