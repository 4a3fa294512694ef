"""From the tensors of a checkpoint to the weights of mlx-lm's model, none of which is left out."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Set
from functools import lru_cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes

from backend_metal.models.load.checkpoint_quantization import Storage
from backend_metal.models.load.stored_tensors import StoredTensor, StoredTensors, abridged

logger = logging.getLogger(__name__)

Classes = tuple[type[nn.Module], type]
Weights = dict[str, mx.array]

IRRELEVANT = {
    r"(^|\.)rotary_emb\.|inv_freq$|(^|\.)rope_freqs": "rotary frequencies follow from config.json",
    r"(^|\.)(mtp|nextn)|\.mtp_": "of multi-token prediction, which is not served",
    r"(^|[._])(vision|visual|audio|image|video|speech|vit|mm|multi_modal|sam|patch|codec|talker"
    r"|code2wav|token2wav|aligner)([._]|\d|$)": "of other inputs than text, which are not served",
    r"\.(attn|attention)\.(masked_)?bias$": "a causal mask",
    r"[._](input|activation|[kvq]|prob|output)_(scale|zero_point)$": "scales of activations",
    r"num_batches_tracked$": "a counter of training",
}
"""Tensors that no forward of a language model reads, with the reason."""
_IRRELEVANT = re.compile("|".join(IRRELEVANT))
_HEAD = re.compile(r"(^|\.)lm_head\.(weight|scales|biases)$")
_EMBEDDINGS = re.compile(r"(embed_tokens|wte|tok_embeddings|word_embeddings|embeddings?)\.weight$")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
FP8 = "F8_E4M3"
SCALES = ("_scale_inv", "_scale")
"""Behind the name of an FP8 weight. Both multiply it."""


def is_bare(tensors: StoredTensors) -> bool:
    """Whether names begin below ``model``, as those of embedding models do, which have no class
    around them that generates."""
    return any(name.startswith("layers.") for name in tensors.by_name)


def lacks_head(config: Mapping[str, Any]) -> bool:
    """Of a bare checkpoint: whether the LM head is not the input's embedding either."""
    return not config.get("tie_word_embeddings", False)


def own_head(tensors: StoredTensors) -> StoredTensor | None:
    """The LM head, if there is one that differs from the embeddings."""
    named = tensors.by_name
    heads = [one for name, one in named.items() if name.endswith("lm_head.weight")]
    embeddings = [one for name, one in named.items() if _EMBEDDINGS.search(name)]
    if len(heads) != 1 or len(embeddings) != 1 or heads[0].same_bytes(embeddings[0]):
        return None
    return heads[0]


def untied(head: StoredTensor, config: Mapping[str, Any]) -> dict[str, Any]:
    """What to change of the config so that ``head`` is used, whatever ``tie_word_embeddings``
    says."""
    text = config.get("text_config")
    parts = [config, text] if isinstance(text, Mapping) else [config]
    if any(part.get("tie_word_embeddings") for part in parts):
        logger.warning(
            "%s has an LM head that differs from the embeddings; the head is used although "
            "config.json has tie_word_embeddings: true",
            head.file,
        )
    changed: dict[str, Any] = {"tie_word_embeddings": False}
    if isinstance(text, Mapping):
        changed["text_config"] = {**text, "tie_word_embeddings": False}
    return changed


def classes_reading(
    path: Path, tensors: StoredTensors, storage: Storage
) -> Callable[[dict[str, Any]], Classes]:
    """mlx-lm's classes of a config, whose models take the tensors of this checkpoint, and raise
    ``ValueError`` for those that would be left out, are missing, or are no floats.
    """

    repeats_embeddings = own_head(tensors) is None

    def classes(config: dict[str, Any]) -> Classes:
        depth = _depth_before_prediction(config)

        def is_irrelevant(name: str) -> bool:
            # What a model needs is not looked up here: an equal head is one of tied embeddings.
            return bool(
                _is_irrelevant(_kind(name))
                or (repeats_embeddings and _HEAD.search(name))
                or (depth and (layer := _LAYER.search(name)) and int(layer[1]) >= depth)
            )

        model_class, arguments = _get_classes(config)

        class Reading(model_class):  # type: ignore[misc,valid-type]
            def sanitize(self, _: Weights) -> Weights:
                stored = tensors.arrays() if storage.packed else _dequantized(tensors, storage)
                if is_bare(tensors):
                    stored = {f"model.{name}": weight for name, weight in stored.items()}
                own: Callable[[Weights], Weights] | None = getattr(super(), "sanitize", None)
                if own is None:
                    return stored
                taken = own(dict(stored))
                relevant = {name for name in stored if not is_irrelevant(name)}
                if left := _left_out(own, stored, taken, relevant):
                    raise ValueError(
                        f"{path} has tensors that mlx-lm's {config['model_type']} leaves out, so "
                        f"it would compute something else: {abridged(left)}"
                    )
                return taken

            def load_weights(self, weights: Iterable[tuple[str, mx.array]], strict: bool) -> None:
                wanted = dict(tree_flatten(self.parameters()))
                named = {
                    name: weight
                    for name, weight in weights
                    if name in wanted or not is_irrelevant(name)
                }
                _check_weights(path, wanted, named, config, storage)
                super().load_weights([*named.items()], strict=strict)
                self.__class__ = model_class

        return Reading, arguments

    return classes


def _check_weights(
    path: Path,
    wanted: Weights,
    weights: Weights,
    config: Mapping[str, Any],
    storage: Storage,
) -> None:
    if unknown := sorted(weights.keys() - wanted.keys()):
        raise ValueError(
            f"{path} has tensors that a {config['model_type']} of its config.json has no place "
            f"for: {abridged(unknown)}"
        )
    if missing := sorted(wanted.keys() - weights.keys()):
        raise ValueError(f"{path} lacks tensors that its config.json asks for: {abridged(missing)}")
    for name, weight in weights.items():
        if mx.issubdtype(wanted[name].dtype, mx.floating) and not mx.issubdtype(
            weight.dtype, mx.floating
        ):
            raise ValueError(
                f"{path}: {name} holds {weight.dtype} where floats belong: "
                + (
                    f"config.json's quant_method {storage.method!r} is not supported"
                    if storage.method
                    else "it is quantized, and config.json does not say how"
                )
                + "; serve the model in bfloat16, or as `mlx_lm.convert` quantizes it"
            )
        if weight.shape != wanted[name].shape:
            raise ValueError(
                f"{path}: {name} has the shape {weight.shape}, and config.json asks for "
                f"{wanted[name].shape}"
            )


def _depth_before_prediction(config: Mapping[str, Any]) -> int | None:
    """The number of layers, if multi-token prediction has further ones behind them."""
    text = config.get("text_config")
    part = text if isinstance(text, Mapping) else config
    predicts = any(value for key, value in part.items() if "nextn" in key or "mtp" in key)
    return part.get("num_hidden_layers") if predicts else None


def _left_out(
    sanitize: Callable[[Weights], Weights], stored: Weights, taken: Weights, relevant: Set[str]
) -> list[str]:
    """The relevant tensors that mlx-lm's sanitizer drops."""
    kept, given = ({id(array) for array in one.values()} for one in (taken, stored))
    gone = {name: stored[name] for name in relevant if id(stored[name]) not in kept}
    made = sum(array.size for array in taken.values() if id(array) not in given)
    if sum(array.size for array in gone.values()) == made:
        return []
    # Something was dropped, or made bigger: what changes nothing when it is missing was dropped.
    shapes = {name: array.shape for name, array in taken.items()}
    dropped: list[str] = []
    for kind in {_kind(name) for name in gone}:
        names = [name for name in gone if _kind(name) == kind]
        rest = {name: array for name, array in stored.items() if name not in names}
        try:
            without = sanitize(rest)
        except (AttributeError, LookupError, TypeError, ValueError):
            continue
        if {name: array.shape for name, array in without.items()} == shapes:
            dropped += names
    return sorted(dropped)


def _kind(name: str) -> str:
    """The same for each layer and each expert."""
    return re.sub(r"\d+", "0", name)


@lru_cache
def _is_irrelevant(kind: str) -> bool:
    return _IRRELEVANT.search(kind) is not None


def _dequantized(tensors: StoredTensors, storage: Storage) -> Weights:
    """Weights in FP8 in the dtype of the other ones, without their scales. Raises ``ValueError``
    for one without a scale."""
    arrays, scales = tensors.arrays(), set()
    others = [
        array.dtype
        for name, array in arrays.items()
        if "scale" not in name and mx.issubdtype(array.dtype, mx.floating)
    ]
    dtype = max(others, key=others.count, default=mx.bfloat16)
    for name, tensor in tensors.by_name.items():
        scale = next((name + end for end in SCALES if name + end in arrays), None)
        is_fp8 = tensor.dtype.startswith("F8_") and "scale" not in name
        if not is_fp8 and not (storage.in_fp8 and tensor.dtype == "U8" and scale):
            continue
        if scale is None or tensor.dtype not in (FP8, "U8"):
            problem = "has no scale" if tensor.dtype == FP8 else f"only {FP8} is supported"
            raise ValueError(f"{tensor.file}: {name} is {tensor.dtype}, and {problem}")
        weight = _times_scale(name, tensor, arrays[name], arrays[scale])
        arrays[name] = weight.astype(dtype)
        scales.add(scale)
    return {name: array for name, array in arrays.items() if name not in scales}


def _times_scale(name: str, tensor: StoredTensor, packed: mx.array, scale: mx.array) -> mx.array:
    """``scale``: one, one a row, or one a block of rows and columns: as many as whole blocks, the
    last of which may be cut."""
    weight = mx.from_fp8(packed, mx.float32)
    if scale.size > 1:
        if scale.ndim < weight.ndim:
            scale = mx.expand_dims(scale, -1)
        for axis in range(weight.ndim):
            size, blocks = weight.shape[axis], scale.shape[axis]
            if blocks not in (1, size):
                block = 1 << (-(-size // blocks) - 1).bit_length()
                if -(-size // block) != blocks:
                    raise ValueError(
                        f"{tensor.file}: the scale of {name} has the shape {scale.shape}, which "
                        f"divides {weight.shape} into no blocks"
                    )
                scale = mx.repeat(scale, block, axis=axis)
                scale = mx.take(scale, mx.arange(size), axis=axis)
    return weight * scale
