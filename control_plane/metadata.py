"""The metadata of an engine in Consul: the contract between the agent that writes and we who read.

Consul stores strings only. A key that is absent means "unknown", which is its own value (None)
all the way to the plan. `parse_metadata(render_metadata(m)) == m` for every valid m.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from control_plane.errors import Problem, shown

STATES = ("warming", "ready", "draining")
MAX_SOCKET_PATH_BYTES = 107  # sockaddr_un holds 108 with the closing NUL; Envoy refuses 108
MAX_NAME_BYTES = 256  # of a model or version; keeps cluster names and labels bounded
_MAX_COUNT = 2**31 - 1
MAX_NUM_SEQS = 1_000_000  # what follows from it must fit Envoy's uint32
# The least and the largest that each number may be: within them the arithmetic of weights stays
# finite, whatever the other engines declare.
NUMBER_BOUNDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "gpu_power": (0.001, 1e12),
        "gpu_power_limit_w": (0.1, 1e6),
        "gpu_power_default_w": (0.1, 1e6),
        "keep_alive_s": (0.1, 86_400.0),
    }
)

_NO_TRAFFIC = "the engine gets no traffic until it registers again"
_UNKNOWN = "it counts as unknown meanwhile"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMetadata:
    """What an engine declares about itself. None = unknown."""

    model: str
    socket: str  # absolute path of the Unix socket on the engine's host, at most 107 bytes
    version: str = ""
    state: str = "ready"  # one of STATES
    gpu_model: str | None = None  # raw name, as the driver reports it
    gpu_count: int | None = None
    gpu_memory_mib: int | None = None
    gpu_compute_capability: str | None = None
    gpu_power: float | None = None  # explicit relative capacity; one A100-80GB = 100
    gpu_power_limit_w: float | None = None
    gpu_power_default_w: float | None = None
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    tensor_parallel_size: int | None = None
    vllm_version: str | None = None
    zone: str | None = None
    keep_alive_s: float | None = None  # the engine closes idle connections after this


_TEXTS = ("gpu_model", "gpu_compute_capability", "vllm_version", "zone")
_COUNTS = (
    "gpu_count",
    "gpu_memory_mib",
    "max_num_seqs",
    "max_model_len",
    "tensor_parallel_size",
)
_COUNT_BOUNDS: Mapping[str, int] = MappingProxyType({"max_num_seqs": MAX_NUM_SEQS})
_ALIASES = {"gpu_power": "gpuPower"}  # the spelling that Spring Cloud callers already use


def parse_metadata(
    meta: Mapping[str, str], *, source: str, path: str
) -> tuple[EngineMetadata | None, tuple[Problem, ...]]:
    """Return the metadata and every problem; None when the engine cannot be used at all.

    A broken model, version, socket or state drops the engine. A broken optional key becomes
    unknown, with a problem, and the engine stays.
    """
    reader = _Reader(meta, source, path)
    model = reader.name("model", required=True)
    version = reader.name("version", required=False)
    socket = reader.socket()
    state = reader.state()
    texts = {key: reader.text(key) for key in _TEXTS}
    counts = {key: reader.count(key) for key in _COUNTS}
    numbers = {key: reader.number(key) for key in NUMBER_BOUNDS}
    problems = tuple(reader.problems)
    if model is None or version is None or socket is None or state is None:
        return None, problems
    metadata = EngineMetadata(
        model=model,
        version=version,
        socket=socket,
        state=state,
        gpu_model=texts["gpu_model"],
        gpu_compute_capability=texts["gpu_compute_capability"],
        vllm_version=texts["vllm_version"],
        zone=texts["zone"],
        gpu_count=counts["gpu_count"],
        gpu_memory_mib=counts["gpu_memory_mib"],
        max_num_seqs=counts["max_num_seqs"],
        max_model_len=counts["max_model_len"],
        tensor_parallel_size=counts["tensor_parallel_size"],
        gpu_power=numbers["gpu_power"],
        gpu_power_limit_w=numbers["gpu_power_limit_w"],
        gpu_power_default_w=numbers["gpu_power_default_w"],
        keep_alive_s=numbers["keep_alive_s"],
    )
    return metadata, problems


def render_metadata(metadata: EngineMetadata) -> dict[str, str]:
    """Return the Consul form: strings only, unknown keys left out."""
    rendered = {"model": metadata.model, "socket": metadata.socket, "state": metadata.state}
    if metadata.version:
        rendered["version"] = metadata.version
    for key in (*_TEXTS, *_COUNTS, *NUMBER_BOUNDS):
        value = getattr(metadata, key)
        if value is not None:
            rendered[key] = f"{value:.17g}" if isinstance(value, float) else str(value)
    return rendered


def socket_path_fault(path: str) -> str | None:
    """Return what a socket path should have been, or None when it can be bound."""
    size_bytes = len(path.encode(errors="surrogatepass"))
    if size_bytes > MAX_SOCKET_PATH_BYTES:
        return (
            f"at most {MAX_SOCKET_PATH_BYTES} bytes (this path has {size_bytes}; "
            "the limit is the kernel's, in bytes)"
        )
    if not path.startswith("/") or "\0" in path:
        return "an absolute path"
    return None


def name_fault(name: str) -> str | None:
    """Return what a model or version name should have been, or None when it is usable."""
    size_bytes = len(name.encode(errors="surrogatepass"))
    if size_bytes > MAX_NAME_BYTES or not name.isprintable() or name != name.strip():
        return f"printable text of at most {MAX_NAME_BYTES} bytes with no space at its ends"
    return None


class _Reader:
    """Reads keys of one engine and gathers what is wrong with them."""

    def __init__(self, meta: Mapping[str, str], source: str, path: str) -> None:
        self._meta = meta
        self._source = source
        self._path = path
        self.problems: list[Problem] = []

    def _report(self, key: str, expected: str, meanwhile: str) -> None:
        value = self._meta.get(key)
        self.problems.append(
            Problem(
                source=self._source,
                path=f"{self._path}.{key}",
                value="missing" if value is None else shown(value),
                expected=expected,
                meanwhile=meanwhile,
            )
        )

    def name(self, key: str, *, required: bool) -> str | None:
        value = self._meta.get(key, "")
        if not value:
            if required:
                self._report(key, "the served model name", _NO_TRAFFIC)
            return None if required else ""
        fault = name_fault(value)
        if fault:
            self._report(key, fault, _NO_TRAFFIC)
            return None
        return value

    def socket(self) -> str | None:
        value = self._meta.get("socket", "")
        fault = socket_path_fault(value) if value else "the path of the engine's Unix socket"
        if fault:
            self._report("socket", fault, _NO_TRAFFIC)
            return None
        return value

    def state(self) -> str | None:
        value = self._meta.get("state", "ready")
        if value not in STATES:
            self._report("state", " or ".join(STATES), _NO_TRAFFIC)
            return None
        return value

    def text(self, key: str) -> str | None:
        value = self._meta.get(key)
        if value is None or value == "":
            return None
        fault = name_fault(value)
        if fault:
            self._report(key, fault, _UNKNOWN)
            return None
        return value

    def count(self, key: str) -> int | None:
        value = self._meta.get(key)
        if value is None:
            return None
        if not (value.isascii() and value.isdecimal() and len(value) <= 10):
            self._report(key, "a whole number of at least 1", _UNKNOWN)
            return None
        number, largest = int(value), _COUNT_BOUNDS.get(key, _MAX_COUNT)
        if not 1 <= number <= largest:
            self._report(key, f"a whole number from 1 to {largest}", _UNKNOWN)
            return None
        return number

    def number(self, key: str) -> float | None:
        least, largest = NUMBER_BOUNDS[key]
        alias = _ALIASES.get(key)
        if alias is not None and key not in self._meta:
            key = alias
        value = self._meta.get(key)
        if value is None:
            return None
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not least <= number <= largest:  # a NaN is not
            expected = f"a number from {least:g} to {largest:g}, without a unit"
            self._report(key, expected, _UNKNOWN)
            return None
        return number
