"""What can go wrong with a kernel."""


class ToolMissingError(Exception):
    """A program that the emulator needs is not installed; the message names the package."""


class CompileError(Exception):
    """The source is not valid MSL. The message starts with file and line where they are known."""


class KernelError(Exception):
    """A dispatch was refused, or a kernel did what a GPU leaves undefined.

    The message names the kernel and, once it ran, threadgroup, thread and source line.
    """
