"""Load testers and evaluation harnesses, in their default configuration, against the demo model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.clients.clients import FOLDER
from tests.support.clients.recipe import arguments, recipe
from tests.support.clients.run import run
from tests.support.e2e.serve_process import REPOSITORY, ServeProcess, serve_process

TOKENIZER = "pomona/demo"
DEMO = REPOSITORY / "backend_metal" / "models" / "demo"
TASK = {
    "task": "apples",
    "dataset_path": "json",
    "test_split": "train",
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "{{answer}}",
    "metric_list": [{"metric": "acc"}],
}

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def demo_serve() -> Iterator[ServeProcess]:
    config = yaml.safe_load((REPOSITORY / "configs" / "app.yaml").read_text())
    with serve_process(config) as running:
        yield running


@pytest.fixture
def offline(work: Path) -> dict[str, str]:
    """A cache of Hugging Face's that has the demo's tokenizer, by the name ``TOKENIZER``."""
    cache = work.with_name("huggingface")
    repository = cache / "hub" / f"models--{TOKENIZER.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0")
    (repository / "snapshots" / "0").mkdir(parents=True)
    for path in DEMO.glob("*.json"):
        shutil.copy(path, repository / "snapshots" / "0")
    variables = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
    return {"HF_HOME": str(cache), **dict.fromkeys(variables, "1")}


def test_guidellm(demo_serve: ServeProcess, work: Path, offline: dict[str, str]) -> None:
    run(
        FOLDER / "guidellm" / "bin" / "guidellm",
        *arguments(recipe("guidellm", demo_serve.url, "demo", TOKENIZER=TOKENIZER)),
        "--disable-progress",
        at=work,
        **offline,
    )
    [done] = json.loads((work / "benchmarks.json").read_text())["benchmarks"]
    counts = done["metrics"]["request_totals"]
    assert (counts["successful"], counts["errored"]) == (6, 0)


def test_aiperf(demo_serve: ServeProcess, work: Path, offline: dict[str, str]) -> None:
    run(
        FOLDER / "aiperf" / "bin" / "aiperf",
        "profile",
        "--model=demo",
        f"--url={demo_serve.url}",
        "--endpoint-type=chat",
        "--streaming",
        f"--tokenizer={TOKENIZER}",
        "--request-count=6",
        "--concurrency=2",
        "--isl=64",
        "--osl=16",
        "--ui=none",
        at=work,
        **offline,
    )
    [report] = work.rglob("profile_export_aiperf.json")
    told = json.loads(report.read_text())
    assert told["request_count"]["avg"] == 6
    assert "error_request_count" not in told or told["error_request_count"]["avg"] == 0


def test_lm_eval(demo_serve: ServeProcess, work: Path, offline: dict[str, str]) -> None:
    """By the likelihood of what stands in the prompt."""
    data = Path(__file__).parent / "tasks" / "apples.jsonl"
    task = work / "apples.yaml"
    task.write_text(yaml.safe_dump({**TASK, "dataset_kwargs": {"data_files": str(data)}}))
    lines = recipe("lm-eval", demo_serve.url, "demo", TOKENIZER=TOKENIZER, TASK=str(task))
    run(
        FOLDER / "lm_eval" / "bin" / "lm_eval",
        *arguments(lines),
        f"--output_path={work}",
        at=work,
        **offline,
    )
    [report] = work.rglob("results_*.json")
    assert json.loads(report.read_text())["results"]["apples"]["acc,none"] == 1.0
