from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from backend_metal.devices.cpu import blas
from backend_metal.devices.cpu.blas import LIBRARY, blas_in_use
from tests.support.backend_metal.bare_package import BARE_PACKAGE

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or mx.cuda.is_available(),
    reason="MLX has a BLAS of its own here",
)

Floats = npt.NDArray[np.float32]
# Around register tiles (8 columns, 16 rows), strips of 48 rows, passes of 384, depths of 512.
ROWS = (1, 2, 15, 16, 17, 33, 48, 65, 383, 385)
PRODUCTS = ((1, 1), (5, 3), (64, 64), (511, 9), (513, 77), (1200, 130))


@pytest.fixture
def threads() -> object:
    before = blas.num_threads()
    yield
    blas.set_num_threads(before)


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("POMONA_", "LD_PRELOAD"))}
    return subprocess.run(
        [sys.executable, "-W", "always", "-c", code],
        env={**clean, "PYTHONPATH": str(ROOT), **environment},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
    )


def random(shape: tuple[int, ...], seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def transposed(x: Floats) -> mx.array:
    """The same matrix, its columns contiguous."""
    return mx.array(np.ascontiguousarray(x.T)).T


@pytest.mark.parametrize(("depth", "columns"), PRODUCTS)
def test_rows_do_not_depend_on_their_company_or_the_threads(
    depth: int, columns: int, threads: object
) -> None:
    a, b = random((500, depth), 0), random((depth, columns), 1)
    whole = np.array(mx.array(a) @ mx.array(b))
    exact = a.astype(np.float64) @ b
    assert np.sqrt(np.mean((whole - exact) ** 2) / np.mean(exact**2)) < 2e-6
    for count, num_threads in product(ROWS, (1, 3)):
        blas.set_num_threads(num_threads)
        for left, right in product((mx.array, transposed), repeat=2):
            rows = np.array(left(a[:count]) @ right(b))
            assert np.array_equal(rows, whole[:count]), (count, num_threads)
    last = np.array(mx.array(a[-7:]) @ mx.array(b))
    assert np.array_equal(last, whole[-7:])


@pytest.fixture
def kernel() -> Iterator[Callable[[str], None]]:
    """Takes a kernel by name for one test."""
    library = blas._library
    assert library is not None
    before = library.pomona_blas_kernel()

    def choose(name: str) -> None:
        if not library.pomona_blas_set_kernel(name.encode()):
            pytest.skip(f"this processor has no {name}")
        assert library.pomona_blas_kernel() == name.encode()

    yield choose
    library.pomona_blas_set_kernel(before)


@pytest.mark.parametrize("name", ["avx2", "avx512", "neon"])
@pytest.mark.parametrize(("depth", "columns"), PRODUCTS)
def test_every_kernel_leaves_the_same_bits(
    name: str, depth: int, columns: int, kernel: Callable[[str], None]
) -> None:
    a, b = random((500, depth), 0), random((depth, columns), 1)
    best = np.array(mx.array(a) @ mx.array(b))
    kernel(name)
    whole = np.array(mx.array(a) @ mx.array(b))
    assert np.array_equal(whole, best)
    exact = a.astype(np.float64) @ b
    assert np.sqrt(np.mean((whole - exact) ** 2) / np.mean(exact**2)) < 2e-6
    for count in ROWS:
        for left, right in product((mx.array, transposed), repeat=2):
            assert np.array_equal(np.array(left(a[:count]) @ right(b)), whole[:count]), count


def test_a_kernel_that_is_not_there_is_not_taken() -> None:
    library = blas._library
    assert library is not None
    before = library.pomona_blas_kernel()
    assert not library.pomona_blas_set_kernel(b"sse9")
    assert library.pomona_blas_kernel() == before


def test_columns_do_not_depend_on_their_company() -> None:
    a, b = random((20, 700), 0), random((700, 300), 1)
    whole = np.array(mx.array(a) @ mx.array(b))
    for columns in (1, 7, 8, 64, 65, 299):
        assert np.array_equal(np.array(mx.array(a) @ mx.array(b[:, :columns])), whole[:, :columns])


def test_sums_products_and_scales() -> None:
    a, b, c = random((70, 600), 0), random((600, 90), 1), random((70, 90), 2)
    arrays = [mx.array(x) for x in (c, a, b)]
    for alpha, beta in ((1.0, 1.0), (0.5, 1.0), (2.0, -0.25), (1.0, 0.0)):
        expected = alpha * (a.astype(np.float64) @ b) + beta * c
        out = np.array(mx.addmm(*arrays, alpha=alpha, beta=beta))
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


def test_batches_and_strides() -> None:
    a, b = random((3, 2, 30, 40), 0), random((3, 2, 40, 50), 1)
    expected = a.astype(np.float64) @ b
    out = np.array(mx.array(a) @ mx.array(b))
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
    wide = mx.array(random((40, 100), 2))
    halves = np.array(mx.array(a[0, 0]) @ wide[:, 50:])
    np.testing.assert_allclose(halves, a[0, 0] @ np.array(wide)[:, 50:], rtol=1e-4, atol=1e-4)


def test_what_is_not_a_number_stays_in_its_row() -> None:
    a, b = random((20, 100), 0), random((100, 30), 1)
    a[3, 5], a[4, 6] = np.nan, np.inf
    out = np.array(mx.array(a) @ mx.array(b))
    assert np.isnan(out[3]).all()
    assert np.isinf(out[4]).all()
    assert np.isfinite(np.delete(out, (3, 4), axis=0)).all()


def test_doubles_and_complex_numbers_go_to_openblas() -> None:
    a, b = random((33, 65), 0), random((65, 17), 1)
    with mx.stream(mx.cpu):
        doubles = [mx.array(x, mx.float64) for x in (a, b)]
        out = np.array(doubles[0] @ doubles[1])
        np.testing.assert_allclose(out, a.astype(np.float64) @ b, rtol=1e-12, atol=1e-12)
        complexes = [mx.array(x) * mx.array(1 + 2j) for x in (a, b)]
        out = np.array(complexes[0] @ complexes[1])
    np.testing.assert_allclose(out, (1 + 2j) ** 2 * (a @ b), rtol=1e-4, atol=1e-3)


def test_products_from_several_threads_at_once() -> None:
    code = """
import backend_metal.devices.cpu.blas
import mlx.core as mx, numpy as np, threading
a = np.random.default_rng(0).standard_normal((64, 768), np.float32)
b = np.random.default_rng(1).standard_normal((768, 1024), np.float32)
def product(stream):
    with mx.stream(stream):
        return np.array(mx.array(a) @ mx.array(b))
expected, wrong = product(mx.new_stream(mx.cpu)), []
def work():
    stream = mx.new_stream(mx.cpu)
    wrong.extend(1 for _ in range(50) if not np.array_equal(product(stream), expected))
workers = [threading.Thread(target=work) for _ in range(4)]
[worker.start() for worker in workers]
[worker.join() for worker in workers]
assert not wrong
"""
    finished = run(BARE_PACKAGE + code, POMONA_BLAS_THREADS="3")
    assert finished.returncode == 0, finished.stderr


def test_a_forked_child_has_threads_again() -> None:
    code = """
from backend_metal.devices.cpu.blas import LIBRARY
import mlx.core as mx, ctypes, os
x = (ctypes.c_float * (600 * 600))(*[1.0] * (600 * 600))
y = (ctypes.c_float * (600 * 600))()
def product():
    ctypes.CDLL(str(LIBRARY)).cblas_sgemm(
        101, 111, 112, 600, 600, 600, ctypes.c_float(1), x, 600, x, 600, ctypes.c_float(0), y, 600
    )
    return y[0]
assert product() == 600
child = os.fork()
if child == 0:
    os._exit(0 if product() == 600 else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    finished = run(BARE_PACKAGE + code, POMONA_BLAS_THREADS="3")
    assert finished.returncode == 0, finished.stderr


def test_mlx_uses_it_here() -> None:
    used = blas_in_use()
    assert used is not None
    assert "OpenBLAS" in used
    assert f"{blas.num_threads()} threads" in used


USED = f"{BARE_PACKAGE}from backend_metal.devices.cpu import blas; print(blas.blas_in_use())"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"POMONA_BLAS_THREADS": "3"}, ", 3 threads; OpenBLAS"),
        ({"POMONA_CPU_THREADS": "5"}, ", 5 threads; OpenBLAS"),
        ({"POMONA_BLAS": "openblas"}, "openblas, "),
        ({"POMONA_BLAS": "off"}, "None"),
    ],
)
def test_the_environment_decides(environment: dict[str, str], expected: str) -> None:
    finished = run(USED, **environment)
    assert expected in finished.stdout
    assert "Warning" not in finished.stderr


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("POMONA_BLAS", "mkl", "one of ('on', 'openblas', 'off')"),
        ("POMONA_BLAS_THREADS", "0", "a whole number of at least 1"),
        ("POMONA_CPU_THREADS", "two", "a whole number of at least 1"),
    ],
)
def test_bad_values_are_named(name: str, value: str, allowed: str) -> None:
    finished = run(USED, **{name: value})
    assert finished.returncode != 0
    assert f"ValueError: {name} must be {allowed}, not {value!r}" in finished.stderr


def test_coming_after_mlx_warns_once_with_the_remedy_that_works() -> None:
    late = (
        "import mlx.core\nimport backend_metal, backend_metal.devices.cpu.blas\n"
        "print(backend_metal.blas_in_use())"
    )
    finished = run(late)
    assert finished.stdout.strip() == "None"
    assert finished.stderr.count("RuntimeWarning") == 1
    assert "<string>:2: RuntimeWarning: mlx.core was imported before" in finished.stderr
    remedy = finished.stderr.split("LD_PRELOAD='")[1].split("'")[0]
    again = run(late, LD_PRELOAD=remedy)
    assert "OpenBLAS" in again.stdout
    assert "Warning" not in again.stderr


def test_a_library_that_is_not_built_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "_library", None)
    monkeypatch.setattr(blas, "_preloaded", lambda: False)
    monkeypatch.setattr(blas, "LIBRARY", LIBRARY.with_name("missing.so"))
    with pytest.warns(RuntimeWarning, match=r"missing\.so is not built"):
        blas.install()


@pytest.mark.parametrize("reason", ["macOS", "CUDA"])
def test_elsewhere_nothing_happens(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "_library", None)
    if reason == "macOS":
        monkeypatch.setattr(blas.sys, "platform", "darwin")
    else:
        monkeypatch.setattr(blas, "_cuda", lambda: True)
    blas.install()
    assert blas._library is None


def test_cores_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 6})
    monkeypatch.setattr(blas, "CPU_TOPOLOGY", tmp_path)
    monkeypatch.setattr(blas, "CPU_QUOTA", tmp_path / "cpu.max")
    for cpu, siblings in enumerate(("0,4", "1,5", "0,4", "3")):
        directory = tmp_path / f"cpu{cpu}" / "topology"
        directory.mkdir(parents=True)
        (directory / "thread_siblings_list").write_text(siblings)
    assert blas.physical_cores() == 4
    (tmp_path / "cpu.max").write_text("250000 100000\n")
    assert blas.physical_cores() == 2
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert blas.physical_cores() == 4
