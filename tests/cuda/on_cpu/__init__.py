"""The CUDA kernels and the code that launches them, run on a CPU.

``emulator`` stands in for the GPU: the shipped kernels are compiled by the machine's C++ compiler,
with an ``intrinsics.h`` of its own. ``include`` stands in for MLX's CUDA headers, and ``csrc`` for
its encoder. ``operators()`` is the module of operators that results.
"""
