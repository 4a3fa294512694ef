"""The table of clients names those that are tried, in the versions that are."""

from __future__ import annotations

import re
import tomllib

from tests.clients.clients import AIDER, HARNESSES, NODE_PACKAGES, OPEN_WEBUI, PYTHON_CLIENTS
from tests.support.e2e.serve_process import REPOSITORY

TABLE = REPOSITORY / "deployments" / "protocol" / "clients.md"
HELPERS = (
    "@ai-sdk/openai-compatible",
    "zod",
    "langchain-openai",
    "llama-index-llms-openai-like",
    "transformers",
    "playwright",
)


def test_every_client_that_is_tried_is_told_with_its_version() -> None:
    clients = (*PYTHON_CLIENTS, AIDER, *HARNESSES, OPEN_WEBUI)
    pins = [pin for one in clients for pin in one.requirements]
    pins += ["==".join(package.rsplit("@", 1)) for package in NODE_PACKAGES]
    versions = [
        version for name, version in (pin.split("==") for pin in pins) if name not in HELPERS
    ]
    told = re.findall(r"^\| [^|]+ \| ([\d.]+) \|", TABLE.read_text(), re.MULTILINE)
    assert sorted(told) == sorted(versions)


def test_light_clients_are_those_of_the_extra() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    light = {pin for one in PYTHON_CLIENTS if one.is_light for pin in one.requirements}
    assert light == {*project["optional-dependencies"]["clients"]}
