"""What two real Envoys 1.40 answered, trimmed, and the versions that they had been sent.

A node with four engines, one of them draining and all of them failing their health checks, and an
edge with a request limit; both take part in the mesh's TLS.
"""

import copy
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from control_plane.lkg.dump import AdminAnswers

_DIRECTORY = Path(__file__).with_name("recorded")


@dataclass
class RecordedEnvoy:
    """The answers as values that a test may change."""

    config_dump: dict[str, Any]
    clusters: dict[str, Any]
    runtime: dict[str, Any]
    sent: dict[str, dict[str, str]] = field(default_factory=dict)  # type URL → name → version

    @classmethod
    def read(cls, role: str) -> "RecordedEnvoy":
        return cls(**json.loads((_DIRECTORY / f"{role}.json").read_bytes()))

    def section(self, name: str) -> dict[str, Any]:
        """Return a part of the dump, e.g. "Clusters"."""
        end = f".{name}ConfigDump"
        return next(x for x in self.config_dump["configs"] if x["@type"].endswith(end))

    def answers(self) -> AdminAnswers:
        return AdminAnswers(
            config_dump=json.dumps(self.config_dump).encode(),
            clusters=json.dumps(self.clusters).encode(),
            runtime=json.dumps(self.runtime).encode(),
        )

    def copy(self) -> "RecordedEnvoy":
        return copy.deepcopy(self)
