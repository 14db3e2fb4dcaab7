"""What Envoys are told about TLS between them, at each step of a migration, and what is refused."""

from dataclasses import replace

import pytest

from control_plane.checks import check_set, secret_names
from control_plane.errors import InputError, PayloadError
from control_plane.plan import MeshTls
from control_plane.resources import PlanParts, Resources, View, build_resources, parse_view
from control_plane.resources.mesh_tls import AUTHORITIES, IDENTITY
from control_plane.snapshot import SECRET, TYPE_URLS, make_snapshot
from tests.support.builders import make_plan
from tests.support.consul_json import consul_entry
from tests.support.xds_wire import make_node

conformance = pytest.mark.conformance
PLAN = make_plan(consul_entry("n1.e1"), consul_entry("n1.e2", model="b"))
EDGE = View(role="edge", listen_address="127.0.0.1", listen_port=10000, tls_dir="/etc/wm")
NODE = View(role="node", node_id="n1", tls_dir="/etc/wm")
STEPS = ("accept", "use", "require")


def plan(mode, ca="PEM one"):
    return replace(PLAN, mesh_tls=None if mode is None else MeshTls(mode, "mesh.test", ca))


def shape(mode):
    """Return what edges send, and what the node's listener takes."""
    edge, node = (build_resources(plan(mode), view) for view in (EDGE, NODE))
    sends = {bool(cluster.transport_socket.name) for cluster in edge.clusters}
    (listener,) = node.listeners
    takes = [bool(chain.transport_socket.name) for chain in listener.filter_chains]
    return sends, takes


@pytest.mark.parametrize(
    ("mode", "sends", "takes"),
    [
        (None, {False}, [False]),
        ("accept", {False}, [True, False]),
        ("use", {True}, [True, False]),
        ("require", {True}, [True]),
    ],
)
def test_each_step_takes_what_the_step_before_and_after_sends(mode, sends, takes):
    assert shape(mode) == (sends, takes)


@pytest.mark.parametrize("mode", STEPS)
@pytest.mark.parametrize("view", [EDGE, NODE], ids=["edge", "node"])
def test_what_is_named_is_there_and_passes_our_checks(mode, view):
    snapshot = make_snapshot(build_resources(plan(mode), view))
    expected = [] if (mode, view.role) == ("accept", "edge") else [AUTHORITIES, IDENTITY]
    assert list(snapshot.of_type(SECRET)) == expected


@conformance("62")
@pytest.mark.parametrize("view", [EDGE, NODE], ids=["edge", "node"])
def test_62_a_rotated_ca_changes_one_secret_and_nothing_else(view):
    before, after = (make_snapshot(build_resources(plan("use", ca), view)) for ca in ("one", "two"))
    moved = {
        (type_url, name)
        for type_url in TYPE_URLS
        for name, item in after.of_type(type_url).items()
        if before.of_type(type_url)[name].version != item.version
    }
    assert moved == {(SECRET, AUTHORITIES)}


def test_a_rotated_ca_concerns_every_view():
    part = PlanParts()
    for view in (EDGE, NODE):
        assert part(plan("use", "one"), view) != part(plan("use", "two"), view)


def test_private_keys_are_named_and_never_sent():
    (secret,) = [s for s in build_resources(plan("use"), NODE).secrets if s.name == IDENTITY]
    assert secret.tls_certificate.private_key.filename == "/etc/wm/tls.key"
    assert not secret.tls_certificate.private_key.inline_string


@pytest.mark.parametrize("view", [EDGE, NODE], ids=["edge", "node"])
@pytest.mark.parametrize("mode", ["use", "require"])
def test_an_envoy_without_a_certificate_is_refused_by_name(mode, view):
    with pytest.raises(PayloadError, match=r"node\.metadata\.tls_dir is missing.*--tls-dir"):
        build_resources(plan(mode), replace(view, tls_dir=""))


def test_at_the_first_step_nobody_needs_a_certificate():
    for view in (EDGE, NODE):
        resources = build_resources(plan("accept"), replace(view, tls_dir=""))
        assert resources == build_resources(plan(None), replace(view, tls_dir=""))


@conformance("79")
def test_79_a_secret_that_is_named_and_missing_is_refused():
    for view, kind in ((EDGE, "cluster"), (NODE, "listener")):
        resources = replace(build_resources(plan("use"), view), secrets=())
        violations = check_set(resources)
        assert any(
            v.startswith(kind) and f"secret {IDENTITY!r} is missing" in v for v in violations
        )
        assert any(f"secret {AUTHORITIES!r} is missing" in v for v in violations)


@conformance("60")
def test_60_a_secret_that_is_still_referred_to_is_not_removed():
    resources = build_resources(plan("use"), EDGE)
    with pytest.raises(PayloadError, match="is missing"):
        make_snapshot(replace(resources, secrets=resources.secrets[1:]))


def test_the_callers_certificate_of_an_edge_is_its_bootstraps():
    (listener,) = build_resources(plan(None), replace(EDGE, tls=True)).listeners
    assert list(secret_names(listener)) == []
    assert check_set(Resources(listeners=())) == ()


@pytest.mark.parametrize("value", ["relative", 5, "/a\nb", "/" + "x" * 2000, True])
def test_a_certificate_directory_is_an_absolute_path(value):
    with pytest.raises(InputError, match=r"node\.metadata\.tls_dir"):
        parse_view(make_node("n1", role="node", tls_dir=value))
    assert parse_view(make_node("n1", role="node", tls_dir="/etc/wm")) == NODE
