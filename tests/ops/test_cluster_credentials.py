from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from ops.cluster.__main__ import main
from ops.cluster.credentials import AUTH_TOKEN, STORE_FILES
from tests.support.ops.host_lists import generated


@pytest.fixture
def out(content: dict[str, Any], tmp_path: Path) -> Path:
    return generated(content, tmp_path)


def secrets(out: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (out / "secrets").iterdir()}


def run(out: Path, *options: str) -> int:
    return main([str(out.parent / "hosts.yaml"), str(out), *options])


def test_certificates_are_signed_by_the_authority_that_both_sides_have(out: Path) -> None:
    authority = x509.load_pem_x509_certificate((out / "head" / "store-ca.pem").read_bytes())
    assert (out / "edge-1" / "store-ca.pem").read_bytes() == authority.public_bytes(Encoding.PEM)
    for path in (out / "head" / "store-client.pem", out / "edge-1" / "store-server.pem"):
        x509.load_pem_x509_certificate(path.read_bytes()).verify_directly_issued_by(authority)


def test_lost_secrets_are_not_made_again_in_silence(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = (out / "head" / AUTH_TOKEN).read_text()
    shutil.rmtree(out / "secrets")
    assert run(out) == 2
    told = capsys.readouterr().err
    assert all(word in told for word in (str(out / "secrets"), AUTH_TOKEN, *STORE_FILES))
    assert "--new-cluster" in told
    assert not (out / "secrets").exists()
    assert (out / "head" / AUTH_TOKEN).read_text() == token


def test_one_lost_secret_is_told_by_name(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (out / "secrets" / "store-client.key").unlink()
    assert run(out) == 2
    told = capsys.readouterr().err
    assert "store-client.key" in told
    assert AUTH_TOKEN not in told
    # Another kind's rotation does not stand in for it, and is not half done.
    before = secrets(out)
    assert run(out, "--rotate", "token") == 2
    assert secrets(out) == before
    assert run(out, "--rotate", "store") == 0


def test_a_new_cluster_is_refused_where_there_is_one(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = secrets(out)
    (out / "secrets" / "store-client.key").unlink()
    assert run(out, "--new-cluster") == 2
    assert "--new-cluster" in capsys.readouterr().err
    assert secrets(out).items() < before.items()


@pytest.mark.parametrize(("kind", "names"), [("token", {AUTH_TOKEN}), ("store", {*STORE_FILES})])
def test_rotation_replaces_what_it_names(kind: str, names: set[str], out: Path) -> None:
    before = secrets(out)
    assert run(out, "--rotate", kind) == 0
    after = secrets(out)
    assert {name for name in before if before[name] != after[name]} == names
    installed = {path.name: path.read_text() for path in (out / "head").iterdir()}
    assert all(installed[name] == after[name] for name in names & set(installed))
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (out / "secrets").iterdir())
