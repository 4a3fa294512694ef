"""The ``Device`` interface (``base.py``) and its implementations for Metal, the CPU and plain MLX.

``backend_metal.device`` is the registry. ``kernel_check.py`` checks kernels against MLX's operators
at start. CUDA's implementation is in ``backend_metal.cuda``.
"""
