"""What a stranger reads first."""

from __future__ import annotations

import pytest

from deployments.command.__main__ import SUBCOMMANDS, main

pytestmark = pytest.mark.serve


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_each_subcommand_tells_how_it_is_used(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["pomona", name, "--help"])
    try:
        status: object = main()
    except SystemExit as ended:
        status = ended.code or 0
    assert status == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"usage: pomona {name}")
    assert err == ""


def test_another_name_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["pomona", "docter"])
    assert main() == 2
    assert "there is no command 'docter'; there are serve, " in capsys.readouterr().err
