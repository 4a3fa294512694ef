"""The cluster's secrets, made when asked for and kept: Ray's token, and certificates for the store.

The store (Redis) admits by certificate because Ray would put a password on the command lines of its
processes, where every user of the host can read it.
"""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ops.cluster.files import write_private

AUTH_TOKEN = "auth_token"
STORE_CA = "store-ca.pem"
STORE_SERVER, STORE_SERVER_KEY = "store-server.pem", "store-server.key"
STORE_CLIENT, STORE_CLIENT_KEY = "store-client.pem", "store-client.key"
CERTIFICATES = (STORE_CA, STORE_SERVER, STORE_CLIENT)
STORE_FILES = (STORE_CA, STORE_SERVER, STORE_SERVER_KEY, STORE_CLIENT, STORE_CLIENT_KEY)
KINDS = {"token": (AUTH_TOKEN,), "store": STORE_FILES}
# Replacing them needs a restart: so not often.
VALID_FOR = datetime.timedelta(days=3650)


class CredentialsError(ValueError):
    """There are no secrets where there should be, or some where there should be none."""


@dataclass(frozen=True)
class Authority:
    """Signs certificates."""

    name: x509.Name
    key: ec.EllipticCurvePrivateKey


def keep_credentials(folder: Path, make: Collection[str] = ()) -> dict[str, str]:
    """The secrets in ``folder`` by file name, those of the ``KINDS`` in ``make`` made anew.

    Hosts with other secrets than the rest are shut out, so that no missing one is made unasked:
    ``CredentialsError`` names those.
    """
    kept = [name for kind, names in KINDS.items() if kind not in make for name in names]
    missing = [name for name in kept if not (folder / name).exists()]
    if missing:
        raise CredentialsError(
            f"{folder} lacks {', '.join(missing)}. A cluster that runs has them: take the folder "
            "from its backup, or the files from the hosts, as ops/runbook.md says. "
            "--new-cluster makes them for hosts that have none yet, --rotate replaces them."
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    made: dict[str, str] = {}
    if "token" in make:
        made[AUTH_TOKEN] = secrets.token_hex(32)
    if "store" in make:
        made |= _make_certificates()
    for name, text in made.items():
        write_private(folder / name, text)
    return {name: (folder / name).read_text() for name in (AUTH_TOKEN, *STORE_FILES)}


def refuse_credentials(folder: Path) -> None:
    """Raises ``CredentialsError`` if ``folder`` has any."""
    found = [name for names in KINDS.values() for name in names if (folder / name).exists()]
    if found:
        raise CredentialsError(
            f"{folder} has {', '.join(found)}: this is not a new cluster, so leave out "
            "--new-cluster. --rotate replaces secrets."
        )


def expiry(certificate: str) -> float:
    """When it ends, in seconds since 1970."""
    return x509.load_pem_x509_certificate(certificate.encode()).not_valid_after_utc.timestamp()


def _make_certificates() -> dict[str, str]:
    """One for the store and one for its client; their authority's key is thrown away."""
    authority = Authority(_name("pomona store authority"), ec.generate_private_key(ec.SECP256R1()))
    server, client = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    return {
        STORE_CA: _certificate(authority.name, authority.key, authority, is_authority=True),
        STORE_SERVER: _certificate(_name("pomona store"), server, authority),
        STORE_SERVER_KEY: _pem(server),
        STORE_CLIENT: _certificate(_name("pomona head"), client, authority),
        STORE_CLIENT_KEY: _pem(client),
    }


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    authority: Authority,
    *,
    is_authority: bool = False,
) -> str:
    # A host's clock may be behind.
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + VALID_FOR)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .sign(authority.key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
