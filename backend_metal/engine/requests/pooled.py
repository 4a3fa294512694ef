"""An input that nothing is generated for, while the engine has it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from backend_metal.engine.pooling.readout import Readout, ScoreReadout, VectorReadout
from backend_metal.engine.schedule.sequence import Sequence
from backend_metal.models.load.pooling_config import PoolingConfig
from deployments.backend import (
    EngineStoppedError,
    InvalidRequestError,
    Pooled,
    PoolingRequest,
    PoolingTask,
    SamplingParams,
    StepError,
)


def id_of_input(request_id: str, index: int) -> str:
    """What the engine calls one input of a request."""
    return f"{request_id}/{index}"


def make_readout(task: PoolingTask, config: PoolingConfig, num_tokens: int) -> Readout:
    """Raises ``InvalidRequestError``."""
    if task == "embed":
        return VectorReadout(config, num_tokens)
    if config.score is None:
        raise InvalidRequestError("this model does not score documents", param="model")
    return ScoreReadout(config.score)


def make_sequence(
    request: PoolingRequest,
    index: int,
    token_ids: list[int],
    *,
    readout: Readout,
    arrival: int,
    prefix_caching: bool,
) -> Sequence:
    salt = request.cache_salt if prefix_caching else f"request {arrival}"
    return Sequence(
        id_of_input(request.request_id, index),
        index,
        token_ids,
        SamplingParams(),
        max_tokens=0,
        seed=0,
        arrival=arrival,
        priority=request.priority,
        tenant=request.tenant,
        weight=request.weight,
        group=request.request_id,
        # States of tokens that are found in the cache are not computed, and so would not count.
        cache_salt=salt if readout.is_of_last_token else None,
        readout=readout,
    )


@dataclass(frozen=True)
class PooledOutput:
    sequence: Sequence
    readout: Readout

    def result(self) -> Pooled:
        """Of a sequence that is computed. Raises ``StepError``."""
        values = self.readout.values()
        if not np.isfinite(values).all():
            raise StepError("the model's numbers for this input overflowed")
        return Pooled(
            self.sequence.index,
            values,
            self.sequence.num_prompt_tokens,
            self.sequence.num_cached_tokens,
        )

    def abort(self) -> EngineStoppedError:
        return EngineStoppedError("the engine stopped")
