# The headers of nlohmann_json.
#
#   include(NlohmannJson)
#   ort_aie_find_nlohmann_json(directory)      # the folder with nlohmann/json.hpp
#
# From ORT_AIE_NLOHMANN_INCLUDE_DIR when it is given (a wrong one is an error), else the system's
# (nlohmann-json3-dev), else the Python package nlohmann_json, which a wheel build has.

include("${CMAKE_CURRENT_LIST_DIR}/Headers.cmake")

function(ort_aie_find_nlohmann_json directory_out)
  if(NOT ORT_AIE_NLOHMANN_INCLUDE_DIR)
    find_path(_ort_aie_nlohmann_system nlohmann/json.hpp)
    if(_ort_aie_nlohmann_system)
      set(ORT_AIE_NLOHMANN_INCLUDE_DIR "${_ort_aie_nlohmann_system}")
    else()
      find_package(Python REQUIRED COMPONENTS Interpreter)
      execute_process(
        COMMAND "${Python_EXECUTABLE}" -c "import nlohmann_json; print(nlohmann_json.get_include())"
        OUTPUT_VARIABLE ORT_AIE_NLOHMANN_INCLUDE_DIR OUTPUT_STRIP_TRAILING_WHITESPACE
        RESULT_VARIABLE failed ERROR_QUIET)
      if(failed)
        message(FATAL_ERROR "nlohmann/json.hpp was not found: install nlohmann-json3-dev, or the "
                            "Python package nlohmann_json for ${Python_EXECUTABLE}, or set "
                            "ORT_AIE_NLOHMANN_INCLUDE_DIR")
      endif()
      ort_aie_keep_headers("${ORT_AIE_NLOHMANN_INCLUDE_DIR}" nlohmann_json ORT_AIE_NLOHMANN_INCLUDE_DIR)
    endif()
  endif()
  if(NOT EXISTS "${ORT_AIE_NLOHMANN_INCLUDE_DIR}/nlohmann/json.hpp")
    message(FATAL_ERROR "ORT_AIE_NLOHMANN_INCLUDE_DIR is ${ORT_AIE_NLOHMANN_INCLUDE_DIR}, which has "
                        "no nlohmann/json.hpp")
  endif()
  set(${directory_out} "${ORT_AIE_NLOHMANN_INCLUDE_DIR}" PARENT_SCOPE)
endfunction()
