# cudarelu_debian_package(VARIABLE SUITE PACKAGE...): unpacks Debian packages into the build tree
# and sets VARIABLE to their /usr folder; empty without apt, network or such a package.
function(cudarelu_debian_package variable suite)
  list(GET ARGN 0 name)
  set(folder ${PROJECT_BINARY_DIR}/debian/${name})
  set(${variable} "" PARENT_SCOPE)
  if(NOT EXISTS ${folder}/usr)
    find_program(CUDARELU_APT apt-get)
    mark_as_advanced(CUDARELU_APT)
    if(NOT CUDARELU_APT)
      return()
    endif()
    message(STATUS "Unpacking the Debian package ${ARGN}")
    execute_process(COMMAND bash ${PROJECT_SOURCE_DIR}/cmake/debian_package.sh
                            ${folder} ${suite} ${ARGN} RESULT_VARIABLE result
                    OUTPUT_QUIET ERROR_VARIABLE error)
    if(NOT result EQUAL 0)
      message(STATUS "  failed: ${error}")
      return()
    endif()
  endif()
  set(${variable} ${folder}/usr PARENT_SCOPE)
endfunction()
