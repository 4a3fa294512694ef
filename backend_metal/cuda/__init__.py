"""NVIDIA GPUs: kernels, their dispatch, CUDA graphs and products of matrices.

``device.py`` is what the rest of Pomona sees of it, through ``backend_metal.device``. Start reading
at ``README.md``.
"""
