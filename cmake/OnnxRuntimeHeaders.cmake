# ONNX Runtime's C headers, which are on no Python registry.
#
#   include(OnnxRuntimeHeaders)
#   ort_aie_find_headers(target)
#   target_link_libraries(mine PRIVATE ${target})      # OnnxRuntime::Headers
#
# Headers.cmake says where they are looked for. Settings:
#
#   ORT_AIE_ONNXRUNTIME_INCLUDE_DIR   the folder that has onnxruntime_c_api.h
#   ORT_AIE_HEADERS_FROM              auto (default), or path, system or apt to look nowhere else

include("${CMAKE_CURRENT_LIST_DIR}/Headers.cmake")

# Defines OnnxRuntime::Headers and puts its name into TARGET_OUT. Also sets ORT_AIE_HEADERS_API_VERSION
# and ORT_AIE_HEADERS_SOURCE (path, system or apt).
function(ort_aie_find_headers target_out)
  # ORT_API_VERSION n belongs to ONNX Runtime 1.n; 1.23 is the oldest the library supports. Newer
  # headers only append to its structs.
  _ort_aie_find("ONNX Runtime headers"
    FROM ORT_AIE_HEADERS_FROM
    SETTING ORT_AIE_ONNXRUNTIME_INCLUDE_DIR
    HELP "the folder that has onnxruntime_c_api.h, such as include in an unpacked release archive"
    PACKAGES libonnxruntime-dev
    # The layouts of the package, of an installed build tree, and of a release archive.
    BELOW onnxruntime onnxruntime/core/session include include/onnxruntime
          include/onnxruntime/core/session
    HEADERS onnxruntime_c_api.h onnxruntime_ep_c_api.h onnxruntime_session_options_config_keys.h
    MACRO ORT_API_VERSION
    DEFINED_IN onnxruntime_c_api.h
    MINIMUM 23)
  if(NOT TARGET OnnxRuntime::Headers)
    # IMPORTED: consumers see a system include directory, free of their warning flags.
    add_library(OnnxRuntime::Headers INTERFACE IMPORTED GLOBAL)
    target_include_directories(OnnxRuntime::Headers INTERFACE "${directory}")
  endif()
  set(${target_out} OnnxRuntime::Headers PARENT_SCOPE)
  set(ORT_AIE_HEADERS_API_VERSION "${version}" PARENT_SCOPE)
  set(ORT_AIE_HEADERS_SOURCE "${source}" PARENT_SCOPE)
endfunction()
