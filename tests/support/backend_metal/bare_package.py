"""A start of programs that need one module: ``backend_metal`` without the engine.

The package itself imports mlx-lm and transformers, which takes seconds.
"""

from pathlib import Path

BARE_PACKAGE = f"""
import sys, types
sys.modules["backend_metal"] = types.ModuleType("backend_metal")
sys.modules["backend_metal"].__path__ = [{str(Path(__file__).parents[3] / "backend_metal")!r}]
"""
