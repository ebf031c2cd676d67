# A toolchain for 64-bit Windows: clang with MinGW-w64's headers and a static libc++, from PyPI's
# ziglang, on Linux and on Windows alike.
#
#   cmake -S . -B build/windows -G Ninja --toolchain cmake/windows-zig.cmake
#
# Not MinGW's GCC: it spills vectors of 32 and 64 bytes with aligned moves to stacks that it aligns to
# 16 bytes (GCC bug 54412).
#
# ORT_AIE_ZIG, a CMake variable, names the program zig; default: the one of the Python package ziglang.

set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR AMD64)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ORT_AIE_ZIG)

if(NOT ORT_AIE_ZIG)
  find_program(_ort_aie_python NAMES python3 python REQUIRED NO_CACHE)
  execute_process(
    COMMAND "${_ort_aie_python}" -c "import pathlib, ziglang; print((pathlib.Path(ziglang.__file__).parent / 'zig').as_posix())"
    OUTPUT_VARIABLE ORT_AIE_ZIG OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()

set(CMAKE_CXX_COMPILER "${ORT_AIE_ZIG}" c++ -target x86_64-windows-gnu)
# Rules, because CMake takes a program for these, not a program and a word.
set(CMAKE_CXX_ARCHIVE_CREATE "\"${ORT_AIE_ZIG}\" ar qcs <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_APPEND "\"${ORT_AIE_ZIG}\" ar qs <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_FINISH "")
# There are no resources.
set(CMAKE_RC_COMPILER "${ORT_AIE_ZIG}")

set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
