from __future__ import annotations

import io
import json
import logging
import math
import os
import shlex
import shutil
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import ray

from backend_metal.models.find import DEMO_DIRECTORY
from deployments.backend import EngineConfig
from deployments.command.serve import run
from deployments.launch import launcher as launch
from deployments.launch import prepare, start
from deployments.launch.live_terminal import LiveTerminal
from deployments.launch.output import ServerOutput
from deployments.launch.serve_config import (
    ENGINES,
    GATEWAYS,
    applications,
    check,
    engine_configs,
    names,
    with_address,
    with_model,
)
from deployments.launch.serve_status import ServeStatus, cause, failures
from deployments.launch.server import Server
from deployments.protocol.chat import ChatCompletionRequest
from deployments.settings import parse_settings
from tests.support.e2e.serve_process import free_port

pytestmark = pytest.mark.serve

APPLICATION = """
applications:
  - name: pomona
    import_path: deployments.app:build_app
    args: {engine: {modle: demo}, routing: {policy: dice}}
"""


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (APPLICATION, ["engine.modle: unknown key", "routing.policy: Input should be"]),
        ("applications: {", ["while parsing"]),
        ("engine: {model: demo}", ["needs a list `applications`"]),
        (None, ["No such file"]),
    ],
)
def test_a_bad_config_is_told_before_anything_starts(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    content: str | None,
    expected: list[str],
) -> None:
    monkeypatch.setattr(prepare, "prepare", lambda: None)
    path = tmp_path / "app.yaml"
    if content is not None:
        path.write_text(content)
    assert run(["--config", str(path)]) == 2
    told = capsys.readouterr().err
    assert all(part in told for part in [str(path), *expected])


@pytest.mark.parametrize("of_cluster", [False, True])
def test_a_port_in_use_ends_it_unless_it_may_be_the_clusters(
    of_cluster: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(launch, "joins_cluster", lambda: of_cluster)
    checked: list[EngineConfig] = []

    def stop_at_engines(engines: list[EngineConfig]) -> None:
        checked.extend(engines)
        raise ValueError("far enough")

    monkeypatch.setattr(launch, "_check_engines", stop_at_engines)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        config = with_address(config_of(), "127.0.0.1", port)
        assert launch.launch(config, None, LiveTerminal(io.StringIO())) == (2 if of_cluster else 1)
        assert f"Something listens at http://127.0.0.1:{port} already" in caplog.text
        assert bool(checked) == of_cluster
    caplog.clear()
    assert launch.launch(config, None, LiveTerminal(io.StringIO())) == 2
    assert "Something listens" not in caplog.text


def test_the_line_to_copy_is_a_request_that_the_server_takes() -> None:
    line = launch.curl("http://127.0.0.1:8000", "it's", with_keys=True)
    program, url, *arguments = shlex.split(line)
    assert (program, url) == ("curl", "http://127.0.0.1:8000/v1/chat/completions")
    assert "Authorization: Bearer YOUR-KEY" in arguments
    body = json.loads(arguments[arguments.index("-d") + 1])
    assert ChatCompletionRequest.model_validate(body).model == "it's"


@pytest.mark.parametrize(
    ("gateway", "urls"),
    [
        ({}, ["http://127.0.0.1:8000"]),
        ({"port": 9, "host": "0.0.0.0"}, ["http://127.0.0.1:9"]),
        ({"host": "::"}, ["http://[::1]:8000"]),
        ({"port": 9, "host": "fd00::3"}, ["http://[fd00::3]:9"]),
        # Nobody knows which it will be.
        ({"port": 0}, []),
    ],
)
@pytest.mark.parametrize("prefix", ["/", "/llm", None])
def test_where_a_client_on_this_machine_goes(
    gateway: dict[str, Any], urls: list[str], prefix: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Serve's prefixes are for its proxy."""
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    config = config_of(route_prefix=prefix, args={"gateway": gateway})
    assert [where for where, _ in applications(config)] == urls


def config_of(**application: Any) -> dict[str, Any]:
    ours = {"name": "pomona", "import_path": GATEWAYS, **application}
    engines = {"name": "engines", "import_path": ENGINES, "route_prefix": None}
    other = {"name": "other", "import_path": "somebody:else", "route_prefix": "/other"}
    return {"proxy_location": "Disabled", "applications": [other, engines, ours]}


@pytest.mark.parametrize(
    ("host", "gateway", "warned"),
    [
        ("127.0.0.1", {}, False),
        ("localhost", {}, False),
        ("0.0.0.0", {}, True),
        ("10.0.0.3", {}, True),
        ("10.0.0.3", {"api_keys": ["key"]}, False),
    ],
)
@pytest.mark.parametrize("is_nodes", [False, True])
def test_listening_to_others_without_a_key_is_warned_of(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    gateway: dict[str, Any],
    warned: bool,
    is_nodes: bool,
) -> None:
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: host)
    check(config_of(args={"gateway": gateway if is_nodes else gateway | {"host": host}}))
    assert ("gateway.api_keys_file" in caplog.text) == warned
    assert (f"gateway.host is {host}" in caplog.text) == warned


class Answers(BaseHTTPRequestHandler):
    """Says what ``statuses`` has for each path, the last one for ever."""

    statuses: dict[str, list[int]]

    def do_GET(self) -> None:
        left = self.statuses[self.path]
        status = left.pop(0) if len(left) > 1 else left[0]
        self.send_response(status)
        self.end_headers()
        body = {"status": "ready"} if status == 200 else {"error": {"message": f"no: {status}"}}
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def answering() -> Iterator[tuple[str, type[Answers]]]:
    handler = type("Answers", (Answers,), {"statuses": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    thread.join()
    server.server_close()


class Living(Server):
    """A server that says nothing, and lives for ``looks`` at it."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.output = ServerOutput([], LiveTerminal(io.StringIO()), verbose=False)

    def is_up(self) -> bool:
        self.looks -= 1
        return self.looks >= 0


def start_of(looks: int) -> start.Start:
    return start.Start(Living(looks), ["pomona"])


def test_readiness_is_waited_for(
    answering: tuple[str, type[Answers]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "POLL_INTERVAL_S", 0.0)
    url, handler = answering
    handler.statuses["/ready"] = [503, 503, 200]
    assert start_of(100).wait_until_ready(url)
    assert not start_of(3).wait_until_ready(closed_url())


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_probe_is_told_with_the_servers_words(
    answering: tuple[str, type[Answers]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    status: int,
) -> None:
    monkeypatch.setattr(start, "POLL_INTERVAL_S", 0.0)
    url, handler = answering
    handler.statuses["/ready"] = [status]
    with caplog.at_level(logging.INFO):
        assert not start_of(5).wait_until_ready(url)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert all(part in told[0] for part in (url, str(status), f"no: {status}"))


class Told(ServeStatus):
    """Serve's status as the test says it."""

    def __init__(self, *details: dict[str, Any]) -> None:
        self._left = list(details)

    def details(self) -> dict[str, Any]:
        return self._left.pop(0)


def status_of(status: str, message: str = "") -> dict[str, Any]:
    engine = {"status": status, "message": message}
    application = "DEPLOYING" if status == "UPDATING" else status
    gateway = {"status": "HEALTHY", "message": ""}
    deployments = {"EngineReplica": engine, "Gateway": gateway}
    return {"applications": {"pomona": {"status": application, "deployments": deployments}}}


def test_an_application_that_serve_gives_up_is_told_of_with_the_cause(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(start, "POLL_INTERVAL_S", 0.0)
    again = status_of("UPDATING", f"Retrying 2 more time(s). Error:\n{TRACEBACK}")
    given_up = status_of("DEPLOY_FAILED", f"It failed 3 times in a row. Error:\n{TRACEBACK}")
    followed = start_of(100)
    followed.status = Told({}, status_of("UPDATING"), again, again, given_up)
    with pytest.raises(start.DeployError, match=f"^EngineReplica: {CAUSE}$"):
        followed.wait_until_ready(closed_url())
    assert [record.getMessage() for record in caplog.records] == [
        f"Trying again, since it did not start: EngineReplica: {CAUSE}"
    ]


def test_a_model_that_takes_its_time_is_no_setback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While it loads, its engine tells how far it is; one that is silent is told of."""
    monkeypatch.setattr(start, "POLL_INTERVAL_S", 0.0)
    monkeypatch.setattr(start, "SLOW_START_S", 0.0)
    slow = status_of("UPDATING", "It has 1 replicas that have taken more than 30s to initialize.\n")
    followed = start_of(1)
    followed.status = Told(slow)
    followed._server.output.progress_at = math.inf
    assert not followed.wait_until_ready(closed_url())
    assert caplog.messages == []
    followed = start_of(1)
    followed.status = Told(slow)
    assert not followed.wait_until_ready(closed_url())
    assert caplog.messages == ["Still starting."]


CAUSE = "model '/nowhere': there is no such directory"
TRACEBACK = f"""\
ray::ServeReplica:pomona:EngineReplica.initialize_and_get_metadata() (pid=1, ip=192.0.2.2)
  File "replica.py", line 1928, in initialize
    raise RuntimeError(traceback.format_exc()) from None
RuntimeError: Traceback (most recent call last):
  File "find.py", line 49, in find_checkpoint
    raise ValueError(f"model {{model!r}}: there is no such directory")
    ^^^^^^^^^^^^^^^^^
ValueError: {CAUSE}
"""


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (TRACEBACK, CAUSE),
        ("The actor died.\n  Look at its log.\n", "The actor died.\n  Look at its log."),
        (
            '\n  File "app.py", line 1, in build_app\nSettingsError: wrong:\n  engine.modle: no\n',
            "SettingsError: wrong:\n  engine.modle: no",
        ),
    ],
)
def test_the_cause_is_what_ends_the_last_traceback(message: str, expected: str) -> None:
    assert cause(message) == expected


def test_an_application_that_could_not_be_built_has_its_own_cause() -> None:
    application = {"status": "DEPLOY_FAILED", "message": TRACEBACK, "deployments": {}}
    details = {"applications": {"pomona": application, "another": application}}
    assert failures(details, ["pomona", "absent"]) == [CAUSE]


def test_a_model_that_is_not_there_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # No cluster that runs already.
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    config = with_address(with_model(config_of(), str(tmp_path / "absent")), None, free_port())
    assert launch.launch(config, None, LiveTerminal(io.StringIO())) == 2
    assert caplog.messages[-1].endswith(f"{str(tmp_path / 'absent')!r}: there is no such directory")


def test_half_a_download_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    model = shutil.copytree(DEMO_DIRECTORY, tmp_path / "half")
    os.truncate(model / "model.safetensors", 3_000_000)
    config = with_address(with_model(config_of(), str(model)), None, free_port())
    assert launch.launch(config, None, LiveTerminal(io.StringIO())) == 2
    assert "model.safetensors is not all there: it has 3,000,000 of 6," in caplog.messages[-1]
    assert "\n" not in caplog.messages[-1]


def test_a_model_of_the_hub_without_a_network_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", closed_url())
    config = with_address(with_model(config_of(), "somebody/model"), None, free_port())
    assert launch.launch(config, None, LiveTerminal(io.StringIO())) == 2
    assert "'somebody/model' is neither a local directory nor in the" in caplog.messages[-1]
    assert "the hub can't be reached: " in caplog.messages[-1]
    assert "\n" not in caplog.messages[-1]


@pytest.mark.parametrize("page", [True, False])
def test_the_last_lines_say_where_it_is(page: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    settings = parse_settings({"gateway": {"page": page}})
    launch.announce("http://127.0.0.1:9", settings, [EngineConfig(model="demo")])
    told = caplog.messages
    assert "base_url=http://127.0.0.1:9/v1 " in told[0]
    assert ("A page to chat and to watch: http://127.0.0.1:9/" in told) == page
    assert "curl http://127.0.0.1:9/v1/chat/completions" in told[-1]


def test_another_model_takes_the_place_of_the_configs() -> None:
    engine = {
        "model": "demo",
        "revision": "v1",
        "served_model_name": "ours",
        "generation_defaults": {"temperature": 0.2},
        "max_num_seqs": 4,
    }
    config = config_of(args={"engine": engine})
    changed = with_model(config, "somebody/model")
    assert [one.model for one in engine_configs(changed)] == ["somebody/model"] * 2
    [_, _, ours] = changed["applications"]
    assert ours["args"]["engine"] == {"model": "somebody/model", "max_num_seqs": 4}
    assert config["applications"][2]["args"]["engine"] == engine


def test_gateways_of_other_applications_engines_have_no_model() -> None:
    config = config_of(args={"gateway": {"engines": "engines"}})
    changed = with_model(config, "somebody/model")
    assert [one.model for one in engine_configs(changed)] == ["somebody/model"]
    assert names(changed) == ["engines", "pomona"]


def closed_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"
