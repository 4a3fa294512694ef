"""Which kind of tests a file has, and what a unit test cannot import."""

from __future__ import annotations

import sys

import pytest

from tests.support.kinds import TESTS, NoHeavyImports, kind


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("backend_metal/test_engine.py", "engine"),
        ("metal_on_cpu", "engine"),
        ("page/test_chat.py", "serve"),
        ("deployments", None),
        ("deployments/test_protocol.py", "unit"),
        ("deployments/test_app.py", "serve"),
    ],
)
def test_a_file_has_a_kind(path: str, expected: str | None) -> None:
    assert kind(TESTS / path) == expected


def test_a_unit_test_that_imports_ray_fails_and_names_the_mark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [one for one in sys.modules if one.partition(".")[0] in ("ray", "mlx")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [NoHeavyImports(), *sys.meta_path])
    for name in ("ray", "mlx.core"):
        with pytest.raises(ImportError, match=r"pytest\.mark\.serve"):
            __import__(name)
