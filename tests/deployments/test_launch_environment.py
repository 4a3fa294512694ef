from __future__ import annotations

import os

import pytest

from deployments.launch import __main__ as command
from deployments.launch import launcher

LONG = "/tmp/" + 55 * "x"


@pytest.mark.parametrize(
    ("given", "ray_tmpdir"),
    [
        ({}, None),
        ({"TMPDIR": "/tmp"}, None),
        ({"TMPDIR": LONG}, "/tmp"),
        ({"TMPDIR": LONG, "RAY_TMPDIR": "/mine"}, "/mine"),
    ],
)
def test_rays_sockets_have_short_paths_wherever_temporary_files_go(
    given: dict[str, str], ray_tmpdir: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = dict(given)
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(launcher, "main", lambda arguments: 0)
    assert command.run() == 0
    assert environment.get("RAY_TMPDIR") == ray_tmpdir


def test_the_longest_path_of_a_socket_is_one_that_systems_take() -> None:
    of_ray = "/ray/session_2026-11-22_22-12-11_123456_4194304/sockets/plasma_store"
    assert command.LONGEST_TMPDIR + len(of_ray) <= 107
