"""Memory and disks, against what the model needs."""

from __future__ import annotations

from deployments.backend import ModelPlan
from deployments.command.doctor.finding import Finding, ok, warning, wrong
from deployments.command.terminal import size

MIB = 2**20
LEAST_FREE = 256 * MIB
"""What a replica waits for before it starts: room for logs, and for what Ray spills."""
ENOUGH_FREE = 10 * 10**9


def check_memory(model: str, plan: ModelPlan, available_bytes: int) -> Finding:
    """``available_bytes``: what programs could still get of the machine's memory."""
    told = f"{model} takes {size(plan.weight_bytes)}, and {size(plan.sequence_bytes)} for a "
    told += f"sequence of {plan.context} tokens"
    if plan.needed_bytes > available_bytes:
        return warning(
            "Memory",
            f"{told}; {size(available_bytes)} are free now",
            "end other programs, or serve a smaller model",
        )
    if plan.context < plan.max_model_len:
        return warning(
            "Memory",
            f"{told}; there is no room for its whole context of {plan.max_model_len}",
            "raise engine.memory_fraction, or set engine.max_model_len to what clients need",
        )
    return ok("Memory", f"{told}; {size(available_bytes)} are free")


def check_model(model: str, problem: str) -> Finding:
    """``problem``: why no engine could serve it here."""
    return wrong("Model", f"{model}: {problem}", "serve another model, or set engine.model")


def check_disk(what: str, folder: str, free_bytes: int) -> Finding:
    """``what`` is kept in ``folder``."""
    told = f"{size(free_bytes)} free for {what} in {folder}"
    if free_bytes < LEAST_FREE:
        return wrong("Disk", told, "make room: no engine starts with less than 256 MiB")
    if free_bytes < ENOUGH_FREE:
        return warning("Disk", told, "make room: a model takes 0.5 to 100 GB, and logs grow")
    return ok("Disk", told)
