from __future__ import annotations

import io
import json
import logging
import os
import shlex
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from huggingface_hub import constants
from ray import serve
from ray._private.services import canonicalize_bootstrap_address
from ray.serve._private.common import DeploymentStatus, DeploymentStatusTrigger
from ray.serve.schema import (
    ApplicationStatus,
    ApplicationStatusOverview,
    DeploymentStatusOverview,
    ServeStatus,
)

from backend_metal.models.load.find import DEMO_DIRECTORY
from deployments.backend import EngineConfig
from deployments.command.serve import run
from deployments.launch import deploy, model_check, prepare
from deployments.launch import launcher as launch
from deployments.launch.deploy import Start
from deployments.launch.live_terminal import LiveTerminal
from deployments.launch.phases import DeployError
from deployments.launch.serve_config import (
    ENGINES,
    GATEWAYS,
    applications,
    check,
    engine_configs,
    names,
    with_address,
    with_model,
    with_settings,
)
from deployments.launch.serve_status import cause, failures, setbacks
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
    monkeypatch.setattr(launch, "_run", lambda config, terminal, *, verbose: 7)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        config = with_address(config_of(), "127.0.0.1", port)
        assert launch.launch(config, None, LiveTerminal(io.StringIO())) == (7 if of_cluster else 1)
        assert f"Something listens at http://127.0.0.1:{port} already" in caplog.text
    caplog.clear()
    assert launch.launch(config, None, LiveTerminal(io.StringIO())) == 7
    assert "Something listens" not in caplog.text


def test_the_line_to_copy_is_a_request_that_the_server_takes() -> None:
    line = deploy.curl("http://127.0.0.1:8000", "it's", with_keys=True)
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


def start_after(looks: int, monkeypatch: pytest.MonkeyPatch) -> Start:
    """One that ends with the last of ``looks`` at Serve's status, all of which is well."""
    monkeypatch.setattr(deploy, "POLL_INTERVAL_S", 0.0)
    monkeypatch.setattr(deploy, "STATUS_INTERVAL_S", 0.0)
    statuses = iter([ServeStatus()] * looks)
    monkeypatch.setattr(serve, "status", lambda: next(statuses))
    return Start(["pomona"])


def test_readiness_is_waited_for(
    answering: tuple[str, type[Answers]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, handler = answering
    handler.statuses["/ready"] = [503, 503, 200]
    start_after(2, monkeypatch).wait_until_ready(url)
    with pytest.raises(StopIteration):
        start_after(3, monkeypatch).wait_until_ready(closed_url())


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_probe_is_told_with_the_servers_words(
    answering: tuple[str, type[Answers]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    status: int,
) -> None:
    url, handler = answering
    handler.statuses["/ready"] = [status]
    with pytest.raises(StopIteration):
        start_after(5, monkeypatch).wait_until_ready(url)
    [told] = caplog.messages
    assert all(part in told for part in (url, str(status), f"no: {status}"))


def status_of(status: str, message: str = "") -> dict[str, ApplicationStatusOverview]:
    engine = DeploymentStatusOverview(
        DeploymentStatus(status), DeploymentStatusTrigger.UNSPECIFIED, {}, message
    )
    application = ApplicationStatus("DEPLOYING" if status == "UPDATING" else status)
    return {"pomona": ApplicationStatusOverview(application, "", 0.0, {"EngineReplica": engine})}


def test_an_application_that_serve_gives_up_is_told_of_with_the_cause(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    again = status_of("UPDATING", f"Retrying 2 more time(s). Error:\n{TRACEBACK}")
    given_up = status_of("DEPLOY_FAILED", f"It failed 3 times in a row. Error:\n{TRACEBACK}")
    start = start_after(0, monkeypatch)
    found = iter([{}, status_of("UPDATING"), again, again, given_up])
    monkeypatch.setattr(serve, "status", lambda: ServeStatus(applications=next(found)))
    with pytest.raises(DeployError, match=f"^EngineReplica: {CAUSE}$"):
        start.wait_until_ready(closed_url())
    assert caplog.messages == [f"Trying again, since it did not start: EngineReplica: {CAUSE}"]


def test_a_model_that_takes_its_time_is_no_setback() -> None:
    slow = "It has 1 replicas that have taken more than 30s to initialize.\n"
    assert setbacks(status_of("UPDATING", slow), ["pomona"]) == []


@pytest.mark.parametrize(
    ("change", "is_built_here"),
    [
        ({}, True),
        ({"args": {"engine": {"model": "demo"}}, "route_prefix": "/"}, True),
        ({"import_path": "somebody:else"}, False),
        ({"deployments": [{"name": "EngineReplica", "max_ongoing_requests": 5}]}, False),
        ({"runtime_env": {}}, False),
    ],
)
def test_what_serve_has_to_build_itself(change: dict[str, Any], is_built_here: bool) -> None:
    config = {"applications": [{"name": "pomona", "import_path": GATEWAYS, **change}]}
    assert deploy._is_built_here(config) == is_built_here
    assert not deploy._is_built_here(config | {"logging_config": {}})


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
    failed = ApplicationStatusOverview(ApplicationStatus.DEPLOY_FAILED, TRACEBACK, 0.0, {})
    assert failures({"pomona": failed, "another": failed}, ["pomona", "absent"]) == [CAUSE]


class Waiting:
    """A server that is up until the models' check has its result."""

    def __init__(self, *_: object, **__: object) -> None:
        self.events = self

    def is_up(self) -> bool:
        return True

    def show_waiting(self) -> None:
        pass

    def end(self) -> str:
        return "ended"


def test_what_engines_cannot_serve_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # No cluster that runs already.
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(launch, "Server", Waiting)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    config = with_settings(config_of(), {"engine.backend": "another"})
    config = with_address(config, "127.0.0.1", free_port())
    assert launch.launch(config, None, LiveTerminal(io.StringIO())) == 2
    assert "'another'" in caplog.messages[-1]


def mistake(model: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the check of ``model`` finds wrong."""
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(with_model(config_of(), model)))
    assert model_check.main(str(path)) == 2
    told = capsys.readouterr().out
    assert "\n" not in told
    return told


def test_a_model_that_is_not_there_is_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mistake("/absent", tmp_path, capsys).endswith("'/absent': there is no such directory")


def test_half_a_download_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = shutil.copytree(DEMO_DIRECTORY, tmp_path / "half")
    os.truncate(model / "model.safetensors", 3_000_000)
    told = mistake(str(model), tmp_path, capsys)
    assert "model.safetensors is not all there: it has 3,000,000 of 6," in told


def test_a_model_of_the_hub_without_a_network_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "ENDPOINT", closed_url())
    told = mistake("somebody/model", tmp_path, capsys)
    assert "'somebody/model' is neither a local directory nor in the" in told
    assert "the hub can't be reached: " in told


@pytest.mark.parametrize(
    ("address", "is_written", "joins"),
    [
        (None, False, False),
        ("local", True, False),
        ("10.0.0.3:6379", False, True),
        (None, True, True),
    ],
)
def test_a_cluster_that_runs_already_is_joined(
    address: str | None,
    is_written: bool,
    joins: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As Ray does it."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address:
        monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    if is_written:
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.3:6379")
    assert launch.joins_cluster() == joins
    found = canonicalize_bootstrap_address(None)  # type: ignore[arg-type]
    assert (found is not None) == joins


@pytest.mark.parametrize("page", [True, False])
def test_the_last_lines_say_where_it_is(page: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    settings = parse_settings({"gateway": {"page": page}})
    deploy.announce("http://127.0.0.1:9", settings, [EngineConfig(model="demo")], 14.25)
    told = caplog.messages
    assert told[0].startswith("Ready. ")
    assert "base_url=http://127.0.0.1:9/v1 " in told[0]
    assert "14.2 s" in told[0]
    assert ("A page to chat and to watch: http://127.0.0.1:9/" in told) == page
    assert ("Lines to copy for coding agents: http://127.0.0.1:9/#/connect" in told) == page
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
