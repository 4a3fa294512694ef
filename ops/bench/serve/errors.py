"""What ends a measurement."""


class LoadError(RuntimeError):
    """A load could not be measured: the server is not there, or not well, or asked too little."""
