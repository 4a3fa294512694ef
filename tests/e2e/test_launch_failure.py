"""`make serve` with a model that can't be served."""

from __future__ import annotations

import pytest

from tests.support.e2e.serve_process import LAUNCH, serve_process, shipped_config


def test_what_only_loading_shows_is_told_in_a_line_and_ends_it() -> None:
    config = shipped_config("app.yaml")
    config["applications"][0]["args"]["engine"]["num_kv_blocks"] = 10**9
    with (
        pytest.raises(RuntimeError, match="not ready, exit status 1:") as ended,
        serve_process(config, command=LAUNCH),
    ):
        pytest.fail("it is ready")
    told = str(ended.value)
    assert "pomona: EngineReplica: num_kv_blocks must be at most " in told
    assert "Traceback" not in told
    lines = [line for line in told.splitlines() if not line.startswith("Waiting for ")]
    assert len(lines) < 30
