"""``python -m ops.bench.schemas FOLDER [--count 2000]``

``FOLDER``: ``maskbench/data`` of https://github.com/guidance-ai/jsonschemabench. Of its files, each
a schema with instances that are valid and some that are not, takes a sample; each instance is
written as tokens and given to the schema's matcher. Status 1 if an invalid one passes, or a schema
is refused without saying what in it can't be enforced.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from tqdm import tqdm
from transformers import AutoTokenizer

from backend_metal.engine.grammar.compiler import GrammarCompiler
from deployments.backend import Grammar, InvalidRequestError

DEMO = Path(__file__).resolve().parents[3] / "backend_metal" / "models" / "demo"
MOST_TOLD = 20


class Report:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.compile_ms: list[float] = []
        self.broken: list[str] = []
        """What should not be, and where."""

    def lines(self) -> list[str]:
        times = sorted(self.compile_ms)
        counted = [f"| {name} | {self.counts[name]} |" for name in sorted(self.counts)]
        return [
            "| | |",
            "| --- | ---: |",
            *counted,
            f"| compile, ms, p50 | {times[len(times) // 2]:.1f} |",
            f"| compile, ms, p99 | {times[len(times) * 99 // 100]:.1f} |",
        ]


def main() -> int:
    options = _options()
    files = sorted(options.folder.glob("*.json"))
    if not files:
        raise SystemExit(f"{options.folder} has no schemas")
    Random(options.seed).shuffle(files)
    tokenizer = AutoTokenizer.from_pretrained(str(options.tokenizer))
    compiler = GrammarCompiler(tokenizer, len(tokenizer), {tokenizer.eos_token_id})
    report = Report()
    for path in tqdm(files[: options.count], unit="schema"):
        _try(json.loads(path.read_text()), path.stem, compiler, tokenizer, report)
    print("\n".join(report.lines()))
    print("\n".join(report.broken[:MOST_TOLD]))
    return int(bool(report.broken))


def _try(
    entry: dict[str, Any], name: str, compiler: GrammarCompiler, tokenizer: Any, report: Report
) -> None:
    began = time.perf_counter()
    try:
        matcher = compiler.compile(Grammar("json_schema", json.dumps(entry["schema"]), "schema"))
    except InvalidRequestError as error:
        report.counts["schemas refused"] += 1
        if "keyword" not in str(error):
            report.counts["schemas refused without a keyword"] += 1
            report.broken.append(f"{name}: {error}")
        return
    report.compile_ms.append(1000 * (time.perf_counter() - began))
    report.counts["schemas compiled"] += 1
    for test in entry["tests"]:
        text = json.dumps(test["data"], ensure_ascii=False, indent=None, separators=(", ", ": "))
        ids = tokenizer.encode(text, add_special_tokens=False)
        passes = _passes(matcher.copy(), ids)
        kind = "valid" if test["valid"] else "invalid"
        report.counts[f"{kind} instances {'accepted' if passes else 'rejected'}"] += 1
        if passes and not test["valid"]:
            report.broken.append(f"{name}: accepts {text[:200]}")


def _passes(matcher: Any, ids: Sequence[int]) -> bool:
    try:
        for token_id in ids:
            matcher.advance(token_id)
    except InvalidRequestError:
        return False
    return bool(matcher.is_accepting)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.schemas")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=2000, help="schemas")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--tokenizer", type=Path, default=DEMO, help="a model's folder")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
