"""What a device implements, and those that do it but for CUDA, which has a room of its own.

Start reading at ``base.py``. ``backend_metal.device`` chooses among them; kernels are held to MLX's
operators at start (``kernel_check.py``).
"""
