# zig's clang, with musl's and libc++'s objects for a program that needs no library of the target.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES POMONA_ZIG)
set(CMAKE_CXX_COMPILER ${POMONA_ZIG} c++)
set(CMAKE_CXX_FLAGS_INIT "-target aarch64-linux-musl -Wno-psabi")
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
