"""With CI set, only skips that are listed leave a run green."""

from __future__ import annotations

import pytest

from tests.support.skips import ALLOWED, SkipCheck, patterns

pytest_plugins = ["pytester"]


def test_a_line_is_a_pattern_and_a_reason() -> None:
    assert list(patterns("# why\n\ntests/a.py::test_* needs a Mac\n")) == ["tests/a.py::test_*"]
    with pytest.raises(ValueError, match="expected 2"):
        list(patterns("tests/a.py::test_b\n"))
    list(patterns(ALLOWED.read_text()))


@pytest.mark.parametrize(("allowed", "status"), [("*::test_one", 0), ("*::test_two", 1)])
def test_a_skip_that_is_not_listed_fails_the_run(
    pytester: pytest.Pytester, allowed: str, status: int
) -> None:
    pytester.makepyfile("""
        import pytest

        def test_one():
            pytest.skip("no Mac")
    """)
    result = pytester.inline_run("-p", "no:xdist", plugins=[SkipCheck([allowed])])
    assert result.ret == status
