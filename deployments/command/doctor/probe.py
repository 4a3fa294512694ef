"""``python -m deployments.command.doctor.probe CONFIG``: prints an ``EngineReading`` as JSON.

``CONFIG`` is an ``EngineConfig`` as JSON.
"""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import asdict
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from deployments.backend import EngineConfig, create_backend
from deployments.command.doctor.engine_reading import EngineReading


def own_reading(config: EngineConfig) -> EngineReading:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        try:
            backend = create_backend(config.backend)
            devices = backend.devices()
        except ValueError as error:
            return EngineReading(error=str(error))
    told = tuple(str(one.message) for one in caught if one.category is RuntimeWarning)
    if _is_absent(config):
        return EngineReading(devices=devices, warnings=told, is_absent=True)
    try:
        plan = backend.plan(config)
        status = backend.choose_attention(config)
    except ValueError as error:
        problem = str(error).partition("\n")[0]
        return EngineReading(devices=devices, warnings=told, problem=problem)
    return EngineReading(
        devices=devices,
        attention=status.path,
        wanted=status.wanted,
        reason=status.reason,
        warnings=told,
        plan=plan,
    )


def _is_absent(config: EngineConfig) -> bool:
    """Whether its weights are on the hub alone."""
    model = config.model
    if model.count("/") != 1 or model[0] in "./~" or Path(model).exists():
        return False
    try:
        folder = snapshot_download(model, revision=config.revision, local_files_only=True)
    except HFValidationError:
        return False
    except LocalEntryNotFoundError:
        return True
    return not any(Path(folder).glob("model*.safetensors"))


if __name__ == "__main__":
    print(json.dumps(asdict(own_reading(EngineConfig.model_validate_json(sys.argv[1])))))
