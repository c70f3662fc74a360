"""Certificates with the names that a test wants, signed by a CA of their own."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

FROM = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
UNTIL = datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC)


def write_tls(folder: Path, *names: x509.GeneralName, common: str = "server") -> dict[str, Path]:
    """ca.pem, cert.pem and key.pem in `folder`, by `ca`, `cert` and `key`; no names = no SAN."""
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a CA")])
    ca = _builder(ca_name, ca_name, ca_key).add_extension(x509.BasicConstraints(True, 0), True)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)] if common else [])
    leaf = _builder(name, ca_name, key).add_extension(x509.BasicConstraints(False, None), True)
    if names:
        leaf = leaf.add_extension(x509.SubjectAlternativeName(names), critical=not common)
    plain = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    contents = {
        "ca": ca.sign(ca_key, hashes.SHA256()).public_bytes(Encoding.PEM),
        "cert": leaf.sign(ca_key, hashes.SHA256()).public_bytes(Encoding.PEM),
        "key": key.private_bytes(*plain),
    }
    files = {what: folder / f"{what}.pem" for what in contents}
    for what, file in files.items():
        file.write_bytes(contents[what])
    return files


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    made = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
    return made.not_valid_before(FROM).not_valid_after(UNTIL)
