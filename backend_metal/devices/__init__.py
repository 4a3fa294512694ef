"""What a device implements: the signatures of its kernels, and how they are checked at start.

``base.py`` has the attention path, which brings the others. Implementations stand elsewhere, and
``backend_metal.gpu`` chooses among those for GPUs.
"""
