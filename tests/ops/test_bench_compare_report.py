"""What the figures of all rounds come to, and how they are shown."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from ops.bench.compare.chart import Point, Scale, draw
from ops.bench.compare.model import Weights
from ops.bench.compare.report import chart, report
from ops.bench.compare.results import Failure, Results, Start, Trial
from ops.bench.machine import Machine

pytestmark = pytest.mark.serve

SVG = "{http://www.w3.org/2000/svg}"
MACHINE = Machine("chip", 2, "BLAS", 10e9, read_bytes_per_second=8e9, gemm_flops=100e9)


def trial(peer: str, number: int, at_once: int, rate: float, failed: int = 0) -> Trial:
    return Trial(peer, "f32", number, at_once, rate, 0.25, 0.02, 1.28, failed)


@pytest.fixture
def results() -> Results:
    found = Results(failures=[Failure("late", "f32", 0, "why\nlast words\n")])
    rates = {"pomona": (100.0, 300.0, 200.0), "other": (50.0, 60.0, 200.0)}
    for peer, of_rounds in rates.items():
        for number, rate in enumerate(of_rounds):
            said = ("a", "b" if peer == "pomona" or number else "c")
            found.starts.append(Start(peer, "f32", number, 3.0 + number, 64 << 20, said))
            found.trials += [trial(peer, number, 1, rate / 4), trial(peer, number, 8, rate)]
    found.trials.append(trial("alone", 0, 8, 5.0, failed=3))
    found.starts.append(Start("alone", "f32", 0, 1.0, 1 << 20, ("a", "b")))
    return found


def test_a_lead_is_the_median_of_the_rounds_own(results: Results) -> None:
    def rate(one: Trial) -> float:
        return one.output_tokens_per_second

    # Of 2, 5 and 1, where the medians' ratio would be 3.3.
    assert results.lead("f32", "pomona", "other", 8, rate) == 2.0
    assert results.median("f32", "pomona", 8, rate) == 200.0
    assert results.lead("f32", "pomona", "alone", 8, rate) == 20.0
    assert results.lead("f32", "pomona", "alone", 1, rate) is None
    assert results.median("4-bit", "pomona", 8, rate) is None


def test_whole_answers_are_compared_with_the_first(results: Results) -> None:
    assert results.said_alike("f32") == {"pomona": 1.0, "other": 5 / 6, "alone": 1.0}
    assert results.said_alike("8-bit") == {}


def test_a_report(results: Results, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\0" * (8 << 20))
    weights = [Weights("f32", tmp_path, tmp_path / "f32.gguf")]
    about = {"pomona": "1.0", "omlx": "not installed: Homebrew, on a Mac"}
    text = report(results, MACHINE, weights, about, "pomona")
    for line in (
        "- omlx: not installed: Homebrew, on a Mac",
        "| output tokens a second, median of rounds (range) | 1 at once | 8 at once |",
        "| f32, pomona | 50.0 (25.0 to 75.0) | 200.0 (100.0 to 300.0) |",
        "| f32, alone | - | 5.0 (5.0 to 5.0) |",
        "| pomona is faster by | 1 at once | 8 at once | decode at 1 |",
        "| f32, other | 2.00 | 2.00 | 1.00 |",
        "| f32, alone | - | 20.00 | - |",
        "| f32, pomona | 250.0 / 20.0 | 250.0 / 20.0 |",
        # 50 tokens a second of 8 MiB each, of 8 GB/s.
        "| f32, pomona | 50.0 | 5% | 8 | 64 | 3.0 |",
        "f32: greedy answers that are pomona's to the last letter: pomona 100%, other 83%, "
        "alone 100%.",
        "Requests that were not answered as they asked: 3.",
        "late, f32, round 1: last words",
    ):
        assert line in text.splitlines(), line


def test_a_chart_has_a_point_for_each_load(results: Results) -> None:
    drawn = ElementTree.fromstring(chart(results, output_tokens=64))
    assert drawn.tag == f"{SVG}svg"
    points = [one for one in drawn.iter(f"{SVG}circle") if one.get("r") == "3"]
    assert len(points) == 2 + 2 + 1
    texts = [one.text for one in drawn.iter(f"{SVG}text")]
    assert {"f32", "pomona", "other", "alone"} <= set(texts)
    assert texts.count("8") == 3


def test_points_are_where_the_axes_say() -> None:
    panel = {"a": [Point(10, 100, "1"), Point(40, 400, "8")], "b<": [Point(20, 200, "1")]}
    drawn = ElementTree.fromstring(draw({"p": panel}, "x", "y"))
    places = [
        (float(one.get("cx", "")), float(one.get("cy", "")))
        for one in drawn.iter(f"{SVG}circle")
        if one.get("r") == "3"
    ]
    (ax, ay), (bx, by), (cx, cy) = places
    # Twice as far from the axis, which is at 56; half way between in a logarithm.
    assert (bx - 56) == pytest.approx(4 * (ax - 56), abs=0.5)
    assert (cx - 56) == pytest.approx(2 * (ax - 56), abs=0.5)
    assert cy == pytest.approx((ay + by) / 2, abs=0.2)
    assert by < cy < ay
    assert "b<" in [one.text for one in drawn.iter(f"{SVG}text")]


def test_ticks_are_round_and_inside() -> None:
    assert Scale(0, 480, 0, 1).ticks() == [0, 200, 400]
    assert Scale(0, 7.7, 0, 1).ticks() == [0, 2, 4, 6]
    assert Scale(3, 240, 0, 1, logarithmic=True).ticks() == [5, 10, 20, 50, 100, 200]


@pytest.mark.parametrize("panels", [{}, {"p": {}}, {"p": {"a": [Point(0, 1, "1")]}}])
def test_a_chart_of_nothing_is_refused(panels: dict[str, dict[str, list[Point]]]) -> None:
    with pytest.raises(ValueError, match="above zero"):
        draw(panels, "x", "y")
