# Clang and lld with the SDK that sdk.py assembles, and otherwise the flags that CMake gives on a Mac.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(CMAKE_OSX_ARCHITECTURES arm64)
set(CMAKE_OSX_SYSROOT ${POMONA_MACOS_SDK})
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES POMONA_MACOS_SDK)

foreach(tool AR RANLIB INSTALL_NAME_TOOL)
  string(TOLOWER ${tool} name)
  string(REPLACE _ - name ${name})
  find_program(CMAKE_${tool} llvm-${name}-22 REQUIRED)
endforeach()
set(CMAKE_CXX_COMPILER clang++-22)
set(CMAKE_CXX_COMPILER_TARGET arm64-apple-macosx)
# What the oldest macOS does not have is an error. MLX's binaries do without sized deletes, so that
# the SDK does not know them.
set(CMAKE_CXX_FLAGS_INIT "-Werror=unguarded-availability -fno-sized-deallocation")
# Apple's linker chains fixups by default.
foreach(kind EXE SHARED MODULE)
  set(CMAKE_${kind}_LINKER_FLAGS_INIT "-fuse-ld=lld --ld-path=ld64.lld-22 -Wl,-fixup_chains")
endforeach()
