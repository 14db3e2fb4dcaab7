"""The simulated engine's start and stop: its socket, its drain, what it says and what it keeps."""

import asyncio
import contextlib
import json
import signal
import sys
import time

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engines.gpu import load_gpu_table
from engines.simulator.server import EngineOptions, serving
from engines.simulator.service_model import service_model
from engines.sockets import SocketError, is_listening
from tests.support.eventually import eventually

MODEL = "acme/fox-7b"
CHAT = "/v1/chat/completions"
SECRET = "the-prompt-nobody-may-read"


def options(socket, **fields):
    values = {
        "uds": str(socket),
        "model": MODEL,
        "service": service_model(load_gpu_table(), gpu=None, gpu_power=None, speedup=4),
        "max_num_seqs": 1,
        "max_model_len": 4000,
        "keep_alive_s": 5,
        "socket_mode": 0o660,
        "seed": 7,
    }
    return EngineOptions(**(values | fields))


def chat(**fields):
    return {"model": MODEL, "messages": [{"role": "user", "content": SECRET}]} | fields


def caller(socket):
    return aiohttp.ClientSession("http://engine", connector=aiohttp.UnixConnector(str(socket)))


async def metrics(client):
    async with client.get("/metrics") as answer:
        text = await answer.text()
    return {
        (sample.name, sample.labels.get("finished_reason")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@contextlib.asynccontextmanager
async def program(*arguments):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "engines.simulator", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def test_a_stop_lets_running_streams_end_and_takes_no_new_caller(short_tmp_path):
    socket = short_tmp_path / "e.sock"
    async with program("--uds", str(socket), "--served-model-name", MODEL) as engine:
        await eventually(lambda: is_listening(str(socket)), within_s=20)
        async with caller(socket) as client:
            async with client.post(CHAT, json=chat(stream=True, max_tokens=100)) as answer:
                await answer.content.readline()
                engine.send_signal(signal.SIGTERM)
                await eventually(lambda: not is_listening(str(socket)))
                assert engine.returncode is None  # still serves the one that runs
                rest = await answer.text()
            assert rest.rstrip().endswith("data: [DONE]")
        _, log = await engine.communicate()
    assert engine.returncode == 0
    assert not socket.exists()
    assert SECRET.encode() not in log


@pytest.mark.case("A2")
async def test_a2_an_engine_that_drains_leaves_its_successors_socket_alone(short_tmp_path):
    socket = short_tmp_path / "e.sock"
    stop = asyncio.Event()

    async def old():
        async with serving(options(socket)):
            await stop.wait()

    ending = asyncio.ensure_future(old())
    await eventually(lambda: is_listening(str(socket)))
    request = chat(stream=True, max_tokens=300)
    async with caller(socket) as client, client.post(CHAT, json=request) as answer:
        await answer.content.readline()
        stop.set()
        await eventually(lambda: not is_listening(str(socket)))
        async with serving(options(socket)):
            assert not ending.done()
            assert (await answer.text()).rstrip().endswith("[DONE]")
            await ending
            assert is_listening(str(socket))
    assert not socket.exists()


@pytest.mark.case("A2")
@pytest.mark.parametrize("kind", ["file", "symlink"])
async def test_a2_whatever_is_no_socket_is_refused_and_kept(short_tmp_path, kind):
    path, other = short_tmp_path / "e.sock", short_tmp_path / "other"
    other.write_text("kept")
    if kind == "symlink":
        path.symlink_to(other)
    else:
        path.write_text("kept")
    with pytest.raises(SocketError):
        async with serving(options(path)):
            pass
    assert path.is_symlink() == (kind == "symlink")
    assert path.read_text() == "kept"


async def test_a_stop_ends_within_its_grace_however_long_a_generation_is(short_tmp_path):
    socket = short_tmp_path / "e.sock"
    async with caller(socket) as client:
        async with serving(options(socket, stop_grace_s=0.6)):
            answer = await client.post(CHAT, json=chat(stream=True, max_tokens=3000))
            await answer.content.readline()
            began = time.monotonic()
        took_s = time.monotonic() - began
        answer.close()
    assert 0.4 < took_s < 0.9  # twice the grace would be 1.2


async def test_a_caller_that_gives_up_while_it_waits_leaves_the_queue(short_tmp_path):
    socket = short_tmp_path / "e.sock"
    async with serving(options(socket)), caller(socket) as client, caller(socket) as other:
        first = asyncio.ensure_future(other.post(CHAT, json=chat(max_tokens=300)))
        await asyncio.sleep(0.1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.post(CHAT, json=chat())
        assert (await first).status == 200
        found = await metrics(client)
        assert found["vllm:num_requests_waiting", None] == 0
        assert found["vllm:num_requests_running", None] == 0
        assert found["vllm:request_success_total", "abort"] == 1
        async with client.post(CHAT, json=chat(max_tokens=1)) as answer:  # the place is free again
            assert answer.status == 200


async def test_every_reason_has_a_series_from_the_start_as_in_vllm(short_tmp_path):
    socket = short_tmp_path / "e.sock"
    async with serving(options(socket)), caller(socket) as client:
        found = await metrics(client)
    reasons = {reason for name, reason in found if name == "vllm:request_success_total"}
    assert reasons == {"stop", "length", "abort", "error", "repetition"}


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        pytest.param({"model": None, "max_tokens": 1}, 200, None, id="no model: the one served"),
        pytest.param({"model": 5}, 400, "model", id="a model that is no text"),
        pytest.param(
            {"messages": [{"role": "user", "content": "x" * 4 * 3995}]},
            200,
            None,
            id="the default fits in what is left",
        ),
        pytest.param(
            {"messages": [{"role": "user", "content": "x" * 4 * 4000}]},
            400,
            "input_tokens",
            id="a prompt that fills the context",
        ),
        pytest.param(
            {"stream_options": {"include_usage": True}},
            400,
            "stream_options",
            id="stream options without a stream",
        ),
        pytest.param(
            {"stream": True, "stream_options": 5},
            400,
            "stream_options",
            id="stream options that are no object",
        ),
        pytest.param(
            {"stream": True, "stream_options": {"include_usage": False}, "max_tokens": 1},
            200,
            None,
            id="usage is forced whatever is asked",
        ),
    ],
)
async def test_requests_at_the_edges_of_vllms_rules(short_tmp_path, fields, status, param):
    socket = short_tmp_path / "e.sock"
    async with (
        serving(options(socket)),
        caller(socket) as client,
        client.post(CHAT, json=chat(**fields)) as answer,
    ):
        text = await answer.text()
    assert answer.status == status
    if status == 400:
        assert json.loads(text)["error"]["param"] == param
    else:
        assert "usage" in text


@pytest.mark.case("B2")
async def test_b2_two_upgrade_attempts_on_one_connection_chunked_and_not(short_tmp_path):
    socket = short_tmp_path / "e.sock"
    body = json.dumps(chat(max_tokens=1)).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: e\r\nContent-Type: application/json\r\n"
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"
    ).encode()
    chunked = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    whole = b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    async with serving(options(socket)), asyncio.timeout(5):
        reader, writer = await asyncio.open_unix_connection(str(socket))
        for framing in (chunked, whole):
            writer.write(head + framing)
            answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            assert answer.startswith("http/1.1 200")
            length = answer.partition("content-length: ")[2].partition("\r\n")[0]
            await reader.readexactly(int(length))
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        pytest.param(["--socket-mode", "abc"], b"--socket-mode", id="a mode that is not octal"),
        pytest.param(["--socket-mode", "77777"], b"--socket-mode", id="a mode beyond nine bits"),
        pytest.param(
            ["--max-num-seqs", "8", "--max-num-batched-tokens", "7"],
            b"--max-num-batched-tokens",
            id="a step that cannot give everyone a token",
        ),
        pytest.param(["--uds", "/nonexistent-dir/e.sock"], b"cannot be bound", id="no directory"),
    ],
)
async def test_bad_options_are_told_in_one_line_and_exit_with_2(short_tmp_path, extra, told):
    arguments = ["--uds", str(short_tmp_path / "e.sock"), "--served-model-name", MODEL, *extra]
    async with program(*arguments) as engine, asyncio.timeout(20):
        _, log = await engine.communicate()
    assert engine.returncode == 2
    assert told in log
    assert b"Traceback" not in log


async def test_help_shows_every_option_and_that_it_is_not_vllm():
    async with program("--help") as engine:
        text, _ = await engine.communicate()
    assert engine.returncode == 0
    for option in (
        *("--uds", "--served-model-name", "--gpu", "--gpu-power", "--max-num-seqs"),
        *("--max-num-batched-tokens", "--max-model-len", "--keep-alive"),
        *("--socket-mode", "--seed", "--speedup"),
    ):
        assert option in text.decode()
    assert "Not vLLM" in " ".join(text.decode().split())  # however the terminal wraps it
