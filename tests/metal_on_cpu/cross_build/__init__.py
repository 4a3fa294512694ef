"""The extension, built on Linux for the Macs that it ships to.

`sdk.py` assembles a small macOS SDK out of what PyPI has: MLX's macOS wheels (`mlx_wheels.py`) give
MLX's headers, its dylib, and the list of symbols that it takes from Apple's libraries; the package
`ziglang` gives libSystem, libc++'s headers and the C headers. `macos.cmake` hands that SDK to clang
and lld, and `native.py` runs the project's own `CMakeLists.txt` with it. `macho.py` then reads what
the result imports and from whom.

`machines.py` builds the parts of `csrc` that need neither MLX nor Python (CPU kernels and SGEMM)
as a program, `kernels/main.cpp`: for arm64 Linux, where qemu runs it, so that their NEON code
is executed before a Mac sees it, and for this machine under sanitizers.
"""
