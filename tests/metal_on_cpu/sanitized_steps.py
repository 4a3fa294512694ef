"""Runs steps of `injection.STEPS` with kernels built for ThreadSanitizer.

`python -m tests.metal_on_cpu.sanitized_steps FOLDER STEP...` with shaders from FOLDER. Only in a
process that has loaded the sanitizer's runtime: see `emulator.races.run_sanitized`. What a race
makes of a step's numbers is not looked at.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

# Before anything imports mlx.core, so that MLX finds the BLAS.
import backend_metal  # noqa: F401
from tests.metal_on_cpu import host
from tests.metal_on_cpu.emulator import compile_source
from tests.metal_on_cpu.emulator.races import compile_unsanitized
from tests.metal_on_cpu.injection import STEPS


def main(folder: str, *steps: str) -> None:
    compile_unsanitized()
    host.extension().set_compiler(
        lambda source, track_loads: str(compile_source(source, sanitizer="thread").path)
    )
    # Buffers in place: ThreadSanitizer would take those who copy them for their writers.
    with host.shaders(Path(folder)), host.execution(workers=1, max_guarded_bytes=0):
        for step in steps:
            with suppress(AssertionError):
                STEPS[step]()


if __name__ == "__main__":
    main(*sys.argv[1:])
