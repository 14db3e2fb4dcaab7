"""The nodes of `wattmesh up`: node files made to fit side by side on one machine."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from types import MappingProxyType

from control_plane.cli.host import load_node
from control_plane.cli.ports import free_ports
from control_plane.errors import InputError, Problem, WattmeshError, shown
from control_plane.metadata import socket_path_fault
from engines.node_config import EngineSpec, NodeConfig

_EXAMPLES = ("node-a.yaml", "node-b.yaml")
# Of the edge, and of what the run directory and its logs hold besides nodes.
_RESERVED = ("edge", "lock", "logs", "tiny-model")
_RESERVED_ENDS = (".sock", ".lock", ".yaml", ".pid", ".log")
_TINY_ARGS = ("--enforce-eager", "--gpu-memory-utilization=0.3")
_TINY_ENV = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
_TINY_DEADLINE_S = 300.0


def load_nodes(paths: Sequence[Path], run_dir: Path, *, lean: bool) -> tuple[NodeConfig, ...]:
    """Return the nodes of these files (default: the examples), all on this machine.

    Address, mesh port and socket directory of the files are replaced; `lean` takes one engine of
    each example. Raise InputError with the problems of all files.
    """
    problems: list[Problem] = []
    parsed: list[NodeConfig] = []
    for path in paths or example_paths():
        try:
            parsed.append(load_node(path))
        except InputError as error:
            problems += error.problems
        else:
            problems += _reserved_name(path, parsed[-1].node)
    if not problems and not any(config.engines for config in parsed):
        problems.append(_no_engine(paths[0]))
    ids = [config.node for config in parsed]
    problems += [
        _node_twice(config.node) for i, config in enumerate(parsed) if config.node in ids[:i]
    ]
    if problems:
        raise InputError(problems)
    if lean and not paths:
        parsed = [replace(config, engines=config.engines[:1]) for config in parsed]
    ports = free_ports(len(parsed))
    nodes = tuple(_localized(c, port, run_dir) for c, port in zip(parsed, ports, strict=True))
    _check_sockets(nodes)
    return nodes


def example_paths() -> tuple[Path, ...]:
    """Return the example nodes that ship with the package."""
    return tuple(Path(str(resources.files("engines") / "examples" / name)) for name in _EXAMPLES)


async def with_tiny_model(
    nodes: Sequence[NodeConfig], python: str, directory: Path
) -> tuple[NodeConfig, ...]:
    """Return the nodes with vLLM in the place of every engine, serving a tiny model made here."""
    await _check_vllm(python)
    script = str(resources.files("engines") / "tiny_model.py")
    process = await asyncio.create_subprocess_exec(
        *(python, script, str(directory)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(_TINY_DEADLINE_S):
            _, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        raise WattmeshError(
            f"the tiny model was not made: {errors.decode(errors='replace')[-500:]}"
        )
    return tuple(
        replace(node, engines=tuple(_tiny(engine, directory) for engine in node.engines))
        for node in nodes
    )


async def _check_vllm(python: str) -> None:
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    try:
        process = await asyncio.create_subprocess_exec(
            *(python, "-c", code), start_new_session=True
        )
        found = await process.wait() == 0
    except OSError:
        found = False
    if not found:
        raise WattmeshError(
            f"{python} cannot import vllm; install the extra gpu or cpu into a venv "
            "and name its Python with --vllm-python or WATTMESH_VLLM_PYTHON"
        )


def _tiny(engine: EngineSpec, directory: Path) -> EngineSpec:
    return replace(
        engine,
        launcher="vllm",
        model_path=str(directory),
        max_num_seqs=16,
        max_model_len=1024,
        tensor_parallel_size=None,
        args=_TINY_ARGS,
        env=MappingProxyType({**_TINY_ENV, **engine.env}),
    )


def _localized(config: NodeConfig, port: int, run_dir: Path) -> NodeConfig:
    return replace(
        config,
        address="127.0.0.1",
        mesh_port=port,
        socket_dir=os.fspath(run_dir / config.node),
        socket_group=None,
    )


def _check_sockets(nodes: Sequence[NodeConfig]) -> None:
    problems = [
        Problem(
            source=node.node,
            path=f"{engine.name}.socket",
            value=repr(node.socket(engine)),
            expected=f"{fault}; a shorter --run-dir helps",
            meanwhile="nothing is started",
        )
        for node in nodes
        for engine in node.engines
        if (fault := socket_path_fault(node.socket(engine)))
    ]
    if problems:
        raise InputError(problems)


def _reserved_name(path: Path, node: str) -> list[Problem]:
    """A node's name is its directory's, beside what a mesh keeps in the run directory."""
    if node not in _RESERVED and not node.endswith(_RESERVED_ENDS):
        return []
    problem = Problem(
        source=str(path),
        path="node",
        value=shown(node),
        expected=f"a name that `wattmesh up` does not need itself ({', '.join(_RESERVED)}) and "
        f"that does not end with {', '.join(_RESERVED_ENDS)}",
        meanwhile="nothing is started",
    )
    return [problem]


def _no_engine(path: Path) -> Problem:
    return Problem(
        source=str(path),
        path="engines",
        value="[]",
        expected="an engine in at least one of the node files",
        meanwhile="nothing is started",
    )


def _node_twice(node_id: str) -> Problem:
    return Problem(
        source="--node",
        path="node",
        value=repr(node_id),
        expected="a name that no other node file has",
        meanwhile="nothing is started",
    )
