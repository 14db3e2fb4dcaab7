"""The registrar against an agent's HTTP API that is written by hand."""

import pytest
from aiohttp import web

from control_plane.consul_catalog import open_consul
from engines.registrar import (
    ConsulRegistrar,
    Registration,
    RegistryError,
    UnknownServiceError,
)

conformance = pytest.mark.conformance
ENGINE = Registration(
    id="n.e0",
    address="10.0.0.1",
    port=10443,
    ttl_s=10,
    tags=("model=acme/fox",),
    meta={"model": "acme/fox"},
)


class FakeAgent:
    """Answers PUT requests with what the test says and keeps them."""

    def __init__(self):
        self.requests = []
        self.answer = (200, "")

    async def handle(self, request):
        body = await request.json() if request.can_read_body else None
        self.requests.append((request.path, dict(request.query), body, request.headers))
        status, text = self.answer
        return web.Response(status=status, text=text)


@pytest.fixture
async def agent():
    fake = FakeAgent()
    app = web.Application()
    app.router.add_put("/{path:.*}", fake.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.port = site._server.sockets[0].getsockname()[1]
    yield fake
    await runner.cleanup()


@pytest.fixture
async def registrar(agent):
    async with open_consul(f"http://127.0.0.1:{agent.port}", "s3cret") as client:
        yield ConsulRegistrar(client)


@conformance("consul-20")
@conformance("consul-23")
@conformance("consul-25")
@conformance("consul-28")
async def test_consul_20_23_25_28_registration(agent, registrar):
    await registrar.register(ENGINE)
    path, query, body, headers = agent.requests[0]
    assert path == "/v1/agent/service/register"
    assert query == {"replace-existing-checks": "true"}
    body = {name.lower(): value for name, value in body.items()}  # Consul reads either case
    assert (body["id"], body["name"], body["port"]) == ("n.e0", "wattmesh-engine", 10443)
    assert body["meta"] == {"model": "acme/fox"}
    (check,) = body["checks"]
    assert (check["TTL"], check["Status"]) == ("10s", "critical")
    assert check["DeregisterCriticalServiceAfter"] == "30m"
    assert not body.get("enabletagoverride")  # Consul's default: edits in the catalog do not last
    assert headers["X-Consul-Token"] == "s3cret"


@conformance("consul-13")
async def test_consul_13_the_token_is_in_a_header_never_in_the_url(agent, registrar):
    await registrar.heartbeat("n.e0", "passing", "answers")
    _, query, _, _ = agent.requests[0]
    assert query == {"note": "answers"}


@pytest.mark.parametrize(
    ("status", "path"), [("passing", "pass"), ("warning", "warn"), ("critical", "fail")]
)
async def test_heartbeats(agent, registrar, status, path):
    await registrar.heartbeat("n.e0", status, "note")
    assert agent.requests[0][0] == f"/v1/agent/check/{path}/service:n.e0"


@conformance("consul-21")
@pytest.mark.parametrize(
    "answer",
    [
        (404, 'Unknown check "service:n.e0"'),
        (404, 'Unknown check ID "service:n.e0". Ensure that the check ID is passed'),
        (500, 'CheckID "service:n.e0" does not have associated TTL'),
    ],
)
async def test_consul_21_a_check_that_consul_does_not_know_is_told_apart(agent, registrar, answer):
    agent.answer = answer
    with pytest.raises(UnknownServiceError):
        await registrar.heartbeat("n.e0", "passing", "answers")


@pytest.mark.parametrize("answer", [(403, "Permission denied"), (500, "No cluster leader")])
async def test_refusals_are_registry_errors_that_say_why(agent, registrar, answer):
    agent.answer = answer
    with pytest.raises(RegistryError, match=answer[1]) as error:
        await registrar.register(ENGINE)
    assert not isinstance(error.value, UnknownServiceError)
    assert "s3cret" not in str(error.value)


async def test_deregistering_what_is_not_there_is_no_error(agent, registrar):
    agent.answer = (404, 'Unknown service ID "n.e0"')
    await registrar.deregister("n.e0")
    assert agent.requests[0][0] == "/v1/agent/service/deregister/n.e0"


async def test_nobody_there():
    async with open_consul("http://127.0.0.1:1", None) as client:
        with pytest.raises(RegistryError, match="cannot be reached"):
            await ConsulRegistrar(client).heartbeat("n.e0", "passing", "answers")
