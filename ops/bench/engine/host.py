"""What the engine's thread does in a step in which all places decode, by part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from backend_metal import LLM, SamplingParams
from deployments.backend import GenerationRequest
from ops.bench.engine.contenders import Prompts
from ops.bench.timing import markdown_table

WARM_UP_STEPS = 4


@dataclass(frozen=True)
class HostParts:
    num_sequences: int
    num_steps: int
    seconds: Mapping[str, float]
    """Of a step, the mean, by ``backend_metal.engine.step_clock.Part``."""

    def table(self) -> str:
        rows = [(part, f"{taken * 1e3:.3f}") for part, taken in self.seconds.items()]
        host = sum(taken for part, taken in self.seconds.items() if part != "wait")
        rows.append(("all but wait", f"{host * 1e3:.3f}"))
        column = f"ms a step of {self.num_sequences} decodes, mean of {self.num_steps}"
        return markdown_table(("the engine's thread", column), rows)


def host_parts(llm: LLM, prompts: Prompts, num_steps: int = 64) -> HostParts:
    """Of ``num_steps`` steps in each of which every one of ``prompts`` is continued; there must be
    a place for all of them."""
    llm.reset_prefix_cache()
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    for index, prompt in enumerate(prompts):
        request = GenerationRequest(str(index), tuple(prompt), sampling)
        llm.engine.add_request(request, prompt)
    try:
        while _step(llm) < len(prompts):
            pass
        for _ in range(WARM_UP_STEPS):
            _step(llm)
        before = _seconds(llm)
        decodes = [_step(llm) for _ in range(num_steps)]
        after = _seconds(llm)
    finally:
        llm.engine.abort_all()
    if set(decodes) != {len(prompts)}:
        raise RuntimeError(f"steps of {sorted(set(decodes))} decodes, not {len(prompts)}")
    taken = {part: (after[part] - before[part]) / num_steps for part in after}
    return HostParts(len(prompts), num_steps, taken)


def _step(llm: LLM) -> int:
    """How many sequences it continued."""
    before = llm.stats().step_sequences.get("decode", 0)
    llm.engine.step()
    return llm.stats().step_sequences.get("decode", 0) - before


def _seconds(llm: LLM) -> dict[str, float]:
    """Of all steps so far."""
    return {part: taken.sum for part, taken in llm.stats().step_host.items()}
