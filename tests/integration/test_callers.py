"""Real callers through a whole mesh, unary and streamed: curl, SDKs, Node, Java and h2load.

The engines are simulated, one of them with 100 ms between two tokens; all else is real.
"""

import json
import statistics
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import httpx
import openai
import pytest

from tests.support.callers import CHAT, DONE, ByteCaller, Caller, CallResult, chat_bytes
from tests.support.callers_mesh import FAST, RECORDER, SLOW, STEP_S, CallersMesh
from tests.support.callers_programs import (
    Curl,
    Java,
    Node,
    curl_without_http2,
    h2load,
    missing,
)
from tests.support.callers_python import Httpx, OpenAiSdk, openai_client

pytestmark = [pytest.mark.envoy, pytest.mark.consul, pytest.mark.callers]

PROMPT = 'Größe und Farbe: 雲 ☁, «nuage» \\ "cloud"\n' * 2
TOKENS = 12
HTTP1, HTTP2 = "HTTP/1.1", "HTTP/2"


def can_always() -> None:
    """Python callers are in the lock."""


# Name → the way to make it, why it cannot run, the protocol it ends up with on plain http. Java's
# client knows no prior knowledge: whatever its version setting, it asks for an upgrade to h2c.
CALLERS: dict[str, tuple[Callable[[Path], Caller], Callable[[], str | None], str]] = {
    "curl": (lambda _: Curl("--http1.1"), lambda: missing("curl"), HTTP1),
    "curl-http2": (lambda _: Curl("--http2-prior-knowledge"), curl_without_http2, HTTP2),
    "openai-sdk": (lambda _: OpenAiSdk(), can_always, HTTP1),
    "httpx-http2": (lambda _: Httpx(), can_always, HTTP2),
    "node-http2": (lambda _: Node(), lambda: missing("node"), HTTP2),
    "java-default": (Java, lambda: missing("java", "javac"), HTTP1),
    "java-HTTP_2": (lambda path: Java(path, "--http2"), lambda: missing("java", "javac"), HTTP1),
}
BYTE_CALLERS = [name for name in CALLERS if name != "openai-sdk"]


@pytest.fixture(scope="module")
def mesh() -> Iterator[CallersMesh]:
    with CallersMesh() as mesh:
        yield mesh


@pytest.fixture(autouse=True)
def all_programs_run_on(mesh: CallersMesh) -> Iterator[None]:
    """Tell the first test at which a program of the mesh had ended, with its last lines."""
    yield
    ended = [process.tail() for process in mesh.processes if process.returncode is not None]
    assert not ended, "\n".join(ended)


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Java's callers are compiled to, once."""
    return tmp_path_factory.mktemp("classes")


@pytest.fixture(params=list(CALLERS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def caller(name: str, classes: Path) -> Caller:
    make, why_not, _ = CALLERS[name]
    reason = why_not()
    if reason:
        pytest.skip(f"{name}: {reason}")
    return make(classes)


def test_unary(mesh: CallersMesh, caller: Caller, name: str) -> None:
    result = caller.unary(mesh.edge_url, FAST, PROMPT, max_tokens=5)
    assert (result.status, result.http_version) == (200, CALLERS[name][2])
    answer = result.json()
    assert answer["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens"] == 5
    assert answer["usage"]["prompt_tokens"] > 0


def test_streamed_events_arrive_one_by_one(mesh: CallersMesh, caller: Caller, name: str) -> None:
    def send() -> CallResult:
        result = caller.stream(mesh.edge_url, SLOW, PROMPT, max_tokens=TOKENS)
        assert (result.status, result.http_version) == (200, CALLERS[name][2])
        return result

    check_streams(send, done=not caller.hides_done)


def check_streams(send: Callable[[], CallResult], *, done: bool) -> None:
    """Check that streams are whole, and that one of three keeps the engine's times.

    A busy machine delays a stream now and then; whatever buffers, or answers late, always does.
    """
    faults = []
    for _ in range(3):
        fault = timing_fault(token_times(send(), done=done))
        if fault is None:
            return
        faults.append(fault)
    pytest.fail("\n".join(faults))


def token_times(result: CallResult, *, done: bool) -> list[float]:
    """Return when each token arrived; check that all did, with usage and the end of the stream."""
    events = list(result.events)
    if done:
        assert events.pop()[1] == DONE
    chunks = [json.loads(data) for _, data in events]
    assert chunks[-1]["usage"]["completion_tokens"] == TOKENS
    times = [at for (at, _), chunk in zip(events, chunks, strict=True) if chunk["choices"]]
    assert len(times) == TOKENS
    return times


def timing_fault(times: list[float]) -> str | None:
    """Return how the times differ from an early start and the spacing of the engine's tokens."""
    gaps = [later - earlier for earlier, later in pairwise(times)]
    kept = sum(gap > 0.4 * STEP_S for gap in gaps) / len(gaps)
    if times[0] >= 0.5:
        return f"first event after {times[0]:.2f} s"
    if not 0.7 * STEP_S < statistics.median(gaps) < 2 * STEP_S or kept < 0.75:
        return f"spacing not kept: {[round(gap, 3) for gap in gaps]}"
    return None


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "streamed"])
def test_java_over_tls_negotiates_http2(mesh: CallersMesh, classes: Path, stream: bool) -> None:
    """The one way by which Java's client speaks HTTP/2 with an Envoy: ALPN."""
    reason = missing("java", "javac", "openssl")
    if reason:
        pytest.skip(f"java over TLS: {reason}")
    java = Java(classes, "--http2", "--ca", str(mesh.ca))

    def send() -> CallResult:
        send = java.stream if stream else java.unary
        result = send(mesh.tls_url, SLOW, PROMPT, max_tokens=TOKENS)
        assert (result.status, result.http_version) == (200, HTTP2)
        return result

    if stream:
        check_streams(send, done=True)
    else:
        assert send().json()["usage"]["completion_tokens"] == TOKENS


@pytest.mark.case("B2")
@pytest.mark.parametrize("name", BYTE_CALLERS, indirect=True)
def test_b2_the_engine_gets_the_body_byte_for_byte_and_no_upgrade(
    mesh: CallersMesh, caller: Caller, name: str
) -> None:
    assert isinstance(caller, ByteCaller)
    body = chat_bytes(RECORDER, PROMPT, max_tokens=1, stream=False)
    assert len(body) > 200
    before = len(mesh.recorder.received)
    result = caller.send(mesh.edge_url, body, stream=False)
    assert result.status == 200, result.text
    (received,) = mesh.recorder.received[before:]
    assert received.body == body
    assert not received.headers.keys() & {"upgrade", "http2-settings", "connection"}


@pytest.mark.case("B2")
@pytest.mark.parametrize("size", [32_769, 1_048_577], ids=["32 KiB + 1", "1 MiB + 1"])
def test_b2_a_large_body_survives_javas_upgrade(
    mesh: CallersMesh, classes: Path, size: int
) -> None:
    reason = missing("java", "javac")
    if reason:
        pytest.skip(f"java: {reason}")
    body = chat_bytes(RECORDER, "", max_tokens=1, stream=False)
    body = chat_bytes(RECORDER, "x" * (size - len(body)), max_tokens=1, stream=False)
    assert len(body) == size
    assert Java(classes).send(mesh.edge_url, body, stream=False).status == 200
    assert mesh.recorder.received[-1].body == body


@pytest.mark.case("B2")
def test_b2_the_engine_itself_reads_a_body_with_upgrade_headers(mesh: CallersMesh) -> None:
    """Straight at the simulated engine's socket, with the three headers that Java sends."""
    headers = {
        "content-type": "application/json",
        "connection": "Upgrade, HTTP2-Settings",
        "upgrade": "h2c",
        "http2-settings": "AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
    }
    body = chat_bytes(FAST, PROMPT, max_tokens=3, stream=False)
    with httpx.Client(transport=httpx.HTTPTransport(uds=mesh.fast_socket)) as client:
        answer = client.post(f"http://engine{CHAT}", content=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("name", BYTE_CALLERS, indirect=True)
@pytest.mark.parametrize("stream", [False, True], ids=["unary", "streamed"])
def test_an_unknown_model_is_a_404_in_openai_shape(
    mesh: CallersMesh, caller: Caller, stream: bool
) -> None:
    send = caller.stream if stream else caller.unary
    result = send(mesh.edge_url, "acme/fo", PROMPT)
    assert (result.status, result.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "streamed"])
def test_the_openai_sdk_raises_not_found_for_an_unknown_model(
    mesh: CallersMesh, stream: bool
) -> None:
    sdk = OpenAiSdk()
    send = sdk.stream if stream else sdk.unary
    with pytest.raises(openai.NotFoundError) as caught:
        send(mesh.edge_url, "acme/fo", PROMPT)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


@pytest.mark.case("E1")
def test_e1_the_openai_sdk_retrieves_every_listed_model(mesh: CallersMesh) -> None:
    with openai_client(mesh.edge_url) as client:
        listed = [model.id for model in client.models.list()]
        assert listed == sorted([SLOW, FAST, RECORDER])
        assert [client.models.retrieve(model).id for model in listed] == listed
        for unknown in ("acme", "acme/", "acme/fo", "acme/fox-", "fox"):
            with pytest.raises(openai.NotFoundError) as caught:
                client.models.retrieve(unknown)
            assert caught.value.code == "model_not_found"


def test_h2load_10000_requests_without_an_error(mesh: CallersMesh, tmp_path: Path) -> None:
    reason = missing("h2load")
    if reason:
        pytest.skip(f"h2load: {reason}")
    body = tmp_path / "chat.json"
    body.write_bytes(chat_bytes(FAST, PROMPT, max_tokens=1, stream=False))
    result = h2load(mesh.edge_url, body, requests=10_000)
    assert (result.done, result.succeeded, result.failed) == (10_000, 10_000, 0)
    assert (result.status_2xx, result.status_other) == (10_000, 0)
