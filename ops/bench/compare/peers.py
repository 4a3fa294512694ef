"""The servers that are compared, and how each of them is started.

Each has its own defaults, and is told how many clients it has and how long their requests get.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from backend_metal.devices.cpu.blas import blas_in_use, physical_cores, preload
from ops.bench.compare.model import Weights

REPOSITORY = Path(__file__).resolve().parents[3]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "pomona" / "peers"
BLOCK_SIZE = 16
HOST = "127.0.0.1"
VERSION = "VERSION"
"""A file in the folder of a peer that was installed."""


@dataclass(frozen=True)
class Job:
    """What a server is to serve. ``folder`` is its own, for what it writes."""

    weights: Weights
    port: int
    at_once: int
    context: int
    """Most tokens of one request, its answer included."""
    folder: Path
    threads: int | None = None
    """That multiply; None: as many as there are cores."""

    @property
    def of_blas(self) -> Mapping[str, str]:
        """For who multiplies with this project's products."""
        return {} if self.threads is None else {"POMONA_CPU_THREADS": str(self.threads)}


@dataclass(frozen=True)
class Launch:
    """``model`` is its name in requests; ``ready`` the path that answers 200 once it serves."""

    command: tuple[str, ...]
    model: str
    ready: str
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Peer:
    """``program`` is its own under the cache, or on the ``PATH``."""

    name: str
    program: str
    launch: Callable[[Path, Job], Launch]
    how: str
    """To get it."""

    def folder(self, cache: Path) -> Path:
        return cache / self.name

    def find(self, cache: Path) -> Path | None:
        places = (self.folder(cache) / "bin" / self.program, shutil.which(self.program))
        return next((Path(one) for one in places if one and os.access(one, os.X_OK)), None)

    def version(self, cache: Path) -> str:
        """As ``install`` noted it."""
        note = self.folder(cache) / VERSION
        return note.read_text().strip() if note.exists() else "as found"


def pomona(python: Path, job: Job) -> Launch:
    config = yaml.safe_load((REPOSITORY / "configs" / "app.yaml").read_text())
    arguments = config["applications"][0]["args"]
    arguments["gateway"] |= {"port": job.port, "host": HOST}
    arguments["engine"] |= {
        "model": str(job.weights.mlx),
        "max_num_seqs": job.at_once,
        "num_kv_blocks": -(-job.context * job.at_once // BLOCK_SIZE),
    }
    path = job.folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return Launch(
        (str(python), "-m", "deployments.command", "serve", "--config", str(path)),
        model=job.weights.mlx.name,
        ready="/ready",
        # A Ray of its own, whatever else runs on the machine.
        environment={
            "HOME": str(job.folder),
            "RAY_TMPDIR": str(job.folder / "ray"),
            **job.of_blas,
        },
    )


def mlx_lm(program: Path, job: Job) -> Launch:
    model = str(job.weights.mlx)
    command = (str(program), "--model", model, *_place(job), "--log-level", "WARNING")
    concurrency = ("--decode-concurrency", str(job.at_once))
    return Launch((*command, *concurrency), model, "/health", {**_fast_blas(), **job.of_blas})


def llama_cpp(program: Path, job: Job) -> Launch:
    command = [str(program), "--model", str(job.weights.gguf), *_place(job)]
    command += ["--alias", job.weights.gguf.stem, "--no-webui", "--log-verbosity", "1"]
    command += ["--parallel", str(job.at_once), "--ctx-size", str(job.context * job.at_once)]
    command += ["--threads", str(job.threads or physical_cores())]
    if job.weights.precision == "f32":
        # As everybody's is then; its default is float16.
        command += ["--cache-type-k", "f32", "--cache-type-v", "f32"]
    return Launch(tuple(command), job.weights.gguf.stem, "/health")


def vllm_mlx(program: Path, job: Job) -> Launch:
    model = str(job.weights.mlx)
    command = (str(program), "serve", model, *_place(job), "--continuous-batching")
    # It keeps prefixes on the disk, for the next server.
    environment = {"HOME": str(job.folder), **_fast_blas(), **job.of_blas}
    return Launch((*command, "--max-num-seqs", str(job.at_once)), model, "/health", environment)


def vllm_metal(program: Path, job: Job) -> Launch:
    model = str(job.weights.mlx)
    limits = ("--max-num-seqs", str(job.at_once), "--max-model-len", str(job.context))
    return Launch((str(program), "serve", model, *_place(job), *limits), model, "/health")


def omlx(program: Path, job: Job) -> Launch:
    """It serves the folders in a folder, each by its name."""
    models = job.folder / "models"
    models.mkdir()
    (models / job.weights.mlx.name).symlink_to(job.weights.mlx)
    command = (str(program), "serve", "--model-dir", str(models), *_place(job))
    return Launch(command, job.weights.mlx.name, "/health", {"HOME": str(job.folder)})


INSTALL = "python -m ops.bench.compare.install"
OURS = Peer("pomona", sys.executable, pomona, "make setup")
PEERS = (
    OURS,
    Peer("mlx-lm", "mlx_lm.server", mlx_lm, f"{INSTALL} mlx-lm"),
    Peer("llama.cpp", "llama-server", llama_cpp, f"{INSTALL} llama.cpp"),
    Peer("vllm-mlx", "vllm-mlx", vllm_mlx, f"{INSTALL} vllm-mlx"),
    Peer("vllm-metal", "vllm", vllm_metal, "its own installer, on a Mac"),
    Peer("omlx", "omlx", omlx, "Homebrew, on a Mac"),
)


def free_port() -> int:
    with socket.socket() as one:
        one.bind((HOST, 0))
        return int(one.getsockname()[1])


def _place(job: Job) -> tuple[str, ...]:
    return "--host", HOST, "--port", str(job.port)


def _fast_blas() -> Mapping[str, str]:
    """For MLX's wheel on Linux, whose own BLAS is tens of times slower than the one that it finds
    here: without it a comparison would be of these."""
    return {"LD_PRELOAD": preload()} if blas_in_use() else {}
