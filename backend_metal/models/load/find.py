"""Finding a checkpoint: the embedded model, a local directory, or the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlx_lm.utils import DEFAULT_ALLOW_PATTERNS, load_config

from backend_metal.models.families.table import family_of
from backend_metal.models.load.account.keys import check_keys
from backend_metal.models.load.account.rope import ropes_of, text_part
from backend_metal.models.load.account.sizes import check_sizes
from backend_metal.models.load.causality import check_causal
from backend_metal.models.load.checkpoint_quantization import storage_of
from backend_metal.models.load.generation_config import GENERATION_CONFIG, read_generation_config
from backend_metal.models.load.hub import check_room, download
from backend_metal.models.load.pooling_config import POOLING_FILES, read_pooling_config
from backend_metal.models.load.progress import NoProgress
from backend_metal.models.load.stored_tensors import StoredTensors

DEMO_DIRECTORY = Path(__file__).parents[1] / "demo"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "vocab.json")


def find_checkpoint(model: str, revision: str | None = None) -> tuple[Path, dict[str, Any]]:
    """The directory of ``model`` with every file it needs, and its config.

    ``revision`` is a branch, tag or commit on the hub, its ``main`` by default.

    Raises ``ValueError`` saying what is missing, unreachable or unsupported; a model type that
    can't be served is refused before its weights are downloaded.
    """
    path, config = find_config(model, revision)
    if _is_on_hub(model):
        # The cache names snapshots after their commits: a branch may have moved on meanwhile.
        return _checked(download(model, path.name, DEFAULT_ALLOW_PATTERNS))
    return path, config


def find_config(model: str, revision: str | None = None) -> tuple[Path, dict[str, Any]]:
    """As ``find_checkpoint``, but of a model on the hub there need be no more than its config,
    its sampling defaults and how it pools, and room on the disk for the rest."""
    if _is_on_hub(model):
        small = ["config.json", GENERATION_CONFIG, *POOLING_FILES]
        snapshot = download(model, revision, small, NoProgress)
        config = _config_of(snapshot)
        check_room(model, snapshot.name, DEFAULT_ALLOW_PATTERNS)
        return snapshot, config
    path = DEMO_DIRECTORY if model == "demo" else Path(model).expanduser()
    if path.is_file():
        raise ValueError(f"model must be a directory or a Hugging Face id; {model} is a file")
    if not path.is_dir():
        raise ValueError(f"model {model!r}: there is no such directory")
    if revision is not None:
        raise ValueError(
            f"engine.revision must be empty for a model on this machine ({model}), not {revision!r}"
        )
    return _checked(path)


def _config_of(path: Path) -> dict[str, Any]:
    """Of a model that may be served, as far as its config tells."""
    # mlx-lm reads both files, and says nothing of one that is no JSON.
    read_generation_config(path)
    config: dict[str, Any] = load_config(path)
    check_causal(config)
    family_of(config)
    read_pooling_config(path)
    check_sizes(path, config)
    check_keys(path, config)
    storage_of(path, config)
    ropes_of(text_part(config))
    return config


def _is_on_hub(model: str) -> bool:
    looks_local = model == "demo" or model.startswith((".", "/", "~")) or model.count("/") > 1
    return not looks_local and not Path(model).exists()


def _checked(path: Path) -> tuple[Path, dict[str, Any]]:
    if not (path / "config.json").is_file():
        raise ValueError(f"{path} holds no config.json, so it is no model")
    config = _config_of(path)
    StoredTensors(path)
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        raise ValueError(f"{path} holds no tokenizer: none of {', '.join(TOKENIZER_FILES)}")
    return path, config
