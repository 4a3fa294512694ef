"""What config.json says of how weights are stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KEY = "quantization_config"
PACKED = ("nvfp4-pack-quantized", "mxfp4-pack-quantized", "pack-quantized")
FP8_FORMATS = ("float-quantized", "naive-quantized")
"""Formats of compressed-tensors, those of mlx-lm and those of weights in FP8."""


@dataclass(frozen=True)
class Storage:
    method: str | None = None
    """Of ``quantization_config``."""
    in_fp8: bool = False
    """Whether bytes with a scale are FP8 weights. Those that the file calls so are in any case,
    unless ``packed``."""
    packed: bool = False
    """Whether MLX computes with the weights as they are stored."""
    changed: Mapping[str, Any] = field(default_factory=dict)
    """What mlx-lm's config must say instead."""


def storage_of(path: Path, config: Mapping[str, Any]) -> Storage:
    """Raises ``ValueError`` naming the key and the value that can't be served, of what the config
    alone tells."""
    text = config.get("text_config")
    found = config.get(KEY) or (text.get(KEY) if isinstance(text, Mapping) else None)
    if "quantization" in config or not found:
        return Storage(packed="quantization" in config)
    if not isinstance(found, Mapping):
        raise ValueError(f"{path / 'config.json'}: {KEY} must be an object, not {found!r}")
    method = found.get("quant_method")
    match method:
        case None if {"group_size", "bits"} <= found.keys():
            # MLX's own, under transformers' name.
            return Storage(packed=True, changed={"quantization": dict(found)})
        case "fp8":
            blocks = [*(found.get("weight_block_size") or ())]
            if found.get("scale_fmt") == "ue8m0" and blocks == [32, 32]:
                return Storage(method, packed=True)
            return Storage(method, in_fp8=True)
        case "compressed-tensors":
            form = found.get("format")
            if form in FP8_FORMATS:
                return Storage(method, in_fp8=True, changed={KEY: None})
            _check(path, "format", form, (*PACKED, *FP8_FORMATS))
            return Storage(method, packed=True)
        case "modelopt":
            algorithm = found.get("quantization", found).get("quant_algo")
            if algorithm == "FP8":
                return Storage(method, in_fp8=True, changed={KEY: None})
            _check(path, "quant_algo", algorithm, ("FP8", "NVFP4"))
            return Storage(method, packed=True)
    return Storage(method, packed=method in ("awq", "gptq", "mxfp4", "mxfp8", "bitnet"))


def _check(path: Path, key: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(
            f"{path / 'config.json'}: {KEY}.{key} must be one of {', '.join(allowed)}, not "
            f"{value!r}; serve the model in bfloat16, or as `mlx_lm.convert` quantizes it"
        )
