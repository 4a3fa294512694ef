"""One run of vLLM, in an environment of its own: ``PYTHON vllm_metal.py MODEL < job.json``.

The job is ``{"prompts": [[token ids]], "output_tokens": n, "at_once": n, "rounds": n}``; the last
line printed is a JSON list of output tokens a second, one a round. Imports nothing of Pomona's,
which need not be installed beside vLLM.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def rates(model: str, job: dict[str, Any]) -> list[float]:
    import vllm

    prompts = [{"prompt_token_ids": prompt} for prompt in job["prompts"]]
    longest = max(len(prompt) for prompt in job["prompts"]) + job["output_tokens"]
    llm = vllm.LLM(
        model=model,
        max_num_seqs=job["at_once"],
        max_model_len=longest,
        # Rounds repeat the prompts, and everybody else forgets them in between.
        enable_prefix_caching=False,
    )
    sampling = vllm.SamplingParams(
        temperature=0.0, max_tokens=job["output_tokens"], ignore_eos=True
    )
    llm.generate(prompts[:2], sampling, use_tqdm=False)
    measured = []
    for _ in range(job["rounds"]):
        start = time.perf_counter()
        results = llm.generate(prompts, sampling, use_tqdm=False)
        taken = time.perf_counter() - start
        measured.append(sum(len(result.outputs[0].token_ids) for result in results) / taken)
    return measured


if __name__ == "__main__":
    print(json.dumps(rates(sys.argv[1], json.load(sys.stdin))))
