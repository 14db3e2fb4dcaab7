"""Identities as URIs: exactly one form, and nothing that could be taken for another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.mtls.spiffe import (
    ROLES,
    IdentityError,
    make_identity,
    parse_identity,
    role_prefix,
)


@pytest.mark.parametrize("role", ROLES)
def test_an_identity_comes_back_from_its_uri(role):
    identity = make_identity("mesh.example", role, "gpu-1.rack_2")
    assert parse_identity(str(identity)) == identity
    assert str(identity).startswith(role_prefix("mesh.example", role))


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "spiffe://",
        "spiffe://mesh/wattmesh/edge",
        "spiffe://mesh/wattmesh/edge/",
        "spiffe://mesh/wattmesh/edge/a/b",
        "spiffe://mesh/wattmesh/edge/a?x=1",
        "spiffe://mesh/wattmesh/edge/a#b",
        "spiffe://mesh/wattmesh/edge/..",
        "spiffe://mesh/wattmesh/edge/%2e",
        "spiffe://mesh/wattmesh/Edge/a",
        "spiffe://mesh/other/edge/a",
        "spiffe://MESH/wattmesh/edge/a",
        "spiffe://user@mesh/wattmesh/edge/a",
        "spiffe://mesh:80/wattmesh/edge/a",
        "https://mesh/wattmesh/edge/a",
        "spiffe://mesh/wattmesh/edge/a\n",
        "spiffe://mesh/wattmesh/edge/" + "a" * 300,
    ],
)
def test_what_is_no_identity(uri):
    with pytest.raises(IdentityError):
        parse_identity(uri)


@given(st.text(max_size=60))
def test_any_text_is_an_identity_or_refused(text):
    try:
        identity = parse_identity(text)
    except IdentityError:
        return
    assert str(identity) == text


@given(st.text(max_size=20), st.text(max_size=20))
def test_no_id_begins_as_another_roles_uris_do(domain, workload_id):
    try:
        identity = make_identity(domain, "edge", workload_id)
    except IdentityError:
        return
    others = [role_prefix(domain, role) for role in ROLES if role != "edge"]
    assert not any(str(identity).startswith(prefix) for prefix in others)


def test_every_fault_is_told_at_once():
    with pytest.raises(IdentityError) as caught:
        make_identity("No Domain", "captain", "a/b")
    text = str(caught.value)
    assert all(part in text for part in ("'No Domain'", "'captain'", "'a/b'"))
