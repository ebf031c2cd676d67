# XRT: its headers, and libxrt_coreutil to link with. At run time only the machine with the NPU needs
# it. A build without it lacks the xrt target and is otherwise complete.
#
#   include(XrtHeaders)
#   ort_aie_find_xrt(target found)
#   if(found)
#     target_link_libraries(mine PRIVATE ${target})      # XRT::coreutil
#   endif()
#
# Headers.cmake says where it is looked for. Settings:
#
#   ORT_AIE_XRT_DIR    the folder that has include/xrt/xrt_device.h and lib/libxrt_coreutil.so
#   ORT_AIE_XRT_FROM   auto (default); path, system or apt, to look nowhere else and to fail if it is
#                      not there; or none

include("${CMAKE_CURRENT_LIST_DIR}/Headers.cmake")

# Sets `library` to the libxrt_coreutil that belongs to the headers in `directory`, or `problem`.
function(_ort_aie_find_xrt_library)
  # In the cache, that is the package of the same version.
  string(REGEX REPLACE "/libxrt-dev-([^/]*/usr/include)$" "/libxrt2-\\1" beside "${directory}")
  get_filename_component(prefix "${beside}" DIRECTORY)
  file(GLOB found "${prefix}/lib/libxrt_coreutil.so*" "${prefix}/lib64/libxrt_coreutil.so*"
       "${prefix}/lib/*/libxrt_coreutil.so*")
  set(problem "there is no libxrt_coreutil.so beside ${directory}")
  foreach(file IN LISTS found)
    # A dangling link does not exist: libxrt-dev without libxrt2 has one.
    if(EXISTS "${file}")
      set(library "${file}")
      set(problem "")
      break()
    endif()
  endforeach()
  return(PROPAGATE library problem)
endfunction()

# Sets FOUND_OUT, and if it is true defines XRT::coreutil and puts its name into TARGET_OUT. Also sets
# ORT_AIE_XRT_INCLUDE_DIR and ORT_AIE_XRT_LIBRARY.
function(ort_aie_find_xrt target_out found_out)
  _ort_aie_find("XRT"
    FROM ORT_AIE_XRT_FROM
    SETTING ORT_AIE_XRT_DIR
    HELP "the folder that has include/xrt/xrt_device.h and lib/libxrt_coreutil.so"
    WITHOUT "this build has no xrt target (no libort_aie_xrt.so)"
    PACKAGES libxrt-dev libxrt2
    OR_IN /opt/xilinx/xrt
    BELOW include
    HEADERS xrt/xrt_device.h xrt/xrt_kernel.h xrt/xrt_bo.h xrt/experimental/xrt_xclbin.h
            xrt/detail/version-slim.h
    MACRO XRT_VERSION_CODE
    DEFINED_IN xrt/detail/version-slim.h
    # The oldest version whose headers have every class with the signatures that are used.
    MINIMUM 2.25
    CHECK _ort_aie_find_xrt_library)
  if(NOT source)
    set(${found_out} FALSE PARENT_SCOPE)
    return()
  endif()
  _ort_aie_find_xrt_library()
  if(NOT TARGET XRT::coreutil)
    # IMPORTED: consumers see a system include directory, free of their warning flags. XRT of a newer
    # distribution needs a newer libc than this machine's, which the machine that runs the program
    # must have.
    add_library(XRT::coreutil SHARED IMPORTED GLOBAL)
    set_target_properties(XRT::coreutil PROPERTIES IMPORTED_LOCATION "${library}")
    target_include_directories(XRT::coreutil INTERFACE "${directory}")
    target_link_options(XRT::coreutil INTERFACE LINKER:--allow-shlib-undefined)
  endif()
  set(${target_out} XRT::coreutil PARENT_SCOPE)
  set(${found_out} TRUE PARENT_SCOPE)
  set(ORT_AIE_XRT_INCLUDE_DIR "${directory}" PARENT_SCOPE)
  set(ORT_AIE_XRT_LIBRARY "${library}" PARENT_SCOPE)
endfunction()
