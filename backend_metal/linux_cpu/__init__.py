"""What only Linux CPUs use: a BLAS, and layers with kernels of their own."""
