"""The bootstraps, as the real Envoy reads them."""

import asyncio
import subprocess

import aiohttp
import pytest
import yaml

from control_plane.addresses import HostPort, UnixSocket
from control_plane.bootstrap import render_bootstrap, template_path
from tests.support import paths
from tests.support.builders import make_plan
from tests.support.consul_json import consul_entry
from tests.support.envoy_lab import chat, running_lab

pytestmark = pytest.mark.envoy
XDS = UnixSocket("/tmp/xds.sock")
BY_IP = HostPort("10.0.0.1", 18000)
BY_NAME = HostPort("control.example", 18000)
CLUSTERS = "cluster_manager.active_clusters"


def render(role, **more):
    values = {"node_id": "n1", "xds_addresses": [XDS], "admin_socket": "/tmp/admin.sock"} | more
    listen = HostPort("127.0.0.1", 10000) if role == "edge" else None
    return render_bootstrap(role=role, listen=listen, **values)


@pytest.mark.parametrize("role", ["edge", "node"])
@pytest.mark.parametrize(
    "values",
    [
        pytest.param({}, id="as usual"),
        pytest.param({"node_id": "n"}, id="a name that YAML may read as false"),
        pytest.param({"node_id": "1e3"}, id="a name that reads as a number"),
        pytest.param({"node_id": 'a": {b: "c'}, id="a name with YAML in it"),
        pytest.param({"xds_addresses": [BY_IP]}, id="xDS by IP"),
        pytest.param({"xds_addresses": [BY_NAME]}, id="xDS by name"),
        pytest.param({"xds_addresses": [BY_IP, XDS]}, id="xDS by IP and socket"),
        pytest.param({"xds_addresses": [BY_IP, BY_NAME]}, id="xDS by IP and name"),
        pytest.param({"lkg": "/tmp/lkg"}, id="a socket and a cache"),
        pytest.param({"xds_addresses": [BY_IP, XDS], "lkg": "/tmp/lkg"}, id="two and a cache"),
        pytest.param({"xds_addresses": [BY_NAME], "lkg": "/tmp/lkg"}, id="a name and a cache"),
    ],
)
def test_envoy_accepts_it(short_tmp_path, role, values):
    file = short_tmp_path / "bootstrap.yaml"
    file.write_text(render(role, **values))
    argv = [str(paths.envoy()), "--mode", "validate", "-c", str(file), "--disable-hot-restart"]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr[-500:]


def test_what_is_set_is_what_was_asked():
    bootstrap = yaml.safe_load(render("edge", tls_cert="/c.pem", tls_key="/k.pem"))
    assert bootstrap["node"]["metadata"] == {
        "role": "edge",
        "listen_address": "127.0.0.1",
        "listen_port": 10000,
        "tls": True,
    }
    assert bootstrap["admin"]["address"]["pipe"] == {"path": "/tmp/admin.sock", "mode": 0o600}
    (secret,) = bootstrap["static_resources"]["secrets"]
    assert secret["tls_certificate"]["private_key"] == {"filename": "/k.pem"}
    back_off = bootstrap["dynamic_resources"]["ads_config"]["grpc_services"][0]["envoy_grpc"]
    assert back_off["retry_policy"]["retry_back_off"] == {
        "base_interval": "0.2s",
        "max_interval": "1s",
    }


def test_an_edge_needs_an_address_and_a_role_its_template():
    with pytest.raises(ValueError, match="listen"):
        render_bootstrap(role="edge", node_id="e", xds_addresses=[XDS], admin_socket="/a")
    with pytest.raises(FileNotFoundError, match="no bootstrap template"):
        template_path("nope")


async def test_an_envoy_of_the_state_of_the_world_variant_is_served_the_same(short_tmp_path):
    """Other deployments of Envoy still ask for the whole state; ours never do."""

    def plan(lab, *models):
        return make_plan(
            *(
                consul_entry(
                    f"n1.e{i}", port=lab.node_port, socket=lab.socket(f"e{i}"), model=model
                )
                for i, model in enumerate(models)
            )
        )

    def whole_state(text):
        assert '"DELTA_GRPC"' in text
        return text.replace('"DELTA_GRPC"', '"GRPC"')

    async def ask(session, lab, model):
        headers = {"content-type": "application/json"}
        url = f"{lab.url}/v1/chat/completions"
        async with session.post(url, data=chat(model), headers=headers) as response:
            return response.status

    async with running_lab(short_tmp_path) as lab, lab.engine("e0"), lab.engine("e1"):
        lab.store.publish(plan(lab, "acme/fox"))
        async with (
            lab.envoy("node", "n1", rewrite=whole_state),
            lab.envoy("edge", "edge-1", rewrite=whole_state),
            aiohttp.ClientSession() as session,
        ):
            assert await ask(session, lab, "acme/fox") == 200
            await lab.publish(plan(lab, "acme/fox", "acme/owl"))
            async with asyncio.timeout(10):  # the new engine passes its first health check
                while await ask(session, lab, "acme/owl") != 200:  # noqa: ASYNC110 no bell
                    await asyncio.sleep(0.05)
            before = [(await lab.stats(name))[CLUSTERS] for name in ("n1", "edge-1")]
            await lab.publish(plan(lab, "acme/fox"))
            assert await ask(session, lab, "acme/owl") == 404
            assert await ask(session, lab, "acme/fox") == 200
            async with asyncio.timeout(10):  # clusters go a grace after the routes to them
                for name, with_owl in zip(("n1", "edge-1"), before, strict=True):
                    while (await lab.stats(name))[CLUSTERS] >= with_owl:  # noqa: ASYNC110 no bell
                        await asyncio.sleep(0.05)
                    assert (await lab.stats(name))["cluster_manager.cds.update_rejected"] == 0
