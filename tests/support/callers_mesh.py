"""A mesh of three models for the callers, with an edge that also offers TLS.

"acme/fox" makes a token each 100 ms, "acme/fox-7b" is fast, and "acme/recorder" keeps what it is
sent. The names hold slashes, and one is the beginning of another, as names of models do.
"""

import subprocess
from functools import partial
from pathlib import Path

from engines.gpu import load_gpu_table
from engines.simulator.service_model import service_model
from tests.support import paths
from tests.support.callers_programs import missing
from tests.support.callers_recorder import Recorder
from tests.support.envoy import EnvoyAdmin
from tests.support.mesh import EngineSetup, Mesh
from tests.support.ports import free_ports
from tests.support.processes import Process, wait_until

SLOW, FAST, RECORDER = "acme/fox", "acme/fox-7b", "acme/recorder"
_NODE = "node-a"
_SLOW_POWER, _FAST_POWER = 7.85, 4000.0
STEP_S = service_model(
    load_gpu_table(), gpu=None, gpu_power=_SLOW_POWER, speedup=1.0
).step_s  # between two tokens of SLOW
_READY_S = 60.0


class CallersMesh(Mesh):
    """A mesh with a recorder and a second edge that offers TLS; `ca` is its certificate.

    The second edge is left out where no openssl can make the certificate.
    """

    def __init__(self) -> None:
        super().__init__(
            [
                EngineSetup(node=_NODE, name="slow", gpu_power=_SLOW_POWER, model=SLOW),
                EngineSetup(node=_NODE, name="fast", gpu_power=_FAST_POWER, model=FAST),
            ]
        )
        (self.root / _NODE).mkdir()
        socket = self.root / _NODE / "recorder.sock"
        self.recorder = Recorder(socket)
        self.fast_socket = str(self.root / _NODE / "fast.sock")
        (self._tls_port,) = free_ports(1)
        self.ca = self.root / "edge.crt"
        self.tls_edge: Process | None = None

    @property
    def tls_url(self) -> str:
        return f"https://localhost:{self._tls_port}"

    def start(self) -> None:
        super().start()
        self.recorder.__enter__()
        self._register_recorder()
        if missing("openssl") is None:
            self._start_tls_edge()

    def _register_recorder(self) -> None:
        """Register the recorder as an agent registers an engine."""
        meta = {
            "model": RECORDER,
            "socket": str(self.recorder.server_address),
            "gpu_power": "100",
            "max_num_seqs": "64",
        }
        self.consul.put(
            "/v1/agent/service/register",
            {
                "ID": f"{_NODE}.recorder",
                "Name": "wattmesh-engine",
                "Address": "127.0.0.1",
                "Port": self.mesh_ports[_NODE],
                "Meta": meta,
                "Check": {"TTL": "1h", "Status": "passing"},
            },
        )

    def _start_tls_edge(self) -> None:
        key = self.root / "edge.key"
        make_certificate(self.ca, key)
        argv = [*paths.wattmesh(), "bootstrap", "--role", "edge", "--node-id", "edge-tls"]
        argv += ["--xds-address", self.xds_address, "--listen", f"127.0.0.1:{self._tls_port}"]
        argv += ["--tls-cert", str(self.ca), "--tls-key", str(key)]
        argv += ["--admin-socket", f"{self.root}/edge-tls.sock"]
        bootstrap = self.root / "edge-tls.yaml"
        bootstrap.write_bytes(subprocess.run(argv, check=True, capture_output=True).stdout)
        envoy = [str(paths.envoy()), "-c", str(bootstrap)]
        self.tls_edge = Process(
            "TLS edge Envoy",
            [*envoy, "--disable-hot-restart", "--concurrency", "1", "-l", "warn"],
            log=self.root / "edge-tls.log",
        )

    def wait_until_ready(self) -> None:
        """Wait until every model answers, and the TLS edge listens."""
        for model in (SLOW, FAST, RECORDER):
            wait_until(
                partial(self._answers, model),
                f"{model} answers",
                timeout_s=_READY_S,
                processes=self.processes,
            )
        if self.tls_edge is None:
            return
        wait_until(
            lambda: "edge" in EnvoyAdmin(f"{self.root}/edge-tls.sock").get("/listeners"),
            "the TLS edge listens",
            timeout_s=_READY_S,
            processes=self.processes,
        )

    @property
    def processes(self) -> list[Process]:
        return [*super().processes, *([self.tls_edge] if self.tls_edge else [])]

    def _answers(self, model: str) -> bool:
        return self.chat(model=model, max_tokens=1).status_code == 200

    def stop(self) -> list[int]:
        if self.tls_edge is not None:
            self.tls_edge.stop()
        survivors = super().stop()
        self.recorder.__exit__(None, None, None)
        return survivors


def make_certificate(certificate: Path, key: Path) -> None:
    """Write a self-signed certificate for localhost and its key."""
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    argv += ["-nodes", "-days", "2", "-subj", "/CN=localhost"]
    argv += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    argv += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(argv, check=True, capture_output=True)
