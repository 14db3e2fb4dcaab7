"""node.yaml: the engines of one host, as the agent is to run them.

Strict, and every error of the file at once. What could only fail later, such as a socket path
that no kernel can bind or metadata that Consul refuses, is refused here, before any engine starts.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from control_plane.documents import Duration, Name, load_document
from control_plane.errors import InputError, Problem, shown
from control_plane.metadata import (
    MAX_NUM_SEQS,
    NUMBER_BOUNDS,
    EngineMetadata,
    address_fault,
    name_fault,
    render_metadata,
    socket_path_fault,
)
from engines.compute_capability import parse_compute_capability
from engines.keep_alive import ENGINE_KEEP_ALIVE_S
from engines.vllm_args import find_count, flag_of

_MEANWHILE = "nothing is started"
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}")
_ENGINE_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_MAX_META_VALUE_CHARS = 512  # Consul's limit of one metadata value
_OWNED_FLAGS = (
    "--uds",
    "--host",
    "--port",
    "--model",
    "--served-model-name",
    "--enable-log-requests",
    "--enable-log-outputs",
    "--max-num-seqs",
    "--max-model-len",
    "--tensor-parallel-size",
    "-tp",
)
_PIPELINE = ("--pipeline-parallel-size", "-pp")
_DATA = ("--data-parallel-size", "-dp")
_GPU_EXPECTED = "an index (0, 1, ...) or a UUID (GPU-..., MIG-...)"
_GPU_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{4,100}")
# What says which cards a process sees; `gpus` says it instead.
VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One engine that this host runs. None = unknown, or left to vLLM."""

    name: str
    model: str  # the name that callers ask for
    version: str = ""
    launcher: Literal["vllm", "simulated"] = "vllm"
    model_path: str | None = None  # weights; vLLM takes the model's name when it is not given
    gpus: tuple[int | str, ...] | None = None  # indices or UUIDs; () = none: it serves on the CPU
    gpu_model: str | None = None
    gpu_count: int | None = None
    gpu_memory_mib: int | None = None  # of one card
    gpu_compute_capability: str | None = None
    gpu_power: float | None = None
    gpu_power_limit_w: float | None = None  # of one card
    gpu_power_default_w: float | None = None
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    tensor_parallel_size: int | None = None
    zone: str | None = None
    args: tuple[str, ...] = ()  # further arguments of the engine
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def ranks(self) -> int:
        """How many cards vLLM takes: tensor, pipeline and data parallel sizes multiplied."""
        pipeline, data = find_count(self.args, *_PIPELINE), find_count(self.args, *_DATA)
        return (self.tensor_parallel_size or 1) * pipeline * data


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """One host. Durations in seconds."""

    node: str
    address: str  # of the mesh listener, as other hosts reach it
    mesh_port: int
    socket_dir: str
    socket_group: str | None
    engine_keep_alive_s: float
    ttl_s: float  # of the check in Consul
    engines: tuple[EngineSpec, ...]

    def socket(self, engine: EngineSpec) -> str:
        """Return the path of an engine's socket."""
        return f"{self.socket_dir.rstrip('/')}/{engine.name}.sock"

    def metadata(self, engine: EngineSpec, state: str) -> EngineMetadata:
        """Return what an engine declares in Consul."""
        return EngineMetadata(
            model=engine.model,
            version=engine.version,
            socket=self.socket(engine),
            state=state,
            gpu_model=engine.gpu_model,
            gpu_count=engine.gpu_count,
            gpu_memory_mib=engine.gpu_memory_mib,
            gpu_compute_capability=engine.gpu_compute_capability,
            gpu_power=engine.gpu_power,
            gpu_power_limit_w=engine.gpu_power_limit_w,
            gpu_power_default_w=engine.gpu_power_default_w,
            max_num_seqs=engine.max_num_seqs,
            max_model_len=engine.max_model_len,
            tensor_parallel_size=engine.tensor_parallel_size,
            zone=engine.zone,
            keep_alive_s=self.engine_keep_alive_s,
        )


def parse_node(data: bytes, *, source: str) -> NodeConfig:
    """Return the host of a YAML document. Raise InputError with every problem in it."""
    document = load_document(data, _NodeDocument, source=source, meanwhile=_MEANWHILE)
    config = NodeConfig(
        node=document.node,
        address=document.address,
        mesh_port=document.mesh_port,
        socket_dir=document.socket_dir,
        socket_group=document.socket_group,
        engine_keep_alive_s=document.engine_keep_alive,
        ttl_s=document.ttl,
        engines=tuple(_engine_spec(raw) for raw in document.engines),
    )
    problems = _check(config, source)
    if problems:
        raise InputError(problems)
    return config


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


_Count = Annotated[int, Field(ge=1, le=2**31 - 1)]


def _within(key: str) -> Any:
    """Return the bounds of a number as Consul's metadata may hold it."""
    least, largest = NUMBER_BOUNDS[key]
    return Field(ge=least, le=largest, allow_inf_nan=False)


_Power = Annotated[float, _within("gpu_power")]
_LimitW = Annotated[float, _within("gpu_power_limit_w")]
_DefaultW = Annotated[float, _within("gpu_power_default_w")]
_NumSeqs = Annotated[int, Field(ge=1, le=MAX_NUM_SEQS)]
_Text = Annotated[str, Field(min_length=1)]


def _check_compute_capability(value: str) -> str:
    if parse_compute_capability(value) is None:
        raise ValueError('a CUDA compute capability, e.g. "8.9"')
    return value


_ComputeCapability = Annotated[Name, AfterValidator(_check_compute_capability)]


def _check_gpu(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(_GPU_EXPECTED)  # noqa: TRY004 pydantic takes this for a finding
    return value


_Gpu = Annotated[int | str, BeforeValidator(_check_gpu)]


class _EngineDocument(_Strict):
    name: str
    model: _Text
    version: Name = ""
    launcher: Literal["vllm", "simulated"] = "vllm"
    model_path: _Text | None = None
    gpus: list[_Gpu] | None = None
    gpu_model: _Text | None = None
    gpu_count: _Count | None = None
    gpu_memory_mib: _Count | None = None
    gpu_compute_capability: _ComputeCapability | None = None
    gpu_power: _Power | None = None
    gpu_power_limit_w: _LimitW | None = None
    gpu_power_default_w: _DefaultW | None = None
    max_num_seqs: _NumSeqs | None = None
    max_model_len: _Count | None = None
    tensor_parallel_size: _Count | None = None
    zone: _Text | None = None
    args: list[str] = []
    env: dict[str, str] = {}


class _NodeDocument(_Strict):
    node: str
    address: _Text
    mesh_port: Annotated[int, Field(ge=1, le=65535)]
    socket_dir: _Text = "/run/wattmesh"
    socket_group: _Text | None = None
    engine_keep_alive: Annotated[Duration, Field(ge=1, le=3600)] = ENGINE_KEEP_ALIVE_S
    ttl: Annotated[Duration, Field(ge=2, le=300)] = 10.0
    engines: list[_EngineDocument]


def _engine_spec(raw: _EngineDocument) -> EngineSpec:
    values = raw.model_dump()
    values["args"] = tuple(raw.args)
    values["env"] = MappingProxyType(dict(raw.env))
    values["gpus"] = None if raw.gpus is None else tuple(raw.gpus)
    spec = EngineSpec(**values)
    if len(spec.gpus or ()) > 1 and spec.tensor_parallel_size is None and spec.ranks == 1:
        # Whoever gives an engine several cards and says no more means all of them.
        return replace(spec, tensor_parallel_size=len(spec.gpus or ()))
    return spec


_Fault = tuple[str, object, str]  # path, value, expectation


def _check(config: NodeConfig, source: str) -> list[Problem]:
    faults: list[_Fault] = []
    if not _NODE_NAME.fullmatch(config.node):
        expected = 'a host name: letters, digits, "." and "-", at most 63'
        faults.append(("node", config.node, expected))
    if fault := address_fault(config.address):
        faults.append(("address", config.address, fault))
    if fault := _process_text_fault(config.socket_group or ""):
        faults.append(("socket_group", config.socket_group, fault))
    names = [engine.name for engine in config.engines]
    for index, engine in enumerate(config.engines):
        path = f"engines[{index}]"
        if engine.name in names[:index]:
            expected = "a name that no other engine of this host has"
            faults.append((f"{path}.name", engine.name, expected))
        faults += _check_engine(config, engine, path)
    return [
        Problem(
            source=source,
            path=path,
            value=shown(value),
            expected=expected,
            meanwhile=_MEANWHILE,
        )
        for path, value, expected in faults
    ]


def _check_engine(config: NodeConfig, engine: EngineSpec, path: str) -> Iterator[_Fault]:
    if not _ENGINE_NAME.fullmatch(engine.name):
        yield f"{path}.name", engine.name, 'lower-case letters, digits and "-", at most 40'
    texts = {
        "socket": (config.socket(engine), socket_path_fault(config.socket(engine))),
        "model": (engine.model, name_fault(engine.model)),
        "version": (engine.version, name_fault(engine.version)),
        "gpu_model": (engine.gpu_model, name_fault(engine.gpu_model or "")),
        "zone": (engine.zone, name_fault(engine.zone or "")),
        "model_path": (engine.model_path, _process_text_fault(engine.model_path or "")),
    }
    for key, (value, fault) in texts.items():
        if fault:
            yield f"{path}.{key}", value, fault
    for position, argument in enumerate(engine.args):
        if flag_of(argument) in _OWNED_FLAGS:
            yield f"{path}.args[{position}]", argument, "an argument that the agent does not set"
    yield from _check_process(engine, path)
    yield from _check_gpus(engine, path)
    for key, value in render_metadata(config.metadata(engine, "ready")).items():
        if len(value) > _MAX_META_VALUE_CHARS:
            limit = f"at most {_MAX_META_VALUE_CHARS} characters (this has {len(value)})"
            yield f"{path}.{key}", value, f"{limit}, Consul's limit of a metadata value"


def _check_process(engine: EngineSpec, path: str) -> Iterator[_Fault]:
    """What no process can be started with."""
    for position, argument in enumerate(engine.args):
        if fault := _process_text_fault(argument):
            yield f"{path}.args[{position}]", argument, fault
    for name, value in engine.env.items():
        if not name or "=" in name or _process_text_fault(name):
            yield f"{path}.env", name, 'names of variables: text with no "=" and no NUL'
        if fault := _process_text_fault(value):
            yield f"{path}.env.{name}", value, fault


def _process_text_fault(text: str) -> str | None:
    """Return what a text should have been for the kernel to hand it to a process, or None."""
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:
        return "text without lone surrogates"
    return "text without a NUL" if b"\0" in encoded else None


def _check_gpus(engine: EngineSpec, path: str) -> Iterator[_Fault]:
    gpus = engine.gpus
    if gpus is None:
        return
    for position, gpu in enumerate(gpus):
        where = f"{path}.gpus[{position}]"
        if gpu in gpus[:position]:
            yield where, gpu, "a GPU that is not in the list yet"
        elif not (_GPU_UUID.fullmatch(gpu) if isinstance(gpu, str) else 0 <= gpu <= 1023):
            yield where, gpu, _GPU_EXPECTED
    if len({type(gpu) for gpu in gpus}) > 1:
        yield f"{path}.gpus", list(gpus), "indices or UUIDs, not both"
    if gpus and engine.ranks > len(gpus):
        expected = f"at least {engine.ranks} GPUs, as many as its parallel sizes take together"
        yield f"{path}.gpus", list(gpus), expected
    for name in VISIBLE_DEVICES:
        if name in engine.env:
            expected = "no such variable beside gpus, which says the same"
            yield f"{path}.env.{name}", engine.env[name], expected
