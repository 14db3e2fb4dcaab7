"""From an Envoy's admin answers back to what it was sent."""

import json

import pytest
from envoy.config.core.v3 import extension_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2
from envoy.service.runtime.v3 import rtds_pb2
from xds.type.v3 import typed_struct_pb2

from control_plane.errors import PayloadError
from control_plane.lkg.dump import AdminAnswers, DumpError, parse_dump
from control_plane.lkg.world import versions
from control_plane.snapshot import CLUSTER, ENDPOINT, EXTENSION, LISTENER, ROUTE, RUNTIME, SECRET
from tests.unit.lkg.recorded_envoy import RecordedEnvoy

POOL = "acme_2Ffox"


@pytest.fixture
def node():
    return RecordedEnvoy.read("node")


@pytest.fixture
def edge():
    return RecordedEnvoy.read("edge")


def unpacked(world, type_url, name, message):
    assert world.of_type(type_url)[name].body.Unpack(message)
    return message


def pool_of(envoy):
    world = parse_dump(envoy.answers()).world
    return unpacked(world, ENDPOINT, POOL, endpoint_pb2.ClusterLoadAssignment())


@pytest.mark.parametrize("role", ["node", "edge"])
def test_every_resource_comes_back_under_the_version_that_was_sent(role):
    """For endpoints and runtime, which Envoy tells no version of, it is the content's hash."""
    envoy = RecordedEnvoy.read(role)
    dumped = parse_dump(envoy.answers())
    assert versions(dumped.world) == envoy.sent
    assert not dumped.warming


@pytest.mark.parametrize("role", ["node", "edge"])
def test_every_resource_comes_back_with_the_content_that_was_sent(role):
    """Only an extension has another form: Envoy tells what it made of it."""
    envoy = RecordedEnvoy.read(role)
    for section, listed in (
        ("Clusters", "dynamic_active_clusters"),
        ("Routes", "dynamic_route_configs"),
        ("Secrets", "dynamic_active_secrets"),
    ):
        for item in envoy.section(section)[listed]:
            del item["version_info"]
    for item in envoy.section("Listeners")["dynamic_listeners"]:
        del item["active_state"]["version_info"]
    assert versions(parse_dump(envoy.answers()).world) == envoy.sent


def test_health_that_envoy_found_is_not_frozen_and_health_that_it_was_told_is(node):
    (hosts,) = node.section("Endpoints")["dynamic_endpoint_configs"][0]["endpoint_config"][
        "endpoints"
    ]
    assert {host["health_status"] for host in hosts["lb_endpoints"]} == {"UNHEALTHY"}
    (locality,) = pool_of(node).endpoints
    found = [
        (host.health_status, host.load_balancing_weight.value) for host in locality.lb_endpoints
    ]
    draining = 3
    assert found == [(0, 10000), (draining, 1), (0, 331776), (0, 923521)]


def test_a_removed_host_that_envoy_still_keeps_is_gone(node):
    (status,) = [x for x in node.clusters["cluster_statuses"] if x["name"] == POOL]
    status["host_statuses"][0]["health_status"]["pending_dynamic_removal"] = True
    (locality,) = pool_of(node).endpoints
    assert len(locality.lb_endpoints) == 3
    for host in status["host_statuses"]:
        host["health_status"]["pending_dynamic_removal"] = True
    assert not pool_of(node).endpoints


def test_localities_priorities_and_policies_are_kept_where_they_say_something(node):
    config = node.section("Endpoints")["dynamic_endpoint_configs"][0]["endpoint_config"]
    (first,) = config["endpoints"]
    hosts = first["lb_endpoints"]
    config["endpoints"] = [
        {**first, "lb_endpoints": hosts[:2]},
        {
            "lb_endpoints": hosts[2:],
            "locality": {"zone": "b"},
            "priority": 1,
            "load_balancing_weight": 7,
        },
    ]
    config["policy"] = {"overprovisioning_factor": 100}
    found = pool_of(node)
    assert [locality.locality.zone for locality in found.endpoints] == ["", "b"]
    assert [locality.load_balancing_weight.value for locality in found.endpoints] == [0, 7]
    assert not found.endpoints[0].HasField("locality")
    assert found.policy.overprovisioning_factor.value == 100


def test_the_bootstraps_own_cluster_of_edges_is_recorded_without_weights(edge):
    world = parse_dump(edge.answers()).world
    edges = unpacked(world, ENDPOINT, "local_edges", endpoint_pb2.ClusterLoadAssignment())
    (locality,) = edges.endpoints
    assert len(locality.lb_endpoints) == 2
    assert not any(host.HasField("load_balancing_weight") for host in locality.lb_endpoints)


def test_an_extension_goes_back_as_envoy_will_parse_it(edge):
    world = parse_dump(edge.answers()).world
    extension = unpacked(world, EXTENSION, "request-limits", extension_pb2.TypedExtensionConfig())
    struct = typed_struct_pb2.TypedStruct()
    assert extension.typed_config.Unpack(struct)
    assert struct.type_url.endswith("local_ratelimit.v3.LocalRateLimit")
    assert struct.value["enable_retry_after_header"] is True  # unknown to xds-protos


def test_a_private_key_is_named_by_its_file_never_by_what_the_dump_shows(node):
    world = parse_dump(node.answers()).world
    secret = unpacked(world, SECRET, "mesh-identity", secret_pb2.Secret())
    assert secret.tls_certificate.private_key.filename == "/run/wattmesh/tls-node/tls.key"
    assert secret.tls_certificate.certificate_chain.filename == "/run/wattmesh/tls-node/tls.crt"
    assert "redacted" not in str(world)


def test_a_private_key_without_a_file_cannot_be_recorded(node):
    for item in node.section("Secrets")["dynamic_active_secrets"]:
        item["secret"].get("tls_certificate", {}).pop("watched_directory", None)
    with pytest.raises(DumpError, match=r"mesh-identity.*private key"):
        parse_dump(node.answers())


def test_the_bootstraps_own_secrets_are_none_of_ours(node):
    secrets = node.section("Secrets")["dynamic_active_secrets"]
    (own,) = [item for item in secrets if item["name"] == "mesh-identity"]
    name = "control-plane-identity"
    secrets.append({**own, "name": name, "secret": {**own["secret"], "name": name}})
    assert versions(parse_dump(node.answers()).world) == node.sent


def test_runtime_values_come_back_from_text(node):
    layers = node.runtime["layers"]
    node.runtime["entries"] = {
        "a.max": {"layer_values": ["", "1.23457e+06"], "final_value": "1.23457e+06"},
        "of.another.layer": {"layer_values": ["7", ""], "final_value": "7"},
    }
    assert layers == ["static", "wattmesh"]
    world = parse_dump(node.answers()).world
    runtime = unpacked(world, RUNTIME, "wattmesh", rtds_pb2.Runtime())
    assert dict(runtime.layer) == {"a.max": 1_234_570.0}


def test_what_is_warming_is_left_out_and_told(node):
    section = node.section("Clusters")
    section["dynamic_warming_clusters"] = [section["dynamic_active_clusters"][1]]
    dumped = parse_dump(node.answers())
    assert dumped.warming
    assert versions(dumped.world) == node.sent

    (listener,) = node.section("Listeners")["dynamic_listeners"]
    listener["warming_state"] = listener["active_state"] | {"version_info": "next"}
    world = parse_dump(node.answers()).world
    assert world.of_type(LISTENER)["mesh"].version == node.sent[LISTENER]["mesh"]


def test_an_envoy_that_has_just_started_has_no_whole_configuration(node):
    started = node.copy()
    started.config_dump["configs"] = [started.section("Bootstrap")]
    started.clusters, started.runtime = {}, {"layers": ["static", "wattmesh"], "entries": {}}
    with pytest.raises(PayloadError, match="no listener"):
        parse_dump(started.answers())


@pytest.mark.parametrize(
    ("section", "listed", "violation"),
    [
        ("Clusters", "dynamic_active_clusters", "is missing"),
        ("Endpoints", "dynamic_endpoint_configs", "has no endpoints"),
        ("Routes", "dynamic_route_configs", "are missing"),
        ("Secrets", "dynamic_active_secrets", "secret 'mesh-ca' is missing"),
    ],
)
def test_what_refers_to_nothing_is_no_whole_configuration(node, section, listed, violation):
    node.section(section)[listed] = []
    with pytest.raises(PayloadError, match=violation):
        parse_dump(node.answers())


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param((b"", b"{}", b"{}"), id="empty"),
        pytest.param((b"[]", b"{}", b"{}"), id="a list"),
        pytest.param((b'{"configs": [{}]}', b"{}", b"{}"), id="no type"),
        pytest.param((b'{"configs": [{"@type": "x"}]}', b"[]", b"{}"), id="clusters as a list"),
    ],
)
def test_other_answers_are_refused_with_the_reason(answers):
    dump, clusters, runtime = answers
    with pytest.raises(DumpError, match="expected that of Envoy"):
        parse_dump(AdminAnswers(config_dump=dump, clusters=clusters, runtime=runtime))


def test_a_resource_of_an_unknown_type_is_refused(node):
    (item, *_) = node.section("Clusters")["dynamic_active_clusters"]
    item["cluster"]["made_up"] = 1
    with pytest.raises(DumpError, match="made_up"):
        parse_dump(node.answers())
    assert json.loads(node.answers().config_dump)  # it was JSON


def test_types_are_all_there(edge):
    world = parse_dump(edge.answers()).world
    held = {type_url for type_url, names in world.resources.items() if names}
    assert held == {RUNTIME, CLUSTER, ENDPOINT, EXTENSION, LISTENER, ROUTE, SECRET}
