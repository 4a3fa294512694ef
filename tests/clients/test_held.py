"""Calls that clients require, and answers that they want of a schema, are valid whatever is drawn:
the model's weights are random, its vocabulary is Qwen's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.clients import PYTHON_CLIENTS, PythonClient
from tests.clients.conftest import RANDOM_MODEL
from tests.support.clients.held import held
from tests.support.clients.run import named, run, run_node, variables
from tests.support.clients.wiretap import wiretap
from tests.support.e2e.serve_process import ServeProcess

pytestmark = pytest.mark.clients

SCRIPTS = Path(__file__).parent / "scripts"
WITHOUT_FORMS = ("llama_index", "smolagents")
"""They want calls alone."""


@pytest.mark.parametrize("client", named(one for one in PYTHON_CLIENTS if "held" in one.does))
def test_python(client: PythonClient, random_serve: ServeProcess, work: Path) -> None:
    script = SCRIPTS / f"{client.name}_held.py"
    with wiretap(random_serve.url) as tap:
        run(client.python, script, at=work, **variables(tap.url, RANDOM_MODEL))
    found = held(tap.exchanges)
    assert found.calls > 0
    assert (found.forms > 0) == (client.name not in WITHOUT_FORMS)


def test_ai_sdk(random_serve: ServeProcess, work: Path) -> None:
    with wiretap(random_serve.url) as tap:
        run_node(SCRIPTS / "ai_sdk_held.mjs", at=work, **variables(tap.url, RANDOM_MODEL))
    found = held(tap.exchanges)
    assert (found.calls, found.forms) == (2, 2)
