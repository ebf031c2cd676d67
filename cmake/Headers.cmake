# Headers of others. What OnnxRuntimeHeaders.cmake and XrtHeaders.cmake share: where to look for them, in this order.
#
#   path     the folder that a setting names; a wrong one is an error
#   system   an installed package, or the same files on CMake's search path
#   cache    what apt downloaded for an earlier build into ORT_AIE_CACHE_DIR, by default ort_aie_ep in
#            $XDG_CACHE_HOME or ~/.cache
#   apt      Debian's or Ubuntu's newest package, downloaded without root into the cache
#
# A setting is a CMake variable or an environment variable; the CMake variable wins.

set(_ORT_AIE_APT_HEADERS "${CMAKE_CURRENT_LIST_DIR}/apt_headers.sh")

# Value of a setting, empty when it is not given.
function(_ort_aie_setting name value_out)
  set(value "${${name}}")
  if(value STREQUAL "")
    set(value "$ENV{${name}}")
  endif()
  set(${value_out} "${value}" PARENT_SCOPE)
endfunction()

function(_ort_aie_cache_directory directory_out)
  _ort_aie_setting(ORT_AIE_CACHE_DIR directory)
  if(directory STREQUAL "")
    if(IS_ABSOLUTE "$ENV{XDG_CACHE_HOME}")
      set(directory "$ENV{XDG_CACHE_HOME}/ort_aie_ep")
    elseif(IS_ABSOLUTE "$ENV{HOME}")
      set(directory "$ENV{HOME}/.cache/ort_aie_ep")
    endif()
    # A build service's user may have no home. Then the cache lasts as long as the build tree.
    execute_process(COMMAND "${CMAKE_COMMAND}" -E make_directory "${directory}"
                    RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
    if(failed)
      set(directory ort_aie_cache)
    endif()
  endif()
  get_filename_component(directory "${directory}" ABSOLUTE BASE_DIR "${CMAKE_BINARY_DIR}")
  set(${directory_out} "${directory}" PARENT_SCOPE)
endfunction()

# Sets `directory`, `version` and `source` (path, system or apt). If there is none, `source` is empty
# where WITHOUT says what the build then lacks and FROM leaves the choice; else that is an error.
#
#   FROM, SETTING   settings: the only place to look, and the folder for "path", which HELP describes
#   PACKAGES        the first has the headers
#   BELOW, OR_IN    where below a prefix headers may be; a prefix that CMake does not search
#   HEADERS         what must be there; DEFINED_IN defines MACRO, as MINIMUM or newer
#   CHECK           a function that sets `problem` if what is in `directory` will not do
function(_ort_aie_find name)
  set(one FROM SETTING HELP OR_IN MACRO DEFINED_IN MINIMUM CHECK WITHOUT)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "${one}" "PACKAGES;BELOW;HEADERS")
  list(GET arg_PACKAGES 0 package)
  list(GET arg_HEADERS 0 header)
  set(places path system cache apt)
  set(tried "")
  _ort_aie_setting(${arg_FROM} from)
  if(from STREQUAL "none" AND arg_WITHOUT)
    set(places "")
    set(tried " ${arg_FROM} is none")
  elseif(from MATCHES "^(path|system|apt)$")
    string(REPLACE "apt" "cache;apt" places "${from}")
    set(arg_WITHOUT "")
  elseif(NOT from MATCHES "^(auto)?$")
    message(FATAL_ERROR "${arg_FROM} is \"${from}\"; it can be auto, path, system or apt.")
  endif()

  foreach(place IN LISTS places)
    set(folders "")
    if(place STREQUAL "path")
      _ort_aie_setting(${arg_SETTING} folders)
      set(problem "${arg_SETTING} is not set")
    elseif(place STREQUAL "system")
      unset(found)
      find_path(found ${header} PATHS ${arg_OR_IN} PATH_SUFFIXES ${arg_BELOW} NO_CACHE)
      string(REPLACE "found-NOTFOUND" "" folders "${found}")
      set(problem "there is no ${header} on CMake's search path (${package} is not installed)")
    elseif(place STREQUAL "cache")
      _ort_aie_cache_directory(cache)
      file(GLOB folders "${cache}/${package}-*/usr")
      list(SORT folders COMPARE NATURAL ORDER DESCENDING)
      set(problem "there is no ${package} in ${cache}")
    else()
      _ort_aie_download()
    endif()
    foreach(folder IN LISTS folders)
      _ort_aie_look_below("${folder}")
      if(problem STREQUAL "")
        string(REPLACE "cache" "apt" source "${place}")
        message(STATUS "${name}: from ${source}, ${arg_MACRO} ${version}: ${directory}")
        return(PROPAGATE directory version source)
      endif()
    endforeach()
    if(place STREQUAL "path" AND NOT folders STREQUAL "")
      message(FATAL_ERROR "${arg_SETTING} is \"${folders}\", but ${problem}.\n"
                          "  Set it to ${arg_HELP}, or unset it.")
    endif()
    string(APPEND tried "\n    ${place}: ${problem}")
  endforeach()
  if(NOT arg_WITHOUT)
    message(FATAL_ERROR "${name}: none with ${arg_MACRO} ${arg_MINIMUM} or newer. Tried:${tried}\n"
                        "  Install ${package}, or set ${arg_SETTING} (a CMake variable or an "
                        "environment variable) to ${arg_HELP}.")
  endif()
  message(STATUS "${name}: none, so ${arg_WITHOUT}:${tried}")
  set(source "")
  return(PROPAGATE source)
endfunction()

# What follows sees the variables of _ort_aie_find.

# Sets `folders`, or `problem`.
function(_ort_aie_download)
  find_program(apt_get apt-get NO_CACHE)
  if(NOT apt_get)
    set(problem "there is no apt-get on this machine")
    return(PROPAGATE problem)
  endif()
  list(JOIN arg_PACKAGES " and " packages)
  message(STATUS "${name}: apt downloads ${packages} into ${cache}")
  execute_process(COMMAND bash "${_ORT_AIE_APT_HEADERS}" "${cache}" ${arg_PACKAGES}
                  RESULT_VARIABLE failed OUTPUT_VARIABLE folders ERROR_VARIABLE problem
                  ERROR_STRIP_TRAILING_WHITESPACE TIMEOUT 600)
  if(failed)
    string(REGEX MATCH "[^\n]*$" problem "apt_headers.sh failed (${failed})\n${problem}")
    return(PROPAGATE problem)
  endif()
  string(REPLACE "\n" "/usr;" folders "${folders}")
  list(FILTER folders INCLUDE REGEX "/${package}-[^/]*/usr$")
  return(PROPAGATE folders)
endfunction()

# Sets `directory` and `version`, or `problem`.
function(_ort_aie_look_below prefix)
  get_filename_component(directory "${prefix}" ABSOLUTE BASE_DIR "${CMAKE_SOURCE_DIR}")
  set(problem "")
  foreach(below IN LISTS arg_BELOW)
    if(NOT EXISTS "${directory}/${header}" AND EXISTS "${directory}/${below}/${header}")
      string(APPEND directory "/${below}")
    endif()
  endforeach()
  foreach(needed IN LISTS arg_HEADERS)
    if(NOT EXISTS "${directory}/${needed}")
      set(problem "${directory} has no ${needed}")
      return(PROPAGATE problem)
    endif()
  endforeach()
  # A number, or two in parentheses: major and minor.
  file(STRINGS "${directory}/${arg_DEFINED_IN}" line LIMIT_COUNT 1
       REGEX "^#define[ \t]+${arg_MACRO}[ \t]")
  string(REGEX MATCH "[0-9]+(, *[0-9]+)?" version "${line}")
  string(REGEX REPLACE ", *" "." version "${version}")
  if(version VERSION_LESS arg_MINIMUM)
    set(problem "${directory} has ${arg_MACRO} ${version}, and ${arg_MINIMUM} is the oldest \
that will do")
  elseif(arg_CHECK)
    cmake_language(CALL ${arg_CHECK})
  endif()
  return(PROPAGATE directory version problem)
endfunction()

# Copies the headers in the folder `from` to include/NAME of the build, and sets `directory_out` to that. pip puts the
# packages that a build needs into another temporary folder each time: ccache would know nothing that includes them.
function(ort_aie_keep_headers from name directory_out)
  set(kept "${CMAKE_BINARY_DIR}/include/${name}")
  file(GLOB_RECURSE headers RELATIVE "${from}" "${from}/*.h" "${from}/*.hpp")
  foreach(header IN LISTS headers)
    get_filename_component(folder "${kept}/${header}" DIRECTORY)
    file(MAKE_DIRECTORY "${folder}")
    file(COPY_FILE "${from}/${header}" "${kept}/${header}" ONLY_IF_DIFFERENT)
  endforeach()
  set(${directory_out} "${kept}" PARENT_SCOPE)
endfunction()
