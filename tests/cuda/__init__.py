"""The room of CUDA: its Python, its kernels on an emulator (``on_cpu``) and on a GPU."""
