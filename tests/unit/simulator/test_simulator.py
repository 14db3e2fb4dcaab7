"""The simulated engine on its socket, as a caller and as Envoy see it."""

import asyncio
import contextlib
import io
import json
import signal
import sys
from urllib.parse import quote

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from engines.gpu import load_gpu_table
from engines.simulator.server import MAX_BODY_BYTES, EngineOptions, SimulatedEngine
from engines.simulator.service_model import service_model
from engines.sockets import is_listening
from tests.support.eventually import eventually

MODEL = "acme/fox-7b"
CHAT = "/v1/chat/completions"


@pytest.fixture
async def engine(short_tmp_path):
    """A client of a running engine with two places in its batch."""
    options = EngineOptions(
        uds=str(short_tmp_path / "e.sock"),
        model=MODEL,
        service=service_model(load_gpu_table(), gpu=None, gpu_power=None, speedup=4),
        max_num_seqs=2,
        max_model_len=2000,
        keep_alive_s=5,
        socket_mode=0o660,
        seed=7,
    )
    runner = web.AppRunner(SimulatedEngine(options).application(), handler_cancellation=True)
    await runner.setup()
    await web.UnixSite(runner, options.uds).start()
    async with aiohttp.ClientSession(
        "http://engine", connector=aiohttp.UnixConnector(options.uds)
    ) as client:
        client.uds = options.uds
        yield client
    await runner.cleanup()


def chat(**fields):
    return {"model": MODEL, "messages": [{"role": "user", "content": "secret"}]} | fields


async def metric(client, name, **labels):
    async with client.get("/metrics") as answer:
        text = await answer.text()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


async def post(client, path, body):
    async with client.post(path, json=body) as answer:
        return answer.status, await answer.json()


async def test_unary_chat_counts_tokens_and_never_echoes(engine):
    status, answer = await post(engine, CHAT, chat(max_tokens=5))
    assert status == 200
    (choice,) = answer["choices"]
    assert len(choice["message"]["content"].split()) == 5
    assert "secret" not in choice["message"]["content"]
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7}
    again = (await post(engine, CHAT, chat(max_tokens=5)))[1]["choices"]
    assert again == answer["choices"]  # the same request, the same words


async def test_completions(engine):
    body = {"model": MODEL, "prompt": "once", "max_completion_tokens": 3}
    status, answer = await post(engine, "/v1/completions", body)
    assert (status, answer["object"]) == (200, "text_completion")
    assert len(answer["choices"][0]["text"].split()) == 3


async def events(client, path, body):
    async with client.post(path, json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        return [line.decode().strip() async for line in answer.content if line.strip()]


@pytest.mark.parametrize(
    ("path", "body"),
    [(CHAT, chat()), ("/v1/completions", {"model": MODEL, "prompt": "x"})],
    ids=["chat", "completions"],
)
async def test_a_stream_ends_with_usage_and_done(engine, path, body):
    lines = await events(engine, path, body | {"stream": True, "max_tokens": 3})
    assert lines[-1] == "data: [DONE]"
    data = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert [len(event["choices"]) for event in data] == [1, 1, 1, 0]
    assert [event["usage"]["completion_tokens"] for event in data] == [1, 2, 3, 3]
    reasons = [event["choices"][0]["finish_reason"] for event in data[:-1]]
    assert reasons == [None, None, "length"]


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        (CHAT, chat(model="nope"), 404, "model"),
        (CHAT, {"model": MODEL}, 400, "messages"),
        (CHAT, chat(messages=[]), 400, "messages"),
        (CHAT, chat(messages=["x"]), 400, "messages"),
        (CHAT, chat(max_tokens=0), 400, "max_tokens"),
        (CHAT, chat(max_tokens=True), 400, "max_tokens"),
        (CHAT, chat(max_tokens=5000), 400, "max_tokens"),
        (CHAT, chat(stream="yes"), 400, "stream"),
        (CHAT, [1], 400, None),
        ("/v1/completions", {"model": MODEL, "prompt": ""}, 400, "prompt"),
    ],
)
async def test_refusals_are_vllms_and_never_repeat_the_prompt(engine, path, body, status, param):
    seen, answer = await post(engine, path, body)
    assert (seen, answer["error"]["param"]) == (status, param)
    assert answer["error"]["code"] == status
    assert "secret" not in json.dumps(answer)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000])
async def test_bodies_that_are_no_json(engine, data):
    async with engine.post(CHAT, data=data) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["type"] == "BadRequestError"


async def test_a_body_over_the_limit(engine):
    async with engine.post(CHAT, data=io.BytesIO(b" " * (MAX_BODY_BYTES + 1))) as answer:
        assert answer.status == 413
        assert (await answer.json())["error"]["code"] == 413


@pytest.mark.case("E1")
async def test_e1_its_model_is_found_plain_and_encoded(engine):
    for path in (MODEL, quote(MODEL, safe="")):
        async with engine.get(f"/v1/models/{path}") as answer:
            assert (answer.status, (await answer.json())["id"]) == (200, MODEL)
    for path in ("acme/fox", "acme/fox-7b-x", "nope"):
        async with engine.get(f"/v1/models/{path}") as answer:
            assert (answer.status, "error" in await answer.json()) == (404, True)


async def test_it_says_that_it_is_simulated(engine):
    async with engine.get("/version") as answer:
        version = await answer.json()
    assert version["simulated"] is True
    assert version["version"].startswith("simulated-")


async def test_the_batch_takes_two_and_the_third_waits_its_turn(engine):
    running = [asyncio.ensure_future(post(engine, CHAT, chat(max_tokens=300))) for _ in range(3)]
    await asyncio.sleep(0.2)
    assert await metric(engine, "vllm:num_requests_running") == 2
    assert await metric(engine, "vllm:num_requests_waiting") == 1
    assert 0 < await metric(engine, "vllm:kv_cache_usage_perc") < 1
    await asyncio.gather(*running)
    assert await metric(engine, "vllm:num_requests_running") == 0
    assert await metric(engine, "vllm:kv_cache_usage_perc") == 0
    assert await metric(engine, "vllm:generation_tokens_total") == 900
    assert await metric(engine, "vllm:request_success_total", finished_reason="length") == 3


async def test_a_stream_has_an_event_a_token_and_the_same_words_again(engine):
    body = {"model": MODEL, "prompt": "once upon", "max_tokens": 6, "stream": True}
    told = []
    for _ in range(2):
        lines = await events(engine, "/v1/completions", body)
        data = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
        told.append([event["choices"][0]["text"].strip() for event in data])
    assert told[0] == told[1]
    assert len(told[0]) == 6
    assert all(told[0])


async def test_steps_and_phases_are_observed_as_vllm_does(engine):
    prompts = [f"{'x' * 400}{i}" for i in range(4)]
    await asyncio.gather(
        *(
            post(engine, "/v1/completions", {"model": MODEL, "prompt": text, "max_tokens": 5})
            for text in prompts
        )
    )
    assert await metric(engine, "vllm:prompt_tokens_total") == 4 * 101
    assert await metric(engine, "vllm:iteration_tokens_total_sum") == 4 * 101 + 4 * 5
    assert await metric(engine, "vllm:inter_token_latency_seconds_count") == 4 * (5 - 1)
    for name in (
        *("time_to_first_token_seconds", "e2e_request_latency_seconds"),
        *(f"request_{phase}_time_seconds" for phase in ("queue", "prefill", "decode")),
    ):
        assert await metric(engine, f"vllm:{name}_count") == 4
    phases = [
        await metric(engine, f"vllm:request_{phase}_time_seconds_sum")
        for phase in ("queue", "prefill", "decode")
    ]
    assert all(phases)
    total_s = await metric(engine, "vllm:e2e_request_latency_seconds_sum")
    assert sum(phases) == pytest.approx(total_s)


@pytest.mark.case("B5")
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "unary"])
async def test_b5_a_caller_that_goes_ends_its_request(engine, stream):
    async with aiohttp.ClientSession(
        "http://engine", connector=aiohttp.UnixConnector(engine.uds, force_close=True)
    ) as caller:
        request = asyncio.ensure_future(
            caller.post(CHAT, json=chat(max_tokens=1900, stream=stream))
        )
        await asyncio.sleep(0.3)
        assert await metric(engine, "vllm:num_requests_running") == 1
        request.cancel()
        if request.done():
            request.result().close()
    for _ in range(100):
        if not await metric(engine, "vllm:num_requests_running"):
            break
        await asyncio.sleep(0.02)
    assert await metric(engine, "vllm:num_requests_running") == 0
    assert await metric(engine, "vllm:request_success_total", finished_reason="abort") == 1


@pytest.mark.case("B2")
async def test_b2_the_body_of_an_upgrade_attempt_is_read(engine):
    body = json.dumps(chat(max_tokens=1, filler="x" * 120)).encode()
    reader, writer = await asyncio.open_unix_connection(engine.uds)
    writer.write(
        f"POST {CHAT} HTTP/1.1\r\nHost: e\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n\r\n".encode()
        + body
    )
    async with asyncio.timeout(5):
        head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 200")


@contextlib.asynccontextmanager
async def program(socket, *options):
    """Run the simulator as a program; what is yielded has read nothing of its log yet."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "engines.simulator", "--uds", str(socket)),
        *("--served-model-name", MODEL, *options),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def test_as_a_program_it_warns_serves_and_leaves_nothing(short_tmp_path):
    socket = short_tmp_path / "e.sock"
    async with program(socket, "--gpu", "NVIDIA L4", "--socket-mode", "0600") as engine:
        await eventually(lambda: is_listening(str(socket)), within_s=20)
        assert socket.stat().st_mode & 0o777 == 0o600
        async with program(socket) as second:
            _, told = await second.communicate()
            assert second.returncode == 2
            assert b"live server" in told
        engine.send_signal(signal.SIGTERM)
        _, log = await engine.communicate()
        assert engine.returncode == 0
        assert b"SIMULATED" in log
    assert not socket.exists()


@pytest.mark.case("A2")
async def test_a2_what_a_killed_engine_left_is_taken_over(short_tmp_path):
    socket = short_tmp_path / "e.sock"
    async with program(socket) as engine:
        await eventually(lambda: is_listening(str(socket)), within_s=20)
        engine.kill()
        await engine.communicate()
    assert socket.exists()
    assert not is_listening(str(socket))
    async with program(socket):
        await eventually(lambda: is_listening(str(socket)), within_s=20)
