"""Attention and the engine on this Mac's GPU, written to a Markdown report.

``python -m ops.bench.metal [--output FILE] [--model MODEL] [--rounds N] [--quick]``. The report
begins with what a reader needs to place the figures: chip, memory, macOS, versions, and whether the
kernels agree with the reference here. It ends with settings of MLX and of the engine, each compared
with what is served, and what the host does in a step. ``--quick`` is for a machine that is slow or
shared.
"""

from __future__ import annotations

import argparse
import logging
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# Before mlx, so that MLX finds the BLAS.
from backend_metal.engine.attention_choice import choose_attention  # isort: skip
import mlx.core as mx

from backend_metal.attention.kv_cache import LayerAttention, LayerCacheSpec
from backend_metal.device import Device, select_device
from ops.bench.attention import __main__ as attention_bench
from ops.bench.attention.bench import AttentionBench
from ops.bench.attention.cases import BLOCK_SIZE
from ops.bench.engine.workload import Workload
from ops.bench.metal import engine as metal_engine
from ops.bench.metal import settings
from ops.bench.timing import markdown_table

PACKAGES = ("mlx", "mlx-lm", "vllm", "vllm-metal", "pomona-serve")
QUICK_MODEL: Mapping[str, object] = {**metal_engine.QWEN3_0_6B, "num_hidden_layers": 4}
QUICK_WORKLOAD = Workload(num_prompts=8, longest=128, output_tokens=16, at_once=8)
QUICK_DECODING = ("--at-once=8", "--output-tokens=32", "--rounds=1", "--idle-s=1")
QUICK_CONTEXT = 8192
"""Longest context of the attention benchmark when it is to be quick."""


def machine(device: Device) -> str:
    info = mx.device_info(device.mlx)
    rows = [
        ("chip", str(info.get("device_name", platform.processor() or platform.machine()))),
        ("architecture", str(info.get("architecture", platform.machine()))),
        ("memory for MLX", f"{device.memory_bytes / 2**30:.0f} GiB"),
        (
            "system",
            f"macOS {platform.mac_ver()[0]}" if platform.mac_ver()[0] else platform.platform(),
        ),
        ("Python", platform.python_version()),
        *((name, found) for name in PACKAGES if (found := installed(name))),
    ]
    return markdown_table(("machine", "value"), rows)


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def self_check(device: Device) -> str:
    """What the engine would say at start for the shapes that are measured here."""
    case = attention_bench.DECODES[0]
    spec = LayerCacheSpec(case.num_kv_heads, case.head_dim, case.head_dim)
    layer = LayerAttention(spec, case.num_q_heads, case.scale)
    start = time.perf_counter()
    _, status = choose_attention("auto", device, [layer], block_size=BLOCK_SIZE, dtype=mx.bfloat16)
    return f"`{status.path}`: {status.reason} ({time.perf_counter() - start:.2f} s)."


def attention(device: Device, *, quick: bool) -> str:
    decodes, prefills = attention_bench.DECODES, attention_bench.PREFILLS
    if quick:
        decodes = tuple(case for case in decodes if case.context * case.batch <= QUICK_CONTEXT)
        prefills = prefills[:1]
    bench = AttentionBench(
        device,
        mx.bfloat16,
        budget=1.0 if quick else 4.0,
        memory_bytes=0.4 * device.memory_bytes,
    )
    return f"{bench.machine_report()}\n\n{attention_bench.report(bench, decodes, prefills)}"


def engine(model: str, *, rounds: int, quick: bool, vllm: str | None) -> str:
    workload = QUICK_WORKLOAD if quick else Workload()
    return metal_engine.report(model, workload, rounds, vllm)


def host(model: str, *, rounds: int, quick: bool) -> str:
    return settings.report(model, rounds=rounds, arguments=QUICK_DECODING if quick else ())


@contextmanager
def checkpoint(model: str | None, *, quick: bool) -> Iterator[tuple[str, str]]:
    """Its directory and what to call it: random weights, unless one is given."""
    if model is not None:
        yield model, model
        return
    with tempfile.TemporaryDirectory() as directory:
        config = QUICK_MODEL if quick else metal_engine.QWEN3_0_6B
        metal_engine.save_random(Path(directory), config)
        yield directory, f"random weights, Qwen3's shape{', cut short' if quick else ''}, bfloat16"


def report(device: Device, *, model: str | None, rounds: int, quick: bool, vllm: str | None) -> str:
    with checkpoint(model, quick=quick) as (directory, name):
        sections = {
            "Machine": machine(device),
            "Attention kernels": self_check(device),
            "Attention": attention(device, quick=quick),
            f"Engine ({name})": engine(directory, rounds=rounds, quick=quick, vllm=vllm),
            f"Decoding, by setting ({name})": host(directory, rounds=rounds, quick=quick),
        }
    parts = [f"## {title}\n\n{text}\n" for title, text in sections.items()]
    return "\n".join(["# Pomona on a Mac\n", *parts])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.metal", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("bench-metal.md"))
    parser.add_argument("--model", help="a local directory; random weights by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--vllm-python", help="a Python that has vllm-metal; searched by default")
    arguments = parser.parse_args()
    if not mx.metal.is_available():
        sys.exit("bench-metal needs a Mac with Apple silicon: MLX finds no Metal device here.")
    logging.basicConfig(level=logging.WARNING)
    text = report(
        select_device("metal"),
        model=arguments.model,
        rounds=arguments.rounds,
        quick=arguments.quick,
        vllm=arguments.vllm_python or metal_engine.find_vllm(),
    )
    arguments.output.write_text(text)
    print(f"{text}\nwritten to {arguments.output}")


if __name__ == "__main__":
    main()
