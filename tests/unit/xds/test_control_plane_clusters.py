"""The bootstrap's own cluster: one control plane as it is, several with a choice among them."""

import pytest
import yaml

from control_plane.addresses import AddressError, HostPort, UnixSocket
from control_plane.bootstrap import render_bootstrap

A, B = HostPort("10.0.0.1", 18000), HostPort("10.0.0.2", 18000)
NAME = HostPort("control.example", 18000)
SOCKET = UnixSocket("/run/wattmesh/xds.sock")
LKG = "/var/lib/wattmesh/lkg"


def render(*addresses, lkg=None):
    text = render_bootstrap(
        role="node", node_id="n1", xds_addresses=addresses, admin_socket="/a.sock", lkg=lkg
    )
    bootstrap = yaml.safe_load(text)
    return bootstrap, bootstrap["static_resources"]["clusters"]


def addresses_by_priority(cluster):
    found = {}
    for group in cluster["load_assignment"]["endpoints"]:
        for host in group["lb_endpoints"]:
            address = host["endpoint"]["address"]
            shown = address["pipe"]["path"] if "pipe" in address else address["socket_address"]
            if isinstance(shown, dict):
                shown = f"{shown['address']}:{shown['port_value']}"
            found.setdefault(group.get("priority", 0), []).append(shown)
    return found


@pytest.mark.parametrize(
    ("address", "kind"), [(SOCKET, "STATIC"), (A, "STATIC"), (NAME, "STRICT_DNS")]
)
def test_a_single_control_plane_needs_no_health_check(address, kind):
    _, (cluster,) = render(address)
    assert cluster["name"] == "control_plane"
    assert cluster["type"] == kind
    assert "health_checks" not in cluster
    assert "lb_policy" not in cluster


@pytest.mark.parametrize(
    ("addresses", "lkg", "kind", "expected"),
    [
        pytest.param([A, B], None, "STATIC", {0: [str(A), str(B)]}, id="IPs"),
        pytest.param([A, SOCKET], None, "STATIC", {0: [str(A), SOCKET.path]}, id="IP and socket"),
        pytest.param([A, NAME], None, "STRICT_DNS", {0: [str(A), str(NAME)]}, id="IP and name"),
        pytest.param(
            [A, B], LKG, "STATIC", {0: [str(A), str(B)], 1: [f"{LKG}/xds.sock"]}, id="a cache"
        ),
        pytest.param(
            [SOCKET], LKG, "STATIC", {0: [SOCKET.path], 1: [f"{LKG}/xds.sock"]}, id="one and cache"
        ),
    ],
)
def test_several_are_watched_and_any_healthy_one_carries_all(addresses, lkg, kind, expected):
    bootstrap, (cluster,) = render(*addresses, lkg=lkg)
    assert cluster["type"] == kind
    assert addresses_by_priority(cluster) == expected
    (check,) = cluster["health_checks"]
    assert check["grpc_health_check"] == {}
    assert check["no_traffic_interval"] == "1s"
    assert cluster["common_lb_config"]["healthy_panic_threshold"] == {"value": 0}
    assert cluster["load_assignment"]["policy"]["overprovisioning_factor"] == 100_000
    assert cluster["lb_policy"] == "RANDOM"
    assert "initial_fetch_timeout" not in str(bootstrap["layered_runtime"])


def test_names_with_a_cache_become_two_clusters_behind_one():
    bootstrap, (aggregate, primary, cache) = render(NAME, A, lkg=LKG)
    assert aggregate["name"] == "control_plane"
    assert aggregate["cluster_type"]["typed_config"]["clusters"] == [
        primary["name"],
        cache["name"],
    ]
    assert (primary["type"], cache["type"]) == ("STRICT_DNS", "STATIC")
    assert addresses_by_priority(primary) == {0: [str(NAME), str(A)]}
    assert addresses_by_priority(cache) == {0: [f"{LKG}/xds.sock"]}
    assert all(part["health_checks"] for part in (primary, cache))
    (layer,) = [x for x in bootstrap["layered_runtime"]["layers"] if "rtds_layer" in x]
    assert layer["rtds_layer"]["rtds_config"]["initial_fetch_timeout"] == "0.2s"


def test_a_name_beside_a_socket_is_refused():
    with pytest.raises(AddressError, match=r"control\.example:18000.*no host name beside"):
        render(SOCKET, NAME)


def test_no_address_and_a_cache_with_too_long_a_path_are_refused():
    with pytest.raises(AddressError, match="at least one"):
        render(lkg=LKG)
    with pytest.raises(AddressError, match="107"):
        render(A, lkg="/" + "x" * 107)
