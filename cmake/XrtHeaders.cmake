# XRT: its headers, and libxrt_coreutil to link with. At run time only the machine with the NPU needs
# it. A build without it lacks the xrt target and is otherwise complete.
#
#   include(XrtHeaders)
#   ort_aie_find_xrt(target found)
#   if(found)
#     target_link_libraries(mine PRIVATE ${target})      # XRT::coreutil
#   endif()
#
# Three ways, in this order. The first that works wins, and a STATUS line says which, or why none
# did:
#
#   path     ORT_AIE_XRT_DIR, a prefix: include/xrt/xrt_device.h and lib/libxrt_coreutil.so
#   system   an installed libxrt-dev, or AMD's own in /opt/xilinx/xrt
#   apt      libxrt-dev and libxrt2, downloaded and unpacked without root by apt (apt_headers.sh)
#
# Settings, each a CMake variable or an environment variable (the CMake variable wins):
#
#   ORT_AIE_XRT_FROM     auto (default), one of the three to try no other and to fail if it does not
#                        work, or none
#   ORT_AIE_XRT_DIR      for "path"; a wrong one is an error, never passed over
#   ORT_AIE_CACHE_DIR    where downloads are kept (Downloads.cmake)

include("${CMAKE_CURRENT_LIST_DIR}/Downloads.cmake")

# The oldest version whose headers have every class with the signatures that are used.
set(_ORT_AIE_MINIMUM_XRT 2.25)

# Debian's packages of it have an epoch.
set(_ORT_AIE_MINIMUM_XRT_PACKAGE "1:${_ORT_AIE_MINIMUM_XRT}")

# Version of the XRT whose headers are in INCLUDE and whose library is LIBRARY, or what is wrong with
# them.
function(_ort_aie_read_xrt include library version_out problem_out)
  set(${version_out} "" PARENT_SCOPE)
  foreach(header xrt_device.h xrt_kernel.h xrt_bo.h experimental/xrt_xclbin.h
                 detail/version-slim.h)
    if(NOT EXISTS "${include}/xrt/${header}")
      set(${problem_out} "${include} has no xrt/${header}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  file(STRINGS "${include}/xrt/detail/version-slim.h" line LIMIT_COUNT 1
       REGEX "^#define[ \t]+XRT_VERSION_CODE[ \t]")
  if(NOT line MATCHES "XRT_VERSION\\(([0-9]+), *([0-9]+)\\)")
    set(${problem_out} "${include}/xrt/detail/version-slim.h defines no XRT_VERSION_CODE"
        PARENT_SCOPE)
    return()
  endif()
  set(version "${CMAKE_MATCH_1}.${CMAKE_MATCH_2}")
  if(version VERSION_LESS _ORT_AIE_MINIMUM_XRT)
    set(${problem_out} "${include} has XRT ${version}, and ${_ORT_AIE_MINIMUM_XRT} is the oldest \
that will do" PARENT_SCOPE)
    return()
  endif()
  # A dangling link does not exist: libxrt-dev without libxrt2 has one.
  if(NOT EXISTS "${library}")
    set(${problem_out} "there is no libxrt_coreutil.so beside ${include}" PARENT_SCOPE)
    return()
  endif()
  set(${version_out} "${version}" PARENT_SCOPE)
  set(${problem_out} "" PARENT_SCOPE)
endfunction()

# The libxrt_coreutil of a prefix, empty when it has none.
function(_ort_aie_xrt_library library_out prefix)
  file(GLOB found "${prefix}/lib/libxrt_coreutil.so*" "${prefix}/lib64/libxrt_coreutil.so*"
       "${prefix}/lib/*/libxrt_coreutil.so*")
  set(library "")
  foreach(file IN LISTS found)
    if(EXISTS "${file}")
      set(library "${file}")
      break()
    endif()
  endforeach()
  set(${library_out} "${library}" PARENT_SCOPE)
endfunction()

# Each way below sets the include directory, the library and a description, or a problem.

function(_ort_aie_xrt_from_path include_out library_out detail_out problem_out)
  _ort_aie_setting(ORT_AIE_XRT_DIR given)
  if(given STREQUAL "")
    set(${problem_out} "ORT_AIE_XRT_DIR is not set" PARENT_SCOPE)
    return()
  endif()
  get_filename_component(prefix "${given}" ABSOLUTE BASE_DIR "${CMAKE_SOURCE_DIR}")
  _ort_aie_xrt_library(library "${prefix}")
  _ort_aie_read_xrt("${prefix}/include" "${library}" version problem)
  if(NOT problem STREQUAL "")
    message(FATAL_ERROR "ORT_AIE_XRT_DIR is \"${given}\", but ${problem}.\n  Give the directory "
                        "that has include/xrt/xrt_device.h and lib/libxrt_coreutil.so, or unset "
                        "the variable.")
  endif()
  set(${include_out} "${prefix}/include" PARENT_SCOPE)
  set(${library_out} "${library}" PARENT_SCOPE)
  set(${detail_out} "ORT_AIE_XRT_DIR" PARENT_SCOPE)
endfunction()

function(_ort_aie_xrt_from_system include_out library_out detail_out problem_out)
  unset(include)
  unset(library)
  find_path(include xrt/xrt_device.h PATHS /opt/xilinx/xrt/include NO_CACHE)
  find_library(library xrt_coreutil PATHS /opt/xilinx/xrt/lib NO_CACHE)
  if(NOT include)
    set(${problem_out} "libxrt-dev is not installed (there is no xrt/xrt_device.h on CMake's search \
path)" PARENT_SCOPE)
    return()
  endif()
  _ort_aie_read_xrt("${include}" "${library}" version problem)
  set(${problem_out} "${problem}" PARENT_SCOPE)
  set(${include_out} "${include}" PARENT_SCOPE)
  set(${library_out} "${library}" PARENT_SCOPE)
  set(${detail_out} "installed" PARENT_SCOPE)
endfunction()

# The newest usable pair of unpacked packages among the directories ARGN; a problem when there is
# none.
function(_ort_aie_newest_xrt include_out library_out package_out problem_out)
  set(best 0)
  set(problem "no libxrt-dev is unpacked")
  foreach(headers IN LISTS ARGN)
    if(NOT headers MATCHES "/(libxrt-dev-([^/]*))$")
      continue()
    endif()
    set(package "${CMAKE_MATCH_1}")
    # Of the same version: it is the library of these headers.
    string(REGEX REPLACE "/libxrt-dev-([^/]*)$" "/libxrt2-\\1" libraries "${headers}")
    _ort_aie_xrt_library(library "${libraries}/usr")
    _ort_aie_read_xrt("${headers}/usr/include" "${library}" version found_problem)
    if(NOT found_problem STREQUAL "")
      set(problem "${found_problem}")
    elseif(version VERSION_GREATER best)
      set(best "${version}")
      set(${include_out} "${headers}/usr/include" PARENT_SCOPE)
      set(${library_out} "${library}" PARENT_SCOPE)
      set(${package_out} "${package}" PARENT_SCOPE)
    endif()
  endforeach()
  if(NOT best STREQUAL "0")
    set(problem "")
  endif()
  set(${problem_out} "${problem}" PARENT_SCOPE)
endfunction()

function(_ort_aie_xrt_from_apt include_out library_out detail_out problem_out)
  _ort_aie_cache_directory(cache)
  file(GLOB packages "${cache}/libxrt-dev-*")
  _ort_aie_newest_xrt(include library package problem ${packages})
  if(NOT problem STREQUAL "")
    message(STATUS "XRT: apt downloads libxrt-dev and libxrt2 into ${cache}")
    _ort_aie_apt_packages(packages problem "${cache}" "${_ORT_AIE_MINIMUM_XRT_PACKAGE}" libxrt-dev
                          libxrt2)
    if(problem STREQUAL "")
      _ort_aie_newest_xrt(include library package problem ${packages})
    endif()
  endif()
  set(${problem_out} "${problem}" PARENT_SCOPE)
  set(${include_out} "${include}" PARENT_SCOPE)
  set(${library_out} "${library}" PARENT_SCOPE)
  set(${detail_out} "${package}" PARENT_SCOPE)
endfunction()

# Sets FOUND_OUT, and if it is true defines XRT::coreutil and puts its name into TARGET_OUT. For
# reports on the build it also sets ORT_AIE_XRT_INCLUDE_DIR, ORT_AIE_XRT_LIBRARY,
# ORT_AIE_XRT_VERSION and ORT_AIE_XRT_SOURCE (path, system, apt or none).
function(ort_aie_find_xrt target_out found_out)
  _ort_aie_setting(ORT_AIE_XRT_FROM from)
  set(ways path system apt)
  set(forced FALSE)
  if(from IN_LIST ways)
    set(ways ${from})
    set(forced TRUE)
  elseif(from STREQUAL "none")
    set(ways "")
  elseif(NOT from STREQUAL "" AND NOT from STREQUAL "auto")
    message(FATAL_ERROR "ORT_AIE_XRT_FROM is \"${from}\"; "
                        "it can be auto, path, system, apt or none.")
  endif()

  set(source none)
  set(tried "")
  foreach(way IN LISTS ways)
    set(problem "")
    cmake_language(CALL _ort_aie_xrt_from_${way} include library detail problem)
    if(problem STREQUAL "")
      set(source ${way})
      break()
    endif()
    string(APPEND tried "\n    ${way}: ${problem}")
  endforeach()
  if(tried STREQUAL "")
    set(tried " ORT_AIE_XRT_FROM is none")
  endif()

  set(${target_out} "" PARENT_SCOPE)
  set(${found_out} FALSE PARENT_SCOPE)
  set(ORT_AIE_XRT_SOURCE "${source}" PARENT_SCOPE)
  if(source STREQUAL "none")
    if(forced)
      message(FATAL_ERROR "There is no XRT ${_ORT_AIE_MINIMUM_XRT} or newer. Tried:${tried}")
    endif()
    message(STATUS "XRT: none, so this build has no xrt target (no libort_aie_xrt.so):${tried}")
    return()
  endif()

  _ort_aie_read_xrt("${include}" "${library}" version problem)
  message(STATUS "XRT: from ${source} (${detail}), version ${version}: ${include}")
  if(NOT TARGET XRT::coreutil)
    # IMPORTED: consumers see a system include directory, free of their warning flags.
    add_library(XRT::coreutil SHARED IMPORTED GLOBAL)
    # XRT of a newer distribution needs a newer libc than this machine's, which the machine that runs
    # the program must have. A consumer's own use of XRT is checked here: 2.25's headers declare
    # functions that its library lacks (run::aie_error::data), and a library that needs one would
    # link but never load. The sanitizers' runtimes come from the program, so that build is exempt.
    set(all_defined LINKER:-z,defs)
    if(ORT_AIE_SANITIZE)
      set(all_defined "")
    endif()
    set_target_properties(XRT::coreutil PROPERTIES
      IMPORTED_LOCATION "${library}"
      INTERFACE_INCLUDE_DIRECTORIES "${include}"
      INTERFACE_LINK_OPTIONS
        "LINKER:--allow-shlib-undefined;${all_defined}")
  endif()
  set(${target_out} XRT::coreutil PARENT_SCOPE)
  set(${found_out} TRUE PARENT_SCOPE)
  set(ORT_AIE_XRT_INCLUDE_DIR "${include}" PARENT_SCOPE)
  set(ORT_AIE_XRT_LIBRARY "${library}" PARENT_SCOPE)
  set(ORT_AIE_XRT_VERSION "${version}" PARENT_SCOPE)
endfunction()
