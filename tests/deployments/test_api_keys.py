"""Key rings, and the files that keys are in."""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import sys
import threading
from pathlib import Path

import pytest

from deployments.gateway.access import keys_file
from deployments.gateway.access.api_keys import ApiKey, KeyRing
from deployments.gateway.access.keys_file import read_keys_file
from deployments.gateway.access.rate_limits import NO_LIMITS, RateLimits
from deployments.gateway.access.watched_keys import KeySource
from deployments.settings import SettingsError, parse_settings

DIGEST = hashlib.sha256(b"beta-key").hexdigest()
NAMED = f"""
keys:
  - name: search
    key: alpha-key
    requests_per_minute: 60
    tokens_per_minute: 1000.5
    max_concurrent_requests: 2
    priority: -3
    weight: 2.5
  - name: chat
    sha256: ["{DIGEST}", "{DIGEST[::-1].upper()}"]
"""


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_key_ring_finds_its_keys_alone() -> None:
    ring = KeyRing([ApiKey.of("one", "alpha", "old-alpha"), ApiKey.of("two", "beta")])
    found = [ring.find(key) for key in ("alpha", "old-alpha", "beta")]
    assert [key.name if key else None for key in found] == ["one", "one", "two"]
    for wrong in ("", "alph", "alphaa", "ALPHA", "b\u00e9ta", "\udcff"):
        assert ring.find(wrong) is None
    assert ring
    assert not KeyRing([])


def test_a_look_up_is_as_much_work_whatever_the_number_of_keys() -> None:
    def num_calls(ring: KeyRing, presented: str) -> int:
        calls: list[str] = []
        sys.setprofile(lambda frame, event, argument: calls.append(event))
        try:
            ring.find(presented)
        finally:
            sys.setprofile(None)
        return len(calls)

    few, many = (
        KeyRing(ApiKey.of(f"name-{i}", f"key-{i}") for i in range(count)) for count in (1, 1000)
    )
    work = {
        num_calls(ring, presented) for ring in (few, many) for presented in ("key-0", "wrong", "")
    }
    assert len(work) == 1


def test_a_tenant_stays_itself_when_its_line_moves(tmp_path: Path) -> None:
    before = read_keys_file(written(tmp_path / "keys", "alpha\nbeta\n"))
    after = read_keys_file(written(tmp_path / "keys", "beta\n"))
    assert (before[0].name, after[0].name) == ("line-1", "line-1")
    assert before[1].tenant == after[0].tenant != before[0].tenant
    assert ApiKey.of("search", "old").tenant == ApiKey.of("search", "new", "old").tenant == "search"


def test_names_and_keys_come_once() -> None:
    with pytest.raises(ValueError, match="name one comes twice"):
        KeyRing([ApiKey.of("one", "alpha"), ApiKey.of("one", "beta")])
    with pytest.raises(ValueError, match="a key comes twice"):
        KeyRing([ApiKey.of("one", "alpha"), ApiKey.of("two", "alpha")])


def test_a_file_of_lines(tmp_path: Path) -> None:
    file = written(tmp_path / "keys", "# operators\n\n  alpha-key  \nbeta-key\n")
    settings = parse_settings({"gateway": {"api_keys": ["gamma"], "api_keys_file": str(file)}})
    source = KeySource.of(settings.gateway)
    ring = source.keys()
    names = [
        found.name if (found := ring.find(key)) else None
        for key in ("gamma", "alpha-key", "beta-key", "# operators")
    ]
    assert names == ["settings-1", "line-3", "line-4", None]
    assert (source.from_file[0].limits, bool(source)) == (NO_LIMITS, True)


def test_a_file_of_names_and_limits(tmp_path: Path) -> None:
    search, chat = read_keys_file(written(tmp_path / "keys.yaml", NAMED))
    digest = hashlib.sha256(b"alpha-key").digest()
    assert search == ApiKey("search", (digest,), RateLimits(60, 1000.5, 2), priority=-3, weight=2.5)
    ring = KeyRing([search, chat])
    assert ring.find("beta-key") == chat
    assert (chat.name, len(chat.digests), chat.limits) == ("chat", 2, NO_LIMITS)
    assert (chat.priority, chat.weight) == (0, 1.0)


@pytest.mark.parametrize("name", ["keys", "keys.yaml"])
def test_nothing_that_is_kept_holds_a_key(tmp_path: Path, name: str) -> None:
    text = NAMED if name.endswith("yaml") else "alpha-key\n"
    file = written(tmp_path / name, text)
    settings = parse_settings({"gateway": {"api_keys_file": str(file)}})
    source = KeySource.of(settings.gateway)
    assert b"alpha-key" not in pickle.dumps(source)
    digest = source.from_file[0].digests[0]
    assert "alpha-key" not in repr(source)
    assert repr(digest) not in repr(source)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("keys", None, "No such file"),
        ("keys", "# nothing\n", "holds no key"),
        ("keys", "ok\ntwo secrets\n", "line 2 of the file must be printable ASCII without spaces"),
        ("keys", "same-secret\nsame-secret\n", "a key comes twice"),
        ("keys.yaml", "keys: []\n", "holds no key"),
        ("keys.yaml", "", "should be a valid dictionary"),
        ("keys.yaml", "keys: [secret: {\n", "not YAML at line 2"),
        ("keys.yaml", "keys:\n  - {name: 2026-99-99, key: secret}\n", "not YAML"),
        ("keys.yaml", "keys:\n  - {name: a, key: !!int secret}\n", "not YAML"),
        ("keys.yaml", "keys:\n  - {name: a, key: !!bool secret}\n", "not YAML"),
        ("keys.yaml", "keys: " + "[" * 500, "nests more than 8 levels deep at line 1"),
        # So deep that newer versions of libyaml refuse it themselves.
        ("keys.yaml", "keys: " + "[" * 100_000, " at line 1"),
        ("keys.yaml", "".join(f"{' ' * i}a:\n" for i in range(12)), "8 levels deep at line 9"),
        ("keys.yaml", "keys:\n  - {key: secret}\n", "line 2: name: Field required"),
        ("keys.yaml", "keys:\n  - {name: a}\n", "line 2: Value error, needs key or sha256"),
        ("keys.yaml", "keys:\n  - {name: a, key: two secrets}\n", "without spaces"),
        ("keys.yaml", "keys:\n  - {name: a, key: 12345}\n", "line 2: key: "),
        ("keys.yaml", "keys:\n  - {name: a, sha256: secret}\n", "line 2: sha256: "),
        ("keys.yaml", "keys:\n  - {name: a b, key: secret}\n", "line 2: name: "),
        ("keys.yaml", "keys:\n  - {name: a, key: secret, rpm: 5}\n", "line 2: Extra inputs"),
        ("keys.yaml", "# these\nmy-secret: alice\n", "line 2: Extra inputs"),
        ("keys.yaml", "keys:\n  - name: a\n    key: b\n    my-secret: 5\n", "line 4: Extra inputs"),
        ("keys.yaml", "keys:\n  - name: a\n    key:\n      - b\n      - 5\n", "line 5: key: "),
        ("keys.yaml", "keys:\n  my-secret:\n    a: b\n", "line 1: "),
        ("keys.yaml", "keys:\n  - my-secret\n", "line 2: "),
        (
            "keys.yaml",
            "keys:\n" + "  - my-secret\n" * 9,
            "line 6: Input should be a valid dictionary",
        ),
        ("keys.yaml", "keys:\n" + "  - my-secret\n" * 9, "; and 4 more"),
        (
            "keys.yaml",
            "keys:\n  - {name: a, key: secret, requests_per_minute: 0}\n",
            "line 2: requests_per_minute: Input should be greater than 0",
        ),
        (
            "keys.yaml",
            "keys:\n  - {name: a, key: secret, weight: 0}\n",
            "line 2: weight: Input should be greater than or equal to 0.001",
        ),
        ("keys.yaml", "keys:\n  - {name: a, key: secret, weight: .nan}\n", "line 2: weight: "),
        ("keys.yaml", "keys:\n  - {name: a, key: secret, weight: 1e9}\n", "line 2: weight: "),
        (
            "keys.yaml",
            "keys:\n  - {name: a, key: secret, max_concurrent_requests: true}\n",
            "line 2: max_concurrent_requests: ",
        ),
        (
            "keys.yaml",
            "keys:\n  - {name: a, key: secret}\n  - {name: a, key: other-secret}\n",
            "the name a comes twice",
        ),
    ],
)
def test_a_bad_file_is_refused_without_repeating_a_key(
    tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    if content is not None:
        written(tmp_path / name, content)
    settings = parse_settings({"gateway": {"api_keys_file": str(tmp_path / name)}})
    with pytest.raises(SettingsError) as error:
        KeySource.of(settings.gateway)
    assert message in str(error.value)
    assert "secret" not in str(error.value)


def test_a_file_that_others_may_change_is_refused_and_one_they_may_read_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = written(tmp_path / "keys", "alpha-key\n", 0o602)
    with pytest.raises(SettingsError, match="everybody may write"):
        read_keys_file(file)
    with caplog.at_level(logging.WARNING, logger="deployments"):
        file.chmod(0o640)
        read_keys_file(file)
        assert caplog.messages == []
        file.chmod(0o644)
        read_keys_file(file)
    [message] = caplog.messages
    assert "everybody on this host may read" in message


def test_what_is_not_text_is_refused_by_line(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(b"alpha\nbet\xff\n")
    with pytest.raises(SettingsError, match="not UTF-8 at line 2"):
        read_keys_file(tmp_path / "keys")


def test_a_pipe_is_refused_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "keys", 0o600)
    told: list[str] = []

    def read() -> None:
        try:
            read_keys_file(tmp_path / "keys")
        except SettingsError as error:
            told.append(str(error))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(60)
    assert told == [f"gateway.api_keys_file: {tmp_path / 'keys'} is not a regular file"]


def test_a_device_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is not a regular file"):
        read_keys_file(Path("/dev/zero"))
    with pytest.raises(SettingsError, match="Is a directory"):
        read_keys_file(tmp_path)


def test_a_file_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys_file, "MAX_BYTES", 10)
    assert read_keys_file(written(tmp_path / "keys", "123456789\n"))
    with pytest.raises(SettingsError, match="larger than 10 bytes"):
        read_keys_file(written(tmp_path / "keys", "1234567890\n"))


@pytest.mark.parametrize(("owner", "is_allowed"), [(0, True), (70_001, True), (70_002, False)])
def test_a_file_belongs_to_its_reader_or_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, is_allowed: bool
) -> None:
    file = written(tmp_path / "keys", "alpha-key\n")

    def status(descriptor: int) -> os.stat_result:
        own = os.stat(descriptor)
        return os.stat_result((*own[:4], owner, *own[5:]))

    monkeypatch.setattr(keys_file.os, "fstat", status)
    monkeypatch.setattr(keys_file.os, "geteuid", lambda: 70_001)
    if is_allowed:
        assert read_keys_file(file)
        return
    with pytest.raises(SettingsError, match="belongs to user 70002, and must to user 70001"):
        read_keys_file(file)
