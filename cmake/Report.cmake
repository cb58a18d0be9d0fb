# The summary at the end of a configuration: a table of what is on, what is off, and how to turn it
# on.

# cudarelu_report(PART ON|OFF DETAIL): adds a row to the table.
function(cudarelu_report part state detail)
  string(LENGTH "${part}" length)
  math(EXPR pad "22 - ${length}")
  string(REPEAT " " ${pad} space)
  set_property(GLOBAL APPEND_STRING PROPERTY cudarelu_report "  ${part}${space}${state}  ${detail}\n")
endfunction()

# cudarelu_check_option(OPTION): replaces CMake's synonyms for ON and OFF by these, and rejects
# other values than AUTO.
function(cudarelu_check_option option)
  string(TOUPPER "${${option}}" value)
  if(value MATCHES "^(ON|YES|TRUE|Y|1)$")
    set(value ON)
  elseif(value MATCHES "^(OFF|NO|FALSE|N|0)$")
    set(value OFF)
  elseif(NOT value STREQUAL "AUTO")
    message(FATAL_ERROR "${option} must be AUTO, ON or OFF, not ${${option}}")
  endif()
  set(${option} ${value} PARENT_SCOPE)
endfunction()

# cudarelu_off(OPTION PART REASON): reports that PART is off because of REASON. An error if OPTION
# is ON.
function(cudarelu_off option part reason)
  if("${${option}}" STREQUAL "ON")
    message(FATAL_ERROR "${option}=ON, but ${reason}")
  endif()
  cudarelu_report("${part}" "off" "${reason}")
endfunction()

function(cudarelu_print_report)
  get_property(rows GLOBAL PROPERTY cudarelu_report)
  message(STATUS "cudarelu ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}:\n${rows}")
endfunction()
