from __future__ import annotations

import pytest

from ops.bench.page.__main__ import Bench, report
from ops.bench.page.browser import MissingBrowserError, chromium
from ops.bench.page.frames import Frames
from ops.bench.page.server import CHARACTERS, KINDS, THOUGHTS, pieces_of, serve
from ops.bench.relay.servers import process
from tests.support.page.browser import skip_without

pytestmark = pytest.mark.serve


@pytest.mark.exhaustive
def test_a_small_run_in_a_browser() -> None:
    with process(serve, 500.0) as (url, _):
        try:
            with chromium() as browser:
                bench = Bench(browser, url)
                num_requests, kilobytes, *times = bench.opened(1)
                assert 20 < int(num_requests) <= 32
                assert 50 < int(kilobytes) < 150
                assert all(int(time) > 0 for time in times)
                ready_ms, scrolled = bench.history(200, num_frames=20)
                assert ready_ms > 0
                assert len(scrolled.times_ms) > 5
                for kind in ("mixed", THOUGHTS):
                    assert bench.answer(kind, 40).num_nodes > 100
        except MissingBrowserError as error:
            skip_without(error)


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_has_its_tokens(kind: str) -> None:
    begin, again = KINDS[kind]
    pieces = pieces_of(begin, again, 100)
    assert {len(piece) for piece in pieces} == {CHARACTERS}
    assert len(pieces) == 100
    assert "".join(pieces).startswith((begin + again)[: CHARACTERS * 100])


def test_a_report() -> None:
    frames = Frames([16.0] * 98 + [50.0, 90.0], [60.0, 70.0], 1234)
    assert report([("mixed", frames)]).splitlines()[2:] == ["| mixed | 16 | 50 | 90 | 2 | 1234 |"]
