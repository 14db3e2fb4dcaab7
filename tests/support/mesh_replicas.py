"""A mesh with several control planes, and with a last-known-good cache beside every Envoy."""

import signal
from typing import Any

from tests.support import paths, unix_http
from tests.support.mesh import Mesh
from tests.support.processes import Process


class ReplicatedMesh(Mesh):
    """Control planes that all read the same Consul and the same policy file.

    Replica 0 is the mesh's own control plane; each has a socket for xDS and one for its admin API.
    """

    def __init__(self, *args: Any, replicas: int = 1, caches: bool = False, **more: Any) -> None:
        super().__init__(*args, **more)
        self._caches = caches
        self.replicas: list[Process | None] = [None] * replicas
        self.edge_cache: Process | None = None

    # -- starting and stopping ------------------------------------------------------------------

    def xds_options(self, which: str) -> list[str]:
        options = [
            option
            for number in range(len(self.replicas))
            for option in ("--xds-address", f"unix:{self._socket('xds', number)}")
        ]
        return [*options, "--lkg", f"{self.root}/lkg-{which}"] if self._caches else options

    def start_control_plane(self) -> None:
        for number in range(len(self.replicas)):
            self.start_replica(number)
        self.control_plane = self.replicas[0]

    def start_replica(self, number: int) -> None:
        argv = [*paths.wattmesh(), "control-plane", "--catalog", "consul"]
        argv += ["--policy", str(self.policy_file), "--log-format", "json"]
        argv += ["--xds-address", f"unix:{self._socket('xds', number)}"]
        argv += ["--admin-address", f"unix:{self._socket('admin', number)}"]
        argv += ["--consul-address", self.consul.address]
        name = f"control-plane-{number}"
        self.replicas[number] = Process(name, argv, log=self.root / f"{name}.log")

    def start_edge(self) -> None:
        super().start_edge()
        if self._caches and self.edge_cache is None:
            argv = [*paths.wattmesh(), "lkg", "--dir", f"{self.root}/lkg-edge"]
            argv += ["--envoy-admin", f"{self.root}/edge.sock", "--poll-s", "0.2"]
            self.edge_cache = Process("edge cache", argv, log=self.root / "lkg-edge.log")

    def kill_replica(self, number: int) -> None:
        """End a control plane as a crash would."""
        replica = self.replicas[number]
        assert replica is not None
        replica.kill()
        self.replicas[number] = None

    def restart_edge(self) -> None:
        """Start the edge's Envoy from cold: nothing of the one before is left in it."""
        assert self.edge is not None
        self.edge.stop()
        self.start_edge()

    def stop(self) -> list[int]:
        survivors = super().stop()
        for part in (*self.replicas, self.edge_cache):
            if part is not None:
                part.send(signal.SIGTERM)
                part.stop()
        return survivors

    @property
    def processes(self) -> list[Process]:
        parts = [*self.replicas, *self.agents.values(), self.edge, self.edge_cache]
        return [part for part in parts if part is not None]

    # -- asking ---------------------------------------------------------------------------------

    def connected(self, number: int) -> set[str]:
        """Return the node IDs of the Envoys that a replica serves; none when it is down."""
        if self.replicas[number] is None:
            return set()
        status = unix_http.get(self._socket("admin", number), "/v1/xds/status").json()
        return {stream["node"] for stream in status["streams"]}

    def everywhere_connected(self) -> list[str]:
        """Return the node ID of every open stream, on whatever replica."""
        return sorted(node for n in range(len(self.replicas)) for node in self.connected(n))

    def _socket(self, kind: str, number: int) -> str:
        return f"{self.root}/{kind}.sock" if number == 0 else f"{self.root}/{kind}-{number}.sock"
