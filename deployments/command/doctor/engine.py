"""The engine: its extension, the device that MLX finds, the kernels that it would serve with."""

from __future__ import annotations

from collections.abc import Iterator

from deployments.command.doctor.engine_reading import EngineReading
from deployments.command.doctor.finding import Finding, ok, warning, wrong
from deployments.command.doctor.memory import check_memory, check_model

REBUILD = "`make setup` in the repository, or install pomona-serve again"


def check_engine(
    reading: EngineReading, model: str, *, system: str, available_bytes: int
) -> Iterator[Finding]:
    """``system``: as ``platform.system()`` says; ``available_bytes``: of the machine's memory."""
    if reading.error:
        remedy = REBUILD
        if system == "Darwin":
            remedy += "; without a compiler, `xcode-select --install` first"
        yield wrong("Engine", reading.error, remedy)
        return
    yield ok("Engine", "its extension is built for this MLX and Python")
    for told in reading.warnings:
        yield warning("Engine", told, REBUILD)
    yield _device(reading, system)
    if reading.is_absent:
        told = f"{model} is not downloaded yet, so nobody knows what it takes here"
        yield warning("Model", told, f"`pomona models pull {model}`")
    elif reading.problem:
        yield check_model(model, reading.problem)
    if reading.plan is not None:
        yield _attention(reading)
        yield check_memory(model, reading.plan, available_bytes)


def _device(reading: EngineReading, system: str) -> Finding:
    best = reading.devices[0]
    if system == "Darwin" and best != "metal":
        remedy = "run on a Mac with Apple silicon and macOS 14, not in a virtual machine"
        return wrong("Device", "MLX finds no Metal here, and would compute on the CPU", remedy)
    return ok("Device", f"MLX finds {', '.join(reading.devices)}")


def _attention(reading: EngineReading) -> Finding:
    if reading.attention == reading.wanted:
        return ok("Attention", f"the {reading.attention} kernels work here")
    told = f"{reading.attention} instead of {reading.wanted}: {reading.reason}"
    return warning("Attention", told, "it serves, more slowly; send us this line")
