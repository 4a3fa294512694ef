"""A pytest plugin: tests run on the extension in the directory POMONA_NATIVE_BUILD."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import mlx.core  # noqa: F401

(library,) = Path(os.environ["POMONA_NATIVE_BUILD"]).glob("_native.*.so")
spec = importlib.util.spec_from_file_location("backend_metal._native", library)
assert spec is not None
assert spec.loader is not None
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.modules["backend_metal._native"] = module
