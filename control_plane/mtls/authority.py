"""Certificates of a small CA: keys and PEM in, PEM out; time is an argument.

For trials and small fleets. ECDSA P-256: every TLS stack of the mesh (BoringSSL in Envoy and gRPC,
OpenSSL in Python) takes it, and a handshake costs a tenth of RSA's. A bundle holds every CA that is
trusted; during a rotation these are two, so that old and new certificates are good together.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID

from control_plane.errors import WattmeshError
from control_plane.mtls.spiffe import Identity, IdentityError, parse_identity

_CLOCK_SKEW = timedelta(minutes=5)  # hosts whose clocks are behind take a new certificate at once


class CertificateError(WattmeshError):
    """A certificate or key that cannot be used."""


@dataclass(frozen=True, slots=True)
class Issuer:
    """A CA that signs: its certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def make_authority(trust_domain: str, *, now: datetime, lifetime: timedelta) -> Issuer:
    """Return a new CA. Its certificate may sign no further CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    name = x509.Name(
        [
            x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, trust_domain[:64]),
            # Two CAs of one trust domain must not share a subject: verifiers look issuers up by it.
            x509.NameAttribute(x509.NameOID.COMMON_NAME, f"wattmesh CA {serial:x}"[:24]),
        ]
    )
    builder = _builder(name, name, key.public_key(), now, lifetime).serial_number(serial)
    usage = _key_usage(key_cert_sign=True, crl_sign=True, digital_signature=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    return Issuer(_sign(builder, key, key), key)


def issue(
    issuer: Issuer,
    identity: Identity,
    *,
    now: datetime,
    lifetime: timedelta,
    names: Sequence[str] = (),
) -> tuple[bytes, bytes]:
    """Return the PEM of a new certificate and of its key.

    `names` are host names or IP addresses for clients that check those. The certificate never
    outlives its CA.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    ends = issuer.certificate.not_valid_after_utc
    lifetime = min(lifetime, ends - now)
    if lifetime <= timedelta():
        raise CertificateError(f"the CA's certificate ended at {ends:%Y-%m-%d}: make a new CA")
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, identity.id[:64])])
    issued_by = issuer.certificate.subject
    builder = _builder(subject, issued_by, key.public_key(), now, lifetime)
    builder = builder.serial_number(x509.random_serial_number())
    alternatives = [x509.UniformResourceIdentifier(str(identity)), *map(_general_name, names)]
    both_sides = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    usage = _key_usage(key_cert_sign=False, crl_sign=False, digital_signature=True)
    builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
    builder = builder.add_extension(usage, critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(both_sides), critical=False)
    signed = _sign(builder, key, issuer.key)
    return pem([signed]), key_pem(key)


def pem(certificates: Sequence[x509.Certificate]) -> bytes:
    """Return certificates as one PEM text."""
    return b"".join(item.public_bytes(serialization.Encoding.PEM) for item in certificates)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a key as PEM, not encrypted: who may read the file may use it."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def parse_certificates(data: bytes) -> tuple[x509.Certificate, ...]:
    """Return the certificates of a PEM text, at least one. Raise CertificateError."""
    try:
        return tuple(x509.load_pem_x509_certificates(data))
    except ValueError as error:
        raise CertificateError("holds no certificate in PEM") from error


def parse_private_key(data: bytes) -> PrivateKeyTypes:
    """Return the private key of a PEM text, of any kind. Raise CertificateError."""
    try:
        return serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CertificateError("holds no private key in PEM, or one with a pass phrase") from error


def parse_signing_key(data: bytes) -> ec.EllipticCurvePrivateKey:
    """Return the key of a CA that `make_authority` made. Raise CertificateError."""
    key = parse_private_key(data)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError("holds a key that is not of an elliptic curve")
    return key


def is_key_of(key: PrivateKeyTypes, certificate: x509.Certificate) -> bool:
    """Whether a private key is that of a certificate."""
    return bool(key.public_key() == certificate.public_key())


def identity_of(certificate: x509.Certificate) -> Identity:
    """Return who a certificate is for. Raise IdentityError unless it names exactly one."""
    try:
        san = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = san.get_values_for_type(x509.UniformResourceIdentifier)
    except (x509.ExtensionNotFound, ValueError):
        uris = []
    if len(uris) != 1:
        raise IdentityError(f"the certificate has {len(uris)} URI SANs, expected one SPIFFE ID")
    return parse_identity(uris[0])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime,
    lifetime: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _sign(
    builder: x509.CertificateBuilder,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    if key is not issuer_key:
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
        builder = builder.add_extension(authority, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _key_usage(*, key_cert_sign: bool, crl_sign: bool, digital_signature: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
