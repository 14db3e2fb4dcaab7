"""Callers that are programs: curl, Node's http2 module, Java's HttpClient, and h2load.

Each can say why it cannot run here, so that a test is skipped with its name and the reason.
"""

import json
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.support.callers import CHAT, TIMEOUT_S, ByteCaller, CallResult, event_data

SOURCES = Path(__file__).parents[1] / "callers"
_PACKAGES = {
    "curl": "curl",
    "h2load": "nghttp2-client",
    "java": "default-jdk-headless",
    "javac": "default-jdk-headless",
    "node": "nodejs",
    "openssl": "openssl",
}
_H2LOAD_TIMEOUT_S = 240.0


class CallerError(AssertionError):
    """A program ended without an answer; the message is what it wrote to standard error."""


def missing(*programs: str) -> str | None:
    """Return why these programs cannot run here; None when they can."""
    absent = [program for program in programs if shutil.which(program) is None]
    packages = sorted({_PACKAGES[program] for program in absent})
    if not absent:
        return None
    return f"no {' and no '.join(absent)} on PATH: install the package {', '.join(packages)}"


def curl_without_http2() -> str | None:
    """Return why curl cannot speak HTTP/2 here; None when it can."""
    reason = missing("curl")
    if reason is None and "HTTP2" not in _run("curl", "--version"):
        return "this curl was built without HTTP/2"
    return reason


class Curl(ByteCaller):
    """curl, which is given the HTTP version as an option. `-N` prints what comes at once."""

    def __init__(self, http_version_option: str) -> None:
        self._option = http_version_option

    def send(self, base_url: str, body: bytes, *, stream: bool) -> CallResult:
        argv = ["curl", "-sSN", "--noproxy", "*", self._option, "--max-time", f"{TIMEOUT_S:g}"]
        argv += ["-H", "content-type: application/json", "--data-binary", "@-"]
        # Headers come as one JSON object, after the status, on standard error.
        argv += ["-w", "%{stderr}%{http_code} %{http_version} %{header_json}", base_url + CHAT]
        events: list[tuple[float, str]] = []
        lines: list[str] = []
        pipe = subprocess.PIPE
        with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, encoding="utf-8") as curl:
            assert curl.stdin
            assert curl.stdout
            assert curl.stderr
            started = time.monotonic()
            curl.stdin.write(body.decode())
            curl.stdin.close()
            for line in curl.stdout:
                lines.append(line)
                data = event_data(line) if stream else None
                if data is not None:
                    events.append((time.monotonic() - started, data))
            summary = curl.stderr.read()
        if curl.returncode:
            raise CallerError(f"curl: {summary}")
        status, version, headers = summary.split(" ", 2)
        return CallResult(
            status=int(status),
            text="".join(lines),
            http_version={"1.1": "HTTP/1.1", "2": "HTTP/2"}.get(version, version),
            events=tuple(events),
            headers={name: ", ".join(values) for name, values in json.loads(headers).items()},
        )


class Node(ByteCaller):
    """Node's own http2 module."""

    def send(self, base_url: str, body: bytes, *, stream: bool) -> CallResult:
        return _run_caller(
            ["node", str(SOURCES / "chat-caller.mjs"), base_url + CHAT], body, stream
        )


class Java(ByteCaller):
    """The JDK's HttpClient: `options` of ChatCaller, compiled once into the folder `classes`."""

    def __init__(self, classes: Path, *options: str) -> None:
        self._argv = ["java", "-XX:TieredStopAtLevel=1", "-cp", str(classes), "ChatCaller"]
        self._argv += options
        if not (classes / "ChatCaller.class").exists():
            _run("javac", "-d", str(classes), str(SOURCES / "ChatCaller.java"))

    def send(self, base_url: str, body: bytes, *, stream: bool) -> CallResult:
        mode = ["--stream"] if stream else []
        return _run_caller([*self._argv, *mode, base_url + CHAT], body, stream)


def _run_caller(argv: list[str], body: bytes, stream: bool) -> CallResult:
    """Run one of our caller programs; read the JSON object that it prints."""
    said = json.loads(_run(*argv, stdin=body))
    return CallResult(
        status=said["status"],
        text=said["body"],
        http_version={"HTTP_1_1": "HTTP/1.1", "HTTP_2": "HTTP/2"}[said["version"]],
        events=tuple((event["at_s"], event["data"]) for event in said["events"] if stream),
        headers=said["headers"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class H2loadResult:
    """The counts that h2load prints; `failed` includes errors and time-outs."""

    done: int
    succeeded: int
    failed: int
    status_2xx: int
    status_other: int
    requests_per_s: float


def h2load(
    base_url: str, body_file: Path, *, requests: int, connections: int = 4, streams: int = 16
) -> H2loadResult:
    """POST a body so many times over HTTP/2, with at most connections x streams at once."""
    output = _run(
        *("h2load", "-n", str(requests), "-c", str(connections), "-m", str(streams)),
        *("-d", str(body_file), "-H", "content-type: application/json", base_url + CHAT),
        timeout_s=_H2LOAD_TIMEOUT_S,
    )
    counts = _numbers(r"^requests: .*$", output)  # total, started, done, succeeded, failed, ...
    statuses = _numbers(r"^status codes: .*$", output)
    rate = re.search(r"([\d.]+) req/s", output)
    return H2loadResult(
        done=counts["done"],
        succeeded=counts["succeeded"],
        failed=counts["failed"] + counts["errored"] + counts["timeout"],
        status_2xx=statuses["2xx"],
        status_other=statuses["3xx"] + statuses["4xx"] + statuses["5xx"],
        requests_per_s=float(rate[1]) if rate else 0.0,
    )


def _numbers(pattern: str, text: str) -> dict[str, int]:
    line = re.search(pattern, text, re.M)
    if line is None:
        raise CallerError(f"h2load printed no such line: {pattern}\n{text[-500:]}")
    return {name: int(number) for number, name in re.findall(r"(\d+) (\w+)", line[0])}


def _run(*argv: str, stdin: bytes | None = None, timeout_s: float = TIMEOUT_S) -> str:
    done = subprocess.run(argv, input=stdin, capture_output=True, timeout=timeout_s, check=False)
    if done.returncode:
        errors = done.stderr.decode(errors="replace")
        raise CallerError(f"{argv[0]} ended with {done.returncode}: {errors[-1000:]}")
    return done.stdout.decode()
