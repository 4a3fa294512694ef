from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from deployments.http.server import HttpServer
from deployments.protocol import parse_body
from ops.bench.sessions import __main__ as sessions
from ops.bench.sessions import scripts, tiny_model
from ops.bench.sessions.fleet import Replicas, fleet, replicas
from ops.bench.sessions.ideal import ideal_tokens
from ops.bench.sessions.recording import RecordedRequest, Recording, load, save
from ops.bench.sessions.replay import Replay, without_marks
from ops.bench.sessions.scripted_model import TITLE, Answer, ScriptedModel
from ops.bench.sessions.synthetic import synthetic

pytestmark = pytest.mark.serve

CONTENDERS = {one.name: one for one in sessions.CONTENDERS}
AFFINITY, UNKNOWN, _, ROUND_ROBIN, _ = sessions.CONTENDERS


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_model.save(folder, sessions.DEMO, sessions.TEMPLATE.read_text())
    return folder


@asynccontextmanager
async def three(model: Path) -> AsyncIterator[Replicas]:
    async with replicas(model, 3, cache_tokens=65_536) as behind:
        yield behind


def of_one_person() -> Recording:
    return {"orchard": synthetic()["orchard"][:1]}


@pytest.mark.exhaustive
async def test_sessions_compute_what_the_template_makes_them_compute(model: Path) -> None:
    async with three(model) as behind:
        ours = await sessions.measure(AFFINITY, synthetic(), behind, 5.0)
        unknown = await sessions.measure(UNKNOWN, synthetic(), behind, 5.0)
        in_turn = await sessions.measure(ROUND_ROBIN, synthetic(), behind, 5.0)
    assert ours.times_ideal <= 1.15
    assert unknown.computed_tokens > 1.2 * ours.ideal_tokens
    assert in_turn.computed_tokens > 2 * ours.ideal_tokens
    assert ours.prompt_tokens == in_turn.prompt_tokens > 5 * ours.ideal_tokens
    assert ours.ideal_tokens == pytest.approx(in_turn.ideal_tokens, rel=0.01)
    table = sessions.report([ours, unknown, in_turn])
    assert f"| the ideal | {ours.prompt_tokens:,} | {ours.ideal_tokens:,} | 1.00 |" in table
    assert f"| round robin | {in_turn.prompt_tokens:,} | {in_turn.computed_tokens:,} |" in table


@pytest.mark.parametrize("answer_s", [1.0, 60.0])
async def test_whoever_works_alone_stays_where_the_prompt_is(model: Path, answer_s: float) -> None:
    async with three(model) as behind:
        ours = await sessions.measure(AFFINITY, of_one_person(), behind, answer_s)
    assert ours.times_ideal <= 1.15


async def test_a_replay_keeps_the_order_and_the_pauses_of_a_session(model: Path) -> None:
    """Two requests at once, and one that waits for both answers."""
    first, second, third = synthetic()["orchard"][0][:3]
    recorded = [
        RecordedRequest(10.0, 11.0, first.headers, first.body),
        RecordedRequest(10.5, 13.0, second.headers, second.body),
        RecordedRequest(13.25, 14.0, third.headers, third.body),
    ]
    async with (
        three(model) as behind,
        fleet(behind, sessions.shipped()) as running,
        httpx.AsyncClient(timeout=60) as client,
    ):
        await Replay(running, client, 4.0).run({"orchard": [recorded]})
        # The second begins half a second after the first and takes 4; the third follows it.
        assert running.clock.time == pytest.approx(0.5 + 4 + 0.25 + 4 + 60)
        lengths = [len(prompt) for prompt in running.held.prompts]
        assert running.prompt_tokens == sum(lengths)
        assert lengths[0] < lengths[1] < lengths[2]


async def test_a_request_that_is_refused_ends_a_replay(model: Path) -> None:
    one = synthetic()["orchard"][0][0]
    wrong = RecordedRequest(0.0, 1.0, one.headers, {**one.body, "max_tokens": -1})
    async with (
        three(model) as behind,
        fleet(behind, sessions.shipped()) as running,
        httpx.AsyncClient(timeout=60) as client,
    ):
        with pytest.raises(httpx.HTTPStatusError, match="max_tokens"):
            await Replay(running, client, 1.0).run({"orchard": [[wrong]]})


def test_the_ideal_computes_each_block_once_and_the_last_token_always() -> None:
    one = list(range(40))
    assert ideal_tokens([one], 16) == 40
    # Both whole blocks of it are known.
    assert ideal_tokens([one, one], 16) == 40 + 8
    assert ideal_tokens([one[:32], one[:32]], 16) == 32 + 16
    assert ideal_tokens([one, [*one[:20], 7, 7]], 16) == 40 + 6
    # A block is known for what is before it.
    assert ideal_tokens([one, one[16:]], 16) == 40 + 24


async def test_made_up_requests_are_ones_that_are_served() -> None:
    for place_sessions in synthetic().values():
        for session in place_sessions:
            for one in (*session, *map(without_marks, session)):
                await parse_body("/v1/messages", json.dumps(one.body).encode())


def test_clients_without_marks_have_no_session() -> None:
    one = synthetic()["orchard"][0][1]
    unknown = without_marks(one)
    assert "x-claude-code-session-id" in one.headers
    assert unknown.headers == {}
    assert "metadata" not in unknown.body
    assert one.body["system"][0]["text"].startswith("x-anthropic-billing-header:")
    assert not unknown.body["system"][0]["text"].startswith("x-anthropic-billing-header:")


def test_recordings_are_read_as_they_were_saved(tmp_path: Path) -> None:
    made_up = synthetic()
    for place, found in made_up.items():
        for number, session in enumerate(found):
            save(session, tmp_path / place / f"{number}.jsonl")
    assert load(tmp_path) == {name: made_up[name] for name in sorted(made_up)}
    with pytest.raises(ValueError, match="has no recordings"):
        load(tmp_path / "orchard")


async def test_a_scripted_model_answers_in_turn_and_keeps_what_it_is_asked() -> None:
    model = ScriptedModel()
    server = HttpServer(model.app, host="127.0.0.1", port=0)
    url = await server.start()
    model.begin()
    call = Answer("Now a.py.", "It comes next.", "Read", {"file_path": "a.py"})
    model.prepare([call, Answer("Done.")])
    tools = {"model": "scripted", "tools": [{"name": "Read"}]}
    try:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            assert (await client.head("/")).status_code == 200
            asked = [tools, {"model": "scripted"}, tools]
            answers = [await client.post("/v1/messages?beta=true", json=one) for one in asked]
        async with asyncio.timeout(60):
            await model.turn_end()
    finally:
        await server.stop()
    first, title, last = (answer.text for answer in answers)
    assert '"thinking":"It comes next."' in first
    assert json.dumps(json.dumps(call.arguments)) in first
    assert '"stop_reason":"tool_use"' in first
    assert json.dumps(TITLE) in title
    assert '"text":"Done."' in last
    assert '"stop_reason":"end_turn"' in last
    assert [one.body for one in model.end()] == asked


def test_a_script_does_what_its_folder_allows(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        (tmp_path / f"{name}.py").write_text(f'"""About {name}."""\n')
    for number in range(scripts.SESSIONS):
        answers = [one for turn in scripts.session(tmp_path, number) for one in turn.answers]
        [edit] = [one for one in answers if one.tool == "Edit"]
        text = Path(edit.arguments["file_path"]).read_text()
        assert text.count(edit.arguments["old_string"]) == 1
        reads = [Path(one.arguments["file_path"]) for one in answers if one.tool == "Read"]
        assert len(reads) == scripts.READS
        assert all(path.exists() for path in reads)
        assert not answers[-1].tool
