"""The Metal kernels and their dispatch code, proved on a machine without a GPU.

``emulator/`` compiles the shipped ``.metal`` files for the CPU and runs them as Metal would;
``host/`` is a stand-in for MLX's Metal device, with which the shipped ``eval_gpu`` drives them.
``operators.py`` is the way in: the attention operators on arrays, and what the latest launch did.
``air_oracle/`` holds the emulator itself to kernels that Apple's compiler built, and
``cross_build/`` compiles the whole extension for macOS.
"""
