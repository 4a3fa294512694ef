"""What MSL forbids and clang's C++ for OpenCL would take."""

import re

from . import tokens


def check(source: str) -> None:
    """Raises CompileError where `source`, preprocessed, is no MSL."""
    _no_double(source)


def _no_double(source: str) -> None:
    match = re.search(r"\bdouble\b", source)
    if match:
        raise tokens.error(source, match.start(), "MSL has no double")
