"""``pomona models``: the Hugging Face cache, and which of it this machine's engine can serve."""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from huggingface_hub import CachedRepoInfo, CacheNotFound, constants, scan_cache_dir

from deployments.backend import DEFAULT_BACKEND, EngineConfig, ModelPlan, create_backend
from deployments.command.terminal import Parser, add_backend, fail, printable, size, table

EXAMPLES = """
examples:
  pomona models list
  pomona models pull mlx-community/Qwen3-0.6B-4bit
  pomona models rm mlx-community/Qwen3-0.6B-4bit

MEMORY is what the weights take here, and the KV cache of one sequence of CONTEXT tokens: the
longest that the model has, or for which 'engine.memory_fraction' of this machine's memory leaves
room. More sequences at a time share what is left of it.

Models lie in the cache that all of Hugging Face's programs share: HF_HUB_CACHE, or
~/.cache/huggingface/hub.
"""


NONE = "-"


@dataclass(frozen=True)
class CachedModel:
    """``plan``: the memory that it takes here; None with a ``reason`` why this machine's engine
    can't serve it."""

    name: str
    num_bytes: int
    plan: ModelPlan | None
    reason: str = ""


def run(arguments: list[str]) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    options = _parser().parse_args(arguments)
    if options.action == "list":
        return _list(options.backend)
    if options.action == "pull":
        return _pull(
            EngineConfig(backend=options.backend, model=options.model, revision=options.revision)
        )
    return _remove(options.model, confirmed=options.yes)


def cached_models(backend: str = DEFAULT_BACKEND) -> list[CachedModel]:
    """List the cached models by name, with the plan of ``backend`` for each."""
    found = sorted(_repositories(), key=lambda repo: repo.repo_id)
    return [_looked_at(repo, backend) for repo in found]


def _looked_at(repo: CachedRepoInfo, backend: str) -> CachedModel:
    """By the snapshot that is served without ``engine.revision``."""
    snapshot = repo.refs.get("main") or max(
        repo.revisions, key=lambda one: one.last_modified, default=None
    )
    if snapshot is None:
        return CachedModel(repo.repo_id, repo.size_on_disk, None, "nothing of it is downloaded")
    # As a folder: what is looked at is what is here, without the hub.
    config = EngineConfig(backend=backend, model=str(snapshot.snapshot_path))
    try:
        created = create_backend(backend)
        created.check(config)
        return CachedModel(repo.repo_id, repo.size_on_disk, created.plan(config))
    except ValueError as error:
        reason = str(error).partition("\n")[0].replace(str(snapshot.snapshot_path), "it")
        return CachedModel(repo.repo_id, repo.size_on_disk, None, reason)


def _list(backend: str) -> int:
    found = cached_models(backend)
    if not found:
        print("No models in the cache. `pomona models pull MODEL` gets one.")
        return 0
    header = ("MODEL", "ON DISK", "MEMORY", "CONTEXT", "SERVED HERE")
    print(table(header, [_row(one) for one in found]))
    return 0


def _row(one: CachedModel) -> tuple[str, ...]:
    name, on_disk = printable(one.name), size(one.num_bytes)
    if one.plan is None:
        return name, on_disk, NONE, NONE, printable(f"no: {one.reason}")
    memory = f"{size(one.plan.weight_bytes)} + {size(one.plan.sequence_bytes)}"
    context = f"{one.plan.context}"
    if one.plan.context < one.plan.max_model_len:
        context += f" of {one.plan.max_model_len}"
    return name, on_disk, memory, context, f"yes, on {one.plan.device}"


def _pull(config: EngineConfig) -> int:
    try:
        backend = create_backend(config.backend)
        logging.getLogger(type(backend).__module__.partition(".")[0]).setLevel(logging.INFO)
        # It refuses what can't be served before the weights are downloaded.
        backend.check(config)
        print(backend.fetch(config))
    except ValueError as error:
        return fail(str(error))
    return 0


def _remove(model: str, *, confirmed: bool) -> int:
    repo = next((one for one in _repositories() if one.repo_id == model), None)
    if repo is None:
        return fail(f"{model!r} is not in the cache; `pomona models list` shows what is", status=2)
    if not confirmed:
        if not sys.stdin.isatty():
            return fail("say --yes where nobody can be asked", status=2)
        asked = f"Remove {printable(model)} ({size(repo.size_on_disk)}) from the cache? [y/N] "
        if input(asked).strip().lower() not in ("y", "yes"):
            return 1
    # Not by its revisions: copies of a repository have the same commits.
    shutil.rmtree(repo.repo_path)
    print(f"Removed {printable(model)}: {size(repo.size_on_disk)} are free again.")
    return 0


def _repositories() -> Iterable[CachedRepoInfo]:
    try:
        found = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return ()
    return [repo for repo in found if repo.repo_type == "model"]


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="pomona models",
        description="Lists, downloads and removes models from the Hugging Face hub.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_backend(parser)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser(
        "list", help="what is in the cache, what of it the engine here can serve, and its memory"
    )
    pull = actions.add_parser("pull", help="download a model, unless it can't be served here")
    pull.add_argument("model", metavar="MODEL", help="an id on the hub, such as org/name")
    pull.add_argument("--revision", help="branch, tag or full commit (default: main)")
    remove = actions.add_parser("rm", help="remove a model from the cache, all revisions of it")
    remove.add_argument("model", metavar="MODEL", help="an id that 'list' shows")
    remove.add_argument("--yes", action="store_true", help="don't ask")
    return parser
