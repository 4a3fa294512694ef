"""The cluster's secrets, made once and kept: Ray's token, and certificates for the store.

The store (Redis) admits by certificate because Ray would put a password on the command lines of its
processes, where every user of the host can read it.
"""

from __future__ import annotations

import datetime
import secrets
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
STORE_FILES = (STORE_CA, STORE_SERVER, STORE_SERVER_KEY, STORE_CLIENT, STORE_CLIENT_KEY)
# Replaced by deleting the files, which needs a restart: so not often.
VALID_FOR = datetime.timedelta(days=3650)


@dataclass(frozen=True)
class Authority:
    """Signs certificates."""

    name: x509.Name
    key: ec.EllipticCurvePrivateKey


def keep_credentials(folder: Path) -> dict[str, str]:
    """The secrets in ``folder`` by file name; those that are missing are made."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (folder / AUTH_TOKEN).exists():
        write_private(folder / AUTH_TOKEN, secrets.token_hex(32))
    if not all((folder / name).exists() for name in STORE_FILES):
        for name, text in _make_certificates().items():
            write_private(folder / name, text)
    return {name: (folder / name).read_text() for name in (AUTH_TOKEN, *STORE_FILES)}


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
