"""The small CA: what it signs, what it keeps, and a rotation step by step."""

import stat
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from control_plane.mtls.authority import (
    CertificateError,
    identity_of,
    is_key_of,
    issue,
    make_authority,
    parse_certificates,
    parse_private_key,
)
from control_plane.mtls.authority_files import (
    AuthorityError,
    init_authority,
    issue_files,
    read_authority,
    replace_file,
    rotate,
)
from control_plane.mtls.spiffe import IdentityError, make_identity
from tests.support.certificates import TRUST_DOMAIN, give, new_authority

NOW = datetime(2026, 1, 1, tzinfo=UTC)
YEAR = timedelta(days=365)
EDGE = make_identity(TRUST_DOMAIN, "edge", "edge-1")


def _leaf(issuer, *, lifetime=timedelta(days=90), names=()):
    certificate, key = issue(issuer, EDGE, now=NOW, lifetime=lifetime, names=names)
    return parse_certificates(certificate)[0], parse_private_key(key)


def test_a_certificate_names_its_holder_and_nobody_else():
    issuer = make_authority(TRUST_DOMAIN, now=NOW, lifetime=YEAR)
    leaf, key = _leaf(issuer, names=["edge.example", "10.0.0.1", "::1"])
    assert identity_of(leaf) == EDGE
    assert is_key_of(key, leaf)
    leaf.verify_directly_issued_by(issuer.certificate)
    san = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert san.get_values_for_type(x509.DNSName) == ["edge.example"]
    assert [str(ip) for ip in san.get_values_for_type(x509.IPAddress)] == ["10.0.0.1", "::1"]
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_certificate_never_outlives_its_ca():
    issuer = make_authority(TRUST_DOMAIN, now=NOW, lifetime=timedelta(days=10))
    leaf, _ = _leaf(issuer)
    assert leaf.not_valid_after_utc == issuer.certificate.not_valid_after_utc
    with pytest.raises(CertificateError, match="make a new CA"):
        issue(issuer, EDGE, now=NOW + timedelta(days=11), lifetime=YEAR)


def test_a_ca_without_an_identity_is_nobody():
    issuer = make_authority(TRUST_DOMAIN, now=NOW, lifetime=YEAR)
    with pytest.raises(IdentityError, match="0 URI SANs"):
        identity_of(issuer.certificate)


def test_a_ca_is_never_overwritten(tmp_path):
    authority = new_authority(tmp_path / "ca")
    with pytest.raises(AuthorityError, match="exists already; nothing was changed"):
        new_authority(tmp_path / "ca")
    assert read_authority(tmp_path / "ca").trusted == authority.trusted


def test_a_trust_domain_is_checked_before_anything_is_written(tmp_path):
    with pytest.raises(IdentityError, match="trust domain"):
        init_authority(tmp_path / "ca", "Not A Domain", now=NOW, lifetime=YEAR)
    assert not (tmp_path / "ca").exists()


def test_keys_are_for_their_owner_alone(tmp_path):
    authority = new_authority(tmp_path / "ca")
    files = give(authority, "node", "gpu-1", tmp_path / "gpu-1")
    for path in (tmp_path / "ca" / "ca.key", files.key):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(path.name for path in files.key.parent.iterdir()) == [
        "ca.crt",
        "tls.crt",
        "tls.key",
    ]


def test_a_group_may_read_the_key_when_asked(tmp_path):
    authority = new_authority(tmp_path / "ca")
    group = tmp_path.group()
    issue_files(authority, EDGE, tmp_path / "e", now=NOW, lifetime=YEAR, group=group)
    assert stat.S_IMODE((tmp_path / "e" / "tls.key").stat().st_mode) == 0o640


def test_a_group_that_is_not_there_leaves_the_old_key(tmp_path):
    (tmp_path / "tls.key").write_bytes(b"old")
    with pytest.raises(AuthorityError, match="no-such-group"):
        replace_file(tmp_path / "tls.key", b"new", 0o640, "no-such-group")
    assert [path.name for path in tmp_path.iterdir()] == ["tls.key"]
    assert (tmp_path / "tls.key").read_bytes() == b"old"


def test_a_rotation_trusts_both_while_certificates_move(tmp_path):
    old = new_authority(tmp_path / "ca")
    begun = rotate(old, "begin", now=NOW, lifetime=YEAR)
    assert len(begun.trusted) == 2
    assert begun.issuer.certificate == old.issuer.certificate

    switched = rotate(begun, "switch", now=NOW, lifetime=YEAR)
    assert switched.trusted == begun.trusted
    assert switched.issuer.certificate != old.issuer.certificate

    finished = rotate(switched, "finish", now=NOW, lifetime=YEAR)
    assert finished.trusted == (switched.issuer.certificate,)
    assert finished.issuer.certificate.subject != old.issuer.certificate.subject


def test_steps_out_of_order_change_nothing(tmp_path):
    authority = new_authority(tmp_path / "ca")
    for step in ("switch", "finish"):
        with pytest.raises(AuthorityError):
            rotate(authority, step, now=NOW, lifetime=YEAR)
    begun = rotate(authority, "begin", now=NOW, lifetime=YEAR)
    for step in ("begin", "finish"):
        with pytest.raises(AuthorityError):
            rotate(begun, step, now=NOW, lifetime=YEAR)
    assert read_authority(tmp_path / "ca").trusted == begun.trusted


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("ca.crt", None, "wattmesh ca init"),
        ("ca.key", None, "wattmesh ca init"),
        ("ca.crt", b"garbage", "no certificate in PEM"),
        ("ca.key", b"garbage", "no private key in PEM"),
    ],
)
def test_a_broken_ca_says_what_is_wrong(tmp_path, name, content, expected):
    new_authority(tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(AuthorityError, match=expected):
        read_authority(tmp_path)


def test_a_key_of_another_ca_is_refused(tmp_path):
    new_authority(tmp_path / "a")
    new_authority(tmp_path / "b")
    (tmp_path / "a" / "ca.key").write_bytes((tmp_path / "b" / "ca.key").read_bytes())
    with pytest.raises(AuthorityError, match="is the key of no certificate"):
        read_authority(tmp_path / "a")
