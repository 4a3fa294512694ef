"""Gives MLX a fast BLAS on Linux, where its wheel carries the reference one.

MLX takes ``cblas_sgemm``, ``cblas_dgemm`` and ``cblas_cgemm`` from a BLAS; ``libpomona_blas``
defines the three. The loader binds them when ``mlx.core`` is loaded, so this module, which installs
the library when it is imported, comes first in ``backend_metal``. float32 products run on kernels
whose rows do not depend on the batch (``csrc/cpu/gemm/gemm.h``), the others on OpenBLAS, which
``scipy-openblas32`` brings.

====================== =========================================================================
``POMONA_BLAS``        ``on`` (default), ``openblas`` (float32 too), or ``off``: MLX's own
``POMONA_BLAS_THREADS`` threads of one product; ``POMONA_CPU_THREADS``, else all cores, by default
====================== =========================================================================
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

LIBRARY = Path(__file__).parents[2] / "libpomona_blas.so"
OPENBLAS = "scipy_openblas32"
MODES = ("on", "openblas", "off")
CPU_TOPOLOGY = Path("/sys/devices/system/cpu")
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")

_library: ctypes.CDLL | None = None


def install() -> None:
    """Load the library for MLX to find; once. Nothing to do off Linux and beside CUDA's MLX.

    Raises ``ValueError`` naming an environment variable with a bad value. Warns when it comes too
    late or has nothing to load.
    """
    global _library
    mode = _mode()
    if _library is not None or mode == "off" or not sys.platform.startswith("linux") or _cuda():
        return
    threads = _num_threads()
    preloaded = _preloaded()
    if not preloaded and (problem := _problem()):
        # The frame of whoever imports backend_metal, past this module and that package.
        warnings.warn(problem, RuntimeWarning, stacklevel=4)
        return
    # Its import makes OpenBLAS global; the library has nothing else to resolve its symbols from.
    importlib.import_module(OPENBLAS)
    library = ctypes.CDLL(None if preloaded else str(LIBRARY), mode=ctypes.RTLD_GLOBAL)
    library.pomona_blas_kernel.restype = ctypes.c_char_p
    library.pomona_blas_calls.restype = ctypes.c_long
    library.pomona_blas_forward_sgemm(mode == "openblas")
    _library = library
    set_num_threads(threads)


def preload() -> str:
    """What ``LD_PRELOAD`` has to say for programs that use MLX without this package."""
    spec = find_spec(OPENBLAS)
    assert spec is not None
    assert spec.origin is not None
    return f"{Path(spec.origin).parent / 'lib' / 'libscipy_openblas.so'} {LIBRARY}"


def blas_in_use() -> str | None:
    """What multiplies float32 matrices for MLX, tried out: None is MLX's own BLAS."""
    import mlx.core as mx

    if _library is None:
        return None
    before = _library.pomona_blas_calls()
    with mx.stream(mx.cpu):
        mx.eval(mx.ones((2, 2)) @ mx.ones((2, 2)))
    if _library.pomona_blas_calls() == before:
        return None
    kernel = _library.pomona_blas_kernel().decode()
    config = importlib.import_module(OPENBLAS).get_openblas_config()
    return f"{kernel}, {num_threads()} threads; {config}"


def multiplies_rows_alike() -> bool:
    """Whether a row of a float32 product has the same bits however many rows there are."""
    blas = blas_in_use()
    return blas is not None and not blas.startswith("openblas")


def num_threads() -> int:
    """Threads that share one product; 0 is MLX's own BLAS, which has none."""
    return 0 if _library is None else int(_library.pomona_blas_num_threads())


def set_num_threads(count: int) -> None:
    """From the next product on. Without effect on MLX's own BLAS."""
    if _library is not None:
        _library.pomona_blas_set_num_threads(count)


def physical_cores() -> int:
    """Cores that this process may run on, hardware threads of one core counted once."""
    allowed = os.sched_getaffinity(0)
    siblings = set()
    for cpu in allowed:
        topology = CPU_TOPOLOGY / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        siblings.add(topology.read_text() if topology.exists() else cpu)
    return min(len(siblings), _quota())


def _quota() -> int:
    """CPUs that the process's control group may use at once."""
    if not CPU_QUOTA.exists():
        return sys.maxsize
    quota, period = CPU_QUOTA.read_text().split()
    return sys.maxsize if quota == "max" else max(1, int(quota) // int(period))


def _preloaded() -> bool:
    return hasattr(ctypes.CDLL(None), "pomona_blas_calls")


def _problem() -> str | None:
    reference = "so MLX multiplies matrices with the reference BLAS, tens of times slower"
    if not LIBRARY.exists():
        return f"{LIBRARY} is not built, {reference}; build it with `make setup`"
    if "mlx.core" in sys.modules:
        return (
            f"mlx.core was imported before backend_metal, {reference}; import backend_metal first "
            f"or set LD_PRELOAD='{preload()}'"
        )
    return None


def _mode() -> str:
    mode = os.environ.get("POMONA_BLAS", "on")
    if mode not in MODES:
        raise ValueError(f"POMONA_BLAS must be one of {MODES}, not {mode!r}")
    return mode


def _num_threads() -> int:
    for name in ("POMONA_BLAS_THREADS", "POMONA_CPU_THREADS"):
        text = os.environ.get(name)
        if text:
            if not text.isdecimal() or int(text) < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {text!r}")
            return int(text)
    return physical_cores()


def _cuda() -> bool:
    spec = find_spec("mlx")
    places = [] if spec is None else spec.submodule_search_locations or []
    return any(list(Path(place).parent.glob("mlx_cuda*.dist-info")) for place in places)


install()
