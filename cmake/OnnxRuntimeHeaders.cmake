# ONNX Runtime's C headers. They are on no Python registry, so this finds or fetches them.
#
#   include(OnnxRuntimeHeaders)
#   ort_aie_find_headers(target)
#   target_link_libraries(mine PRIVATE ${target})      # OnnxRuntime::Headers
#
# Four ways, in this order. The first that works wins, and a STATUS line says which:
#
#   path     ORT_AIE_ONNXRUNTIME_INCLUDE_DIR, the directory that has onnxruntime_c_api.h
#   system   an installed libonnxruntime-dev, or the same files on CMake's search path
#   apt      libonnxruntime-dev, downloaded and unpacked without root by apt (apt_headers.sh)
#   archive  the upstream release archive, pinned by SHA256
#
# Settings, each a CMake variable or an environment variable (the CMake variable wins):
#
#   ORT_AIE_HEADERS_FROM                auto (default), or one of the four to try no other
#   ORT_AIE_ONNXRUNTIME_INCLUDE_DIR     for "path"; a wrong one is an error, never passed over
#   ORT_AIE_ONNXRUNTIME_ARCHIVE_URL     for "archive"; file:// works
#   ORT_AIE_ONNXRUNTIME_ARCHIVE_SHA256  for "archive"; required with your own URL
#   ORT_AIE_CACHE_DIR                   where downloads are kept (Downloads.cmake)

include("${CMAKE_CURRENT_LIST_DIR}/Downloads.cmake")

# ORT_API_VERSION n belongs to ONNX Runtime 1.n; 1.23 is the oldest the library supports. Newer
# headers only append to its structs.
set(_ORT_AIE_MINIMUM_API 23)

# Repositories that ship this archive pin the same hash, for example DataDog/datadog-agent
# in omnibus/config/software/onnxruntime.rb (at aaa2316182a17a00725f11e0f31a6e8b77ed5da4). Headers do
# not depend on the architecture.
set(_ORT_AIE_ARCHIVE_URL
    "https://github.com/microsoft/onnxruntime/releases/download/v1.23.2/onnxruntime-linux-x64-1.23.2.tgz")
set(_ORT_AIE_ARCHIVE_SHA256 "1fa4dcaef22f6f7d5cd81b28c2800414350c10116f5fdd46a2160082551c5f9b")

# The layouts of the package, of an installed build tree, and of the archive.
set(_ORT_AIE_SUFFIXES onnxruntime onnxruntime/core/session include include/onnxruntime)

# ORT_API_VERSION of the headers in DIRECTORY, or what is wrong with them.
function(_ort_aie_read_version directory api_out problem_out)
  set(${api_out} 0 PARENT_SCOPE)
  foreach(header onnxruntime_c_api.h onnxruntime_ep_c_api.h
                 onnxruntime_session_options_config_keys.h)
    if(NOT EXISTS "${directory}/${header}")
      set(${problem_out} "${directory} has no ${header}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  file(STRINGS "${directory}/onnxruntime_c_api.h" line LIMIT_COUNT 1
       REGEX "^#define[ \t]+ORT_API_VERSION[ \t]+[0-9]+")
  string(REGEX REPLACE "^#define[ \t]+ORT_API_VERSION[ \t]+([0-9]+).*" "\\1" api "${line}")
  if(api STREQUAL "")
    set(${problem_out} "${directory}/onnxruntime_c_api.h defines no ORT_API_VERSION" PARENT_SCOPE)
    return()
  endif()
  set(${api_out} "${api}" PARENT_SCOPE)
  if(api LESS _ORT_AIE_MINIMUM_API)
    set(${problem_out} "${directory} has ORT_API_VERSION ${api}, and ${_ORT_AIE_MINIMUM_API} is \
the oldest that will do" PARENT_SCOPE)
  else()
    set(${problem_out} "" PARENT_SCOPE)
  endif()
endfunction()

# The newest usable headers below the directories ARGN; empty when there are none.
function(_ort_aie_newest_below directory_out)
  set(best "")
  set(best_api 0)
  foreach(root IN LISTS ARGN)
    file(GLOB_RECURSE found "${root}/onnxruntime_c_api.h")
    foreach(header IN LISTS found)
      get_filename_component(directory "${header}" DIRECTORY)
      _ort_aie_read_version("${directory}" api problem)
      if(problem STREQUAL "" AND api GREATER best_api)
        set(best "${directory}")
        set(best_api ${api})
      endif()
    endforeach()
  endforeach()
  set(${directory_out} "${best}" PARENT_SCOPE)
endfunction()

# Each way below sets the directory that has the headers and a description of it, or a problem.

function(_ort_aie_headers_from_path directory_out detail_out problem_out)
  _ort_aie_setting(ORT_AIE_ONNXRUNTIME_INCLUDE_DIR given)
  if(given STREQUAL "")
    set(${problem_out} "ORT_AIE_ONNXRUNTIME_INCLUDE_DIR is not set" PARENT_SCOPE)
    return()
  endif()
  get_filename_component(directory "${given}" ABSOLUTE BASE_DIR "${CMAKE_SOURCE_DIR}")
  foreach(suffix IN LISTS _ORT_AIE_SUFFIXES)
    if(NOT EXISTS "${directory}/onnxruntime_c_api.h"
       AND EXISTS "${directory}/${suffix}/onnxruntime_c_api.h")
      string(APPEND directory "/${suffix}")
    endif()
  endforeach()
  _ort_aie_read_version("${directory}" api problem)
  if(NOT problem STREQUAL "")
    message(FATAL_ERROR "ORT_AIE_ONNXRUNTIME_INCLUDE_DIR is \"${given}\", but ${problem}.\n"
                        "  Give the directory that has onnxruntime_c_api.h, or unset the variable.")
  endif()
  set(${directory_out} "${directory}" PARENT_SCOPE)
  set(${detail_out} "ORT_AIE_ONNXRUNTIME_INCLUDE_DIR" PARENT_SCOPE)
endfunction()

function(_ort_aie_headers_from_system directory_out detail_out problem_out)
  unset(directory)
  find_path(directory onnxruntime_c_api.h PATH_SUFFIXES ${_ORT_AIE_SUFFIXES} NO_CACHE)
  if(NOT directory)
    set(${problem_out} "libonnxruntime-dev is not installed (there is no onnxruntime_c_api.h on \
CMake's search path)" PARENT_SCOPE)
    return()
  endif()
  _ort_aie_read_version("${directory}" api problem)
  set(${problem_out} "${problem}" PARENT_SCOPE)
  set(${directory_out} "${directory}" PARENT_SCOPE)
  set(${detail_out} "installed" PARENT_SCOPE)
endfunction()

function(_ort_aie_headers_from_apt directory_out detail_out problem_out)
  _ort_aie_cache_directory(cache)
  file(GLOB packages "${cache}/libonnxruntime-dev-*")
  _ort_aie_newest_below(directory ${packages})
  if(directory STREQUAL "")
    message(STATUS "ONNX Runtime headers: apt downloads libonnxruntime-dev into ${cache}")
    _ort_aie_apt_packages(packages problem "${cache}" "1.${_ORT_AIE_MINIMUM_API}"
                          libonnxruntime-dev)
    if(NOT problem STREQUAL "")
      set(${problem_out} "${problem}" PARENT_SCOPE)
      return()
    endif()
    _ort_aie_newest_below(directory "${packages}")
    if(directory STREQUAL "")
      set(${problem_out} "${packages} has no usable headers" PARENT_SCOPE)
      return()
    endif()
  endif()
  string(REGEX MATCH "libonnxruntime-dev-[^/]*" package "${directory}")
  set(${directory_out} "${directory}" PARENT_SCOPE)
  set(${detail_out} "${package}" PARENT_SCOPE)
endfunction()

function(_ort_aie_headers_from_archive directory_out detail_out problem_out)
  _ort_aie_setting(ORT_AIE_ONNXRUNTIME_ARCHIVE_URL url)
  _ort_aie_setting(ORT_AIE_ONNXRUNTIME_ARCHIVE_SHA256 sha256)
  string(TOLOWER "${sha256}" sha256)
  if(url STREQUAL "")
    set(url "${_ORT_AIE_ARCHIVE_URL}")
    if(sha256 STREQUAL "")
      set(sha256 "${_ORT_AIE_ARCHIVE_SHA256}")
    endif()
  endif()
  if(NOT sha256 MATCHES "^[0-9a-f]+$")
    set(${problem_out} "${url} is not downloaded without ORT_AIE_ONNXRUNTIME_ARCHIVE_SHA256"
        PARENT_SCOPE)
    return()
  endif()
  get_filename_component(name "${url}" NAME)
  string(SUBSTRING "${sha256}" 0 16 key)
  _ort_aie_cache_directory(cache)
  set(destination "${cache}/onnxruntime-archive-${key}")
  _ort_aie_newest_below(directory "${destination}")
  if(directory STREQUAL "")
    message(STATUS "ONNX Runtime headers: downloading ${url} into ${cache}")
    string(RANDOM LENGTH 12 work)
    set(work "${cache}/.archive-${work}")
    _ort_aie_unpack_archive("${url}" "${sha256}" "${work}" problem)
    if(problem STREQUAL "")
      # If two processes get here, the second finds the first one's directory, with the same content.
      file(RENAME "${work}/headers" "${destination}" RESULT problem)
      _ort_aie_newest_below(directory "${destination}")
    endif()
    file(REMOVE_RECURSE "${work}")
    if(directory STREQUAL "")
      set(${problem_out} "${problem}" PARENT_SCOPE)
      return()
    endif()
  endif()
  set(${directory_out} "${directory}" PARENT_SCOPE)
  set(${detail_out} "${name}" PARENT_SCOPE)
endfunction()

# Fills WORK/headers with the files beside and below the archive's onnxruntime_c_api.h.
function(_ort_aie_unpack_archive url sha256 work problem_out)
  execute_process(COMMAND "${CMAKE_COMMAND}" -E make_directory "${work}/tree" RESULT_VARIABLE failed
                  OUTPUT_QUIET ERROR_QUIET)
  if(failed)
    get_filename_component(cache "${work}" DIRECTORY)
    set(${problem_out} "cannot write to the cache directory ${cache}" PARENT_SCOPE)
    return()
  endif()
  # EXPECTED_HASH would end the configuration, and the caller has other remedies to name.
  file(DOWNLOAD "${url}" "${work}/archive" STATUS status INACTIVITY_TIMEOUT 30 TIMEOUT 600)
  list(GET status 0 failed)
  if(NOT failed EQUAL 0)
    list(GET status 1 reason)
    set(${problem_out} "cannot download ${url}: ${reason}" PARENT_SCOPE)
    return()
  endif()
  file(SHA256 "${work}/archive" actual)
  if(NOT actual STREQUAL sha256)
    set(${problem_out} "${url} has SHA256 ${actual}, not the expected ${sha256}" PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND "${CMAKE_COMMAND}" -E tar xf "${work}/archive"
                  WORKING_DIRECTORY "${work}/tree" RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
  _ort_aie_newest_below(directory "${work}/tree")
  if(failed OR directory STREQUAL "")
    set(${problem_out} "${url} is not an archive with ONNX Runtime headers of ORT_API_VERSION \
${_ORT_AIE_MINIMUM_API} or newer" PARENT_SCOPE)
    return()
  endif()
  file(COPY "${directory}/" DESTINATION "${work}/headers/include")
  file(GLOB_RECURSE licences "${work}/tree/LICENSE" "${work}/tree/ThirdPartyNotices.txt")
  file(COPY ${licences} DESTINATION "${work}/headers")
  set(${problem_out} "" PARENT_SCOPE)
endfunction()

# Defines OnnxRuntime::Headers and puts its name into TARGET_OUT. For reports on the build it also
# sets ORT_AIE_HEADERS_INCLUDE_DIR, ORT_AIE_HEADERS_API_VERSION, ORT_AIE_HEADERS_SOURCE
# (path, system, apt or archive) and ORT_AIE_HEADERS_DETAIL.
function(ort_aie_find_headers target_out)
  _ort_aie_setting(ORT_AIE_HEADERS_FROM from)
  set(ways path system apt archive)
  if(from IN_LIST ways)
    set(ways ${from})
  elseif(NOT from STREQUAL "" AND NOT from STREQUAL "auto")
    message(FATAL_ERROR "ORT_AIE_HEADERS_FROM is \"${from}\"; "
                        "it can be auto, path, system, apt or archive.")
  endif()

  set(tried "")
  foreach(way IN LISTS ways)
    set(directory "")
    set(problem "")
    cmake_language(CALL _ort_aie_headers_from_${way} directory detail problem)
    if(problem STREQUAL "")
      set(source ${way})
      break()
    endif()
    string(APPEND tried "\n    ${way}: ${problem}")
  endforeach()
  if(NOT problem STREQUAL "")
    message(
      FATAL_ERROR
        "There are no ONNX Runtime C headers (ORT_API_VERSION ${_ORT_AIE_MINIMUM_API} or newer). "
        "Tried:${tried}\n"
        "  Do one of these:\n"
        "    1. set ORT_AIE_ONNXRUNTIME_INCLUDE_DIR to the directory that has onnxruntime_c_api.h\n"
        "    2. install the package libonnxruntime-dev, 1.${_ORT_AIE_MINIMUM_API} or newer\n"
        "    3. give a release archive of ONNX Runtime: set ORT_AIE_ONNXRUNTIME_ARCHIVE_URL\n"
        "       (file:// works) and ORT_AIE_ONNXRUNTIME_ARCHIVE_SHA256\n"
        "  Each is a CMake variable or an environment variable.")
  endif()

  _ort_aie_read_version("${directory}" api problem)
  message(STATUS "ONNX Runtime headers: from ${source} (${detail}), "
                 "ORT_API_VERSION ${api}: ${directory}")
  if(NOT TARGET OnnxRuntime::Headers)
    # IMPORTED: consumers see a system include directory, free of their warning flags.
    add_library(OnnxRuntime::Headers INTERFACE IMPORTED GLOBAL)
    set_target_properties(OnnxRuntime::Headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES
                                                          "${directory}")
  endif()
  set(${target_out} OnnxRuntime::Headers PARENT_SCOPE)
  set(ORT_AIE_HEADERS_INCLUDE_DIR "${directory}" PARENT_SCOPE)
  set(ORT_AIE_HEADERS_API_VERSION "${api}" PARENT_SCOPE)
  set(ORT_AIE_HEADERS_SOURCE "${source}" PARENT_SCOPE)
  set(ORT_AIE_HEADERS_DETAIL "${detail}" PARENT_SCOPE)
endfunction()
