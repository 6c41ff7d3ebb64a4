"""Certificates and the token of one run on several machines: made by its controller, and gone with it.

In: the addresses of a machine. Out: PEM texts that `foresee serve` and `plan-server` listen with, the certificate that
workers trust, and a token. The key that signs never leaves the process that made it.
"""

from __future__ import annotations

import datetime
import ipaddress
import secrets
from dataclasses import dataclass, field

from foresee.io.optional import OptionalModule

x509 = OptionalModule("cryptography.x509")
_serialization = OptionalModule("cryptography.hazmat.primitives.serialization")
_hashes = OptionalModule("cryptography.hazmat.primitives.hashes")
_curves = OptionalModule("cryptography.hazmat.primitives.asymmetric.ec")

VALID_DAYS = 365
TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class Signed:
    """What a machine listens with."""

    certificate: str
    key: str = field(repr=False)


class Authority:
    """Signs for one run."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(TOKEN_BYTES)
        self._key = _curves.generate_private_key(_curves.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "foresee run")])
        usage = x509.BasicConstraints(ca=True, path_length=0)
        signed = _builder(self._name, self._name, self._key).add_extension(usage, critical=True)
        self.certificate = _pem(signed.sign(self._key, _hashes.SHA256()))

    def sign(self, *hosts: str) -> Signed:
        """For machines with these names or IP addresses."""
        key = _curves.generate_private_key(_curves.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "foresee part")])
        names = x509.SubjectAlternativeName([_name(host) for host in hosts])
        signed = _builder(name, self._name, key).add_extension(names, critical=False)
        private = key.private_bytes(
            _serialization.Encoding.PEM, _serialization.PrivateFormat.PKCS8, _serialization.NoEncryption()
        )
        return Signed(_pem(signed.sign(self._key, _hashes.SHA256())), private.decode())


def _name(host: str) -> object:
    try:
        name: object = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        name = x509.DNSName(host)
    return name


def _builder(subject: object, issuer: object, key: object) -> OptionalModule:
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer)
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())  # type: ignore[attr-defined]
    end = begin + datetime.timedelta(days=VALID_DAYS)
    signed: OptionalModule = builder.not_valid_before(begin).not_valid_after(end)
    return signed


def _pem(certificate: OptionalModule) -> str:
    text: bytes = certificate.public_bytes(_serialization.Encoding.PEM)
    return text.decode()
