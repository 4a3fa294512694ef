"""mlx-lm in a process of its own: with MLX's CUDA graphs, which importing Pomona turns off for a
whole process, and on a CPU with Pomona's BLAS or MLX's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

# Before mlx, so that MLX finds the BLAS.
from backend_metal import blas_in_use  # isort: skip
import mlx.core as mx
import mlx_lm
import numpy as np
from mlx_lm.generate import BatchGenerator, generate_step
from mlx_lm.models.cache import make_prompt_cache

from ops.bench.engine.contenders import Prompts, Rate


@dataclass(frozen=True)
class Settings:
    blas: str | None
    """Pomona's, or None for MLX's own."""
    cuda_graphs: bool


@dataclass(frozen=True)
class Job:
    way: str
    """A key of ``WAYS``."""
    prompts: Prompts
    output_tokens: int
    at_once: int


@dataclass(frozen=True)
class Drawn:
    tokens: list[list[int]]
    """By prompt."""
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return sum(map(len, self.tokens)) / self.seconds


class Peer:
    """Loads the checkpoint in ``directory`` once and runs one job at a time."""

    def __init__(self, directory: str, *, pomona_blas: bool = True) -> None:
        blas = {} if pomona_blas else {"POMONA_BLAS": "off"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ops.bench.engine.peer", directory],
            env={**os.environ, **blas},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.settings = Settings(**self._answer())

    def run(self, job: Job) -> Drawn:
        """Raises:
        RuntimeError: the process has ended; its stderr says why.
        """
        assert self._process.stdin
        self._process.stdin.write(f"{json.dumps(asdict(job))}\n")
        self._process.stdin.flush()
        return Drawn(**self._answer())

    def _answer(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"mlx-lm's process ended with status {self._process.wait()}")
        return json.loads(line)

    def rate(self, way: str, output_tokens: int, at_once: int = 1) -> Rate:
        return lambda prompts: self.run(Job(way, prompts, output_tokens, at_once)).tokens_per_second

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.communicate()


def batch_generator(model: Any, job: Job) -> list[list[int]]:
    generator = BatchGenerator(model, completion_batch_size=job.at_once)
    # A uid counts the prompts.
    generator.insert(job.prompts, [job.output_tokens] * len(job.prompts))
    by_uid: dict[int, list[int]] = {}
    while batch := generator.next_generated():
        for response in batch:
            by_uid.setdefault(response.uid, []).append(int(response.token))
    generator.close()
    return [by_uid[uid] for uid in sorted(by_uid)]


def one_by_one(model: Any, job: Job) -> list[list[int]]:
    return [
        [
            int(token)
            for token, _ in generate_step(mx.array(prompt), model, max_tokens=job.output_tokens)
        ]
        for prompt in job.prompts
    ]


def plain_loop(model: Any, job: Job) -> list[list[int]]:
    """The model's steps over prompts of one length, one ahead of the host as in mlx-lm, with no
    admission, no text and no limits."""
    cache = make_prompt_cache(model)
    tokens = mx.argmax(model(mx.array(job.prompts), cache=cache)[:, -1], axis=-1)
    mx.async_eval(tokens)  # type: ignore[no-untyped-call]
    drawn = []
    for _ in range(job.output_tokens - 1):
        following = mx.argmax(model(tokens[:, None], cache=cache)[:, -1], axis=-1)
        mx.async_eval(following)  # type: ignore[no-untyped-call]
        drawn.append(np.array(tokens))
        tokens = following
    drawn.append(np.array(tokens))
    by_prompt: list[list[int]] = np.stack(drawn, axis=1).tolist()
    return by_prompt


WAYS: Mapping[str, Callable[[Any, Job], list[list[int]]]] = {
    way.__name__: way for way in (batch_generator, one_by_one, plain_loop)
}


def main() -> None:
    # MLX reads it with its first command.
    os.environ["MLX_USE_CUDA_GRAPHS"] = "1"
    model = mlx_lm.load(sys.argv[1])[0]
    _say(Settings(blas_in_use(), os.environ["MLX_USE_CUDA_GRAPHS"] == "1"))
    for line in sys.stdin:
        job = Job(**json.loads(line))
        start = time.perf_counter()
        tokens = WAYS[job.way](model, job)
        _say(Drawn(tokens, time.perf_counter() - start))


def _say(answer: Settings | Drawn) -> None:
    sys.stdout.write(f"{json.dumps(asdict(answer))}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
