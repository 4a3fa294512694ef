from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ops.bench.schemas import __main__ as schemas

pytestmark = pytest.mark.serve


def entry(schema: dict[str, Any], **instances: tuple[bool, Any]) -> dict[str, Any]:
    tests = [{"valid": valid, "data": data} for valid, data in instances.values()]
    return {"schema": schema, "tests": tests}


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, **entries: dict[str, Any]) -> int:
    for name, one in entries.items():
        (folder / f"{name}.json").write_text(json.dumps(one))
    monkeypatch.setattr(sys, "argv", ["schemas", str(folder)])
    return schemas.main()


def test_what_passes_and_what_is_refused_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status = run(
        tmp_path,
        monkeypatch,
        number=entry({"type": "integer"}, one=(True, 1), text=(False, "x")),
        unique=entry({"type": "array", "uniqueItems": True}, one=(True, [])),
    )
    told = capsys.readouterr().out
    assert status == 0
    assert "| schemas compiled | 1 |" in told
    assert "| schemas refused | 1 |" in told
    assert "| invalid instances rejected | 1 |" in told
    assert "| valid instances accepted | 1 |" in told


def test_an_invalid_instance_that_passes_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, monkeypatch, wrong=entry({"type": "integer"}, one=(False, 7))) == 1
    assert "wrong: accepts 7" in capsys.readouterr().out


def test_a_folder_without_schemas_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match="has no schemas"):
        run(tmp_path, monkeypatch)
