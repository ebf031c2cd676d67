# Shared by the modules that find or fetch headers.
#
# Setting, a CMake variable or an environment variable (the CMake variable wins):
#
#   ORT_AIE_CACHE_DIR    where downloads are kept for the next build; default
#                        $XDG_CACHE_HOME/ort_aie_ep or ~/.cache/ort_aie_ep

# Value of a setting, empty when it is not given.
function(_ort_aie_setting name value_out)
  if(DEFINED ${name} AND NOT "${${name}}" STREQUAL "")
    set(${value_out} "${${name}}" PARENT_SCOPE)
  else()
    set(${value_out} "$ENV{${name}}" PARENT_SCOPE)
  endif()
endfunction()

# The folder of downloads; it can be written to.
function(_ort_aie_cache_directory directory_out)
  _ort_aie_setting(ORT_AIE_CACHE_DIR directory)
  if(NOT directory STREQUAL "")
    get_filename_component(directory "${directory}" ABSOLUTE BASE_DIR "${CMAKE_BINARY_DIR}")
    set(${directory_out} "${directory}" PARENT_SCOPE)
    return()
  endif()
  if(IS_ABSOLUTE "$ENV{XDG_CACHE_HOME}")
    set(directory "$ENV{XDG_CACHE_HOME}/ort_aie_ep")
  elseif(IS_ABSOLUTE "$ENV{HOME}")
    set(directory "$ENV{HOME}/.cache/ort_aie_ep")
  endif()
  # A build service's user may have no home to write to. Then the cache lasts as long as the build
  # tree.
  string(RANDOM LENGTH 12 probe)
  set(probe "${directory}/.writable-${probe}")
  set(failed 1)
  if(NOT directory STREQUAL "")
    execute_process(COMMAND "${CMAKE_COMMAND}" -E make_directory "${directory}"
                    OUTPUT_QUIET ERROR_QUIET)
    execute_process(COMMAND "${CMAKE_COMMAND}" -E touch "${probe}" RESULT_VARIABLE failed
                    OUTPUT_QUIET ERROR_QUIET)
  endif()
  if(failed)
    set(directory "${CMAKE_BINARY_DIR}/ort_aie_cache")
  else()
    file(REMOVE "${probe}")
  endif()
  set(${directory_out} "${directory}" PARENT_SCOPE)
endfunction()

# Makes apt download and unpack the packages ARGN, MINIMUM (a version) or newer, into CACHE without
# root (apt_headers.sh). Sets their directories in that order, or a problem.
function(_ort_aie_apt_packages directories_out problem_out cache minimum)
  find_program(bash bash NO_CACHE)
  find_program(apt_get apt-get NO_CACHE)
  if(NOT bash OR NOT apt_get)
    set(${problem_out} "there is no apt-get on this machine" PARENT_SCOPE)
    return()
  endif()
  execute_process(
    COMMAND "${bash}" "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/apt_headers.sh" "${cache}" "${minimum}"
            ${ARGN}
    RESULT_VARIABLE failed
    OUTPUT_VARIABLE directories
    ERROR_VARIABLE problem
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_STRIP_TRAILING_WHITESPACE
    TIMEOUT 600)
  if(failed EQUAL 0)
    set(problem "")
  elseif(problem MATCHES "apt_headers: ([^\n]*)$")
    set(problem "${CMAKE_MATCH_1}")
  else()
    set(problem "apt_headers.sh ended with \"${failed}\": ${problem}")
  endif()
  string(REPLACE "\n" ";" directories "${directories}")
  set(${directories_out} "${directories}" PARENT_SCOPE)
  set(${problem_out} "${problem}" PARENT_SCOPE)
endfunction()
