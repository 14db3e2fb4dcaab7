"""Certificate files: everything wrong is told at once, and half a rotation changes nothing."""

from datetime import UTC, datetime, timedelta

import pytest

from control_plane.errors import InputError
from control_plane.mtls.files import TlsFiles, TlsSource, read_tls
from tests.support.certificates import give, new_authority


@pytest.fixture
def authority(tmp_path):
    return new_authority(tmp_path / "ca")


def now():
    return datetime.now(UTC)


def test_good_files_say_who_we_are(tmp_path, authority):
    material = read_tls(give(authority, "control-plane", "cp-1", tmp_path / "cp"), now=now())
    assert str(material.identity) == "spiffe://mesh.test/wattmesh/control-plane/cp-1"
    assert "PRIVATE" not in repr(material)


def test_everything_wrong_is_told_at_once(tmp_path):
    (tmp_path / "tls.key").write_bytes(b"garbage")
    (tmp_path / "ca.crt").write_bytes(b"garbage")
    with pytest.raises(InputError) as caught:
        read_tls(TlsFiles.of_directory(tmp_path), now=now())
    text = str(caught.value)
    assert [problem.source for problem in caught.value.problems] == [
        str(tmp_path / name) for name in ("tls.crt", "tls.key", "ca.crt")
    ]
    assert "No such file" in text
    assert "no private key in PEM" in text


def test_a_certificate_that_is_over_is_refused(tmp_path, authority):
    files = give(authority, "edge", "e", tmp_path / "e", minutes=1)
    with pytest.raises(InputError, match="a certificate that is valid"):
        read_tls(files, now=now() + timedelta(minutes=2))


def test_a_key_of_another_certificate_is_refused(tmp_path, authority):
    files = give(authority, "edge", "e", tmp_path / "e")
    other = give(authority, "edge", "f", tmp_path / "f")
    files.key.write_bytes(other.key.read_bytes())
    with pytest.raises(InputError, match="not the key of"):
        read_tls(files, now=now())


def test_a_ca_is_no_identity(tmp_path, authority):
    files = give(authority, "edge", "e", tmp_path / "e")
    files.certificate.write_bytes((tmp_path / "ca" / "ca.crt").read_bytes())
    files.key.write_bytes((tmp_path / "ca" / "ca.key").read_bytes())
    with pytest.raises(InputError, match="exactly one URI SAN"):
        read_tls(files, now=now())


def test_a_renewed_certificate_is_taken(tmp_path, authority):
    source = TlsSource(give(authority, "edge", "e", tmp_path / "e"))
    before = source.current
    assert source.refresh() is before
    give(authority, "edge", "e", tmp_path / "e")
    assert source.refresh() is not before
    assert source.refresh() is source.current


def test_half_a_rotation_leaves_the_last_good_one_and_is_told_once(tmp_path, authority):
    files = give(authority, "edge", "e", tmp_path / "e")
    told = []
    source = TlsSource(files, on_problems=told.append)
    before = source.current
    other = give(authority, "edge", "e", tmp_path / "next")
    other.key.replace(files.key)
    assert source.refresh() is before
    assert source.refresh() is before
    assert [len(problems) for problems in told] == [1]
    other.certificate.replace(files.certificate)
    assert source.refresh().certificate == files.certificate.read_bytes()


def test_files_that_vanish_leave_the_last_good_one(tmp_path, authority):
    files = give(authority, "edge", "e", tmp_path / "e")
    source = TlsSource(files)
    before = source.current
    for path in files.all:
        path.unlink()
    assert source.refresh() is before
