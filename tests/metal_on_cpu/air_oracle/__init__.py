"""Runs kernels that Apple's compiler compiled, to hold the emulator to them.

MLX's macOS wheel carries its kernels twice: as sources, and compiled to AIR, which is LLVM's
bitcode (`metallib.py` takes one kernel out of `mlx.metallib`). `module.py` turns AIR into LLVM IR
for this machine: what a kernel's parameters are bound to stands in its metadata. `runtime.cpp` and
`matrices.py` define the operations that AIR leaves to the GPU, on the emulator's threadgroup
runtime, and `build.py` links it all to a library that the emulator's driver dispatches.

So the same kernel runs twice, once through the emulator's translation and standard library and
once as Apple's compiler understood it, and the outputs are compared bit for bit. What this cannot
show is what the GPU itself decides: the order of additions in `simd_sum` and in a matrix product,
and the last bits of `exp` and its like. Here both sides take the same.

The lane map of simdgroup matrices
----------------------------------
AIR passes an 8x8 matrix as `<64 x T>`, of which a lane's `thread_elements()` are the first two;
which two of the 64 those are is the GPU's. MLX's `gated_delta_fused_chunk` shows it: it loads
a matrix from memory with `simdgroup_load`, in the GPU's lane map, and multiplies it with matrices
that it fills element by element, and masks to triangles, by coordinates computed from the lane:

    row = (lane / 4 & 4) + lane / 2 % 4        column = (lane / 4 & 2) * 2 + lane % 2 * 2

and the column behind it. With any other map its result is wrong (`test_air_oracle.py`), and on GPUs
it is right: MLX's tests say so. The emulator's `simdgroup_matrix` has this map.
"""
