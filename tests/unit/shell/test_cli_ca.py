"""`wattmesh ca` from the outside, and what may listen without TLS."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import structlog

from control_plane.addresses import HostPort, UnixSocket
from control_plane.cli import BAD_INPUT, FINDING, OK, main
from control_plane.cli.exposure import check_exposure, parse_tls_files
from control_plane.errors import WattmeshError
from control_plane.mtls.authority_files import init_authority
from tests.support.certificates import new_authority


def test_a_trial_ca_from_nothing_to_a_finished_rotation(tmp_path, capsys):
    ca, out = str(tmp_path / "ca"), str(tmp_path / "edge-1")
    issue = ["ca", "issue", "--dir", ca, "--role", "edge", "--id", "edge-1", "--out", out]
    assert main(["ca", "init", "--dir", ca, "--trust-domain", "mesh.example"]) == OK
    assert main(issue) == OK
    for step in ("begin", "switch", "finish"):
        assert main(["ca", "rotate", step, "--dir", ca]) == OK
        assert main(issue) == OK
    capsys.readouterr()
    assert main(["ca", "show", f"{out}/tls.crt", f"{out}/ca.crt", "-o", "json"]) == OK
    leaf, authority = json.loads(capsys.readouterr().out)["certificates"]
    assert leaf["for"] == "spiffe://mesh.example/wattmesh/edge/edge-1"
    assert leaf["signed by"] == authority["for"]
    assert {leaf["state"], authority["state"]} == {"good"}


def test_a_certificate_that_is_over_is_a_finding(tmp_path, capsys):
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    ca = init_authority(tmp_path, "mesh.test", now=long_ago, lifetime=timedelta(days=9))
    assert main(["ca", "show", str(ca.directory / "ca.crt"), "-o", "json"]) == FINDING
    (certificate,) = json.loads(capsys.readouterr().out)["certificates"]
    assert (certificate["state"], certificate["until"]) == ("over", "2020-01-10T00:00:00Z")


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["issue", "--role", "king", "--id", "a/b", "--out", "x"], ["'king'", "'a/b'"]),
        (["rotate", "back"], ["expected begin, switch, finish"]),
        (["rotate", "finish"], ["nothing to finish"]),
        (["init"], ["exists already; nothing was changed"]),
    ],
)
def test_bad_input_says_what_was_expected(tmp_path, capsys, argv, expected):
    new_authority(tmp_path)
    assert main(["ca", argv[0], *argv[1:], "--dir", str(tmp_path)]) == BAD_INPUT
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert all(text in said for text in expected)


def test_every_file_that_is_no_certificate_is_named(tmp_path, capsys):
    (tmp_path / "a").write_text("no certificate")
    assert main(["ca", "show", str(tmp_path / "a"), str(tmp_path / "b")]) == BAD_INPUT
    said = capsys.readouterr().err
    assert f"{tmp_path / 'a'}: holds no certificate" in said
    assert f"{tmp_path / 'b'}: No such file" in said


def test_two_of_three_tls_files_are_not_enough():
    with pytest.raises(WattmeshError, match="expected all three or none"):
        parse_tls_files(Path("a"), None, Path("c"))
    assert parse_tls_files(None, None, None) is None


def test_nothing_is_open_to_other_hosts_without_tls(tmp_path):
    ours = (UnixSocket("/a.sock"), HostPort("127.0.0.1", 1), HostPort("::1", 1), None)
    check_exposure((*ours, HostPort("localhost", 1)), None, allow_plaintext=False)
    everyone = (*ours, HostPort("0.0.0.0", 18000), HostPort("gpu.example", 18000))
    with pytest.raises(WattmeshError, match=r"0\.0\.0\.0:18000, gpu\.example:18000: other hosts"):
        check_exposure(everyone, None, allow_plaintext=False)
    check_exposure(everyone, None, allow_plaintext=True)
    files = parse_tls_files(Path("a"), Path("b"), Path("c"))
    check_exposure(everyone, files, allow_plaintext=False)


def test_a_control_plane_says_all_that_is_wrong_with_its_certificate(tmp_path, capsys):
    (tmp_path / "tls.crt").write_text("no certificate")
    (tmp_path / "catalog.json").write_text("[]")
    tls = [f"--tls-{name}={tmp_path / file}" for name, file in FILES.items()]
    argv = ["control-plane", f"--catalog={tmp_path / 'catalog.json'}", "--xds-address=[::]:0", *tls]
    try:
        assert main(argv) == BAD_INPUT
    finally:
        structlog.reset_defaults()  # its logs go to a stream that ends with the test
    said = capsys.readouterr().err
    assert "holds no certificate" in said
    assert said.count("No such file") == 2


FILES = {"cert": "tls.crt", "key": "tls.key", "ca": "ca.crt"}
