"""What `wattmesh up` says: its progress on standard error, its result on standard output."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from control_plane.addresses import HostPort
from control_plane.cli.output import ENGINE_COLUMNS, engine_rows, print_table
from engines.node_config import NodeConfig


class Progress:
    """Steps with the seconds since the start; a spinner while something is awaited."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._started_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started_s

    def step(self, text: str) -> None:
        """Tell one thing that was done or chosen."""
        self._console.print(Text(f"{self.elapsed_s:6.1f} s  {text}"), soft_wrap=True)

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Show that something is awaited; a line where there is no terminal."""
        if not self._console.is_terminal:
            self.step(text)
            yield
            return
        with self._console.status(Text(text)):
            yield


def print_engines(engines: Sequence[Mapping[str, Any]]) -> None:
    """Print the engines in force."""
    print_table("", ENGINE_COLUMNS, engine_rows(engines))


def print_answer(model: str, content: str, elapsed_s: float) -> None:
    """Print the model's first answer; what a terminal might obey is shown as a dot."""
    shown = "".join(char if char.isprintable() else "·" for char in content.strip())
    typer.echo(f"\nFirst answer of {model}, {elapsed_s:.1f} s after the start:\n  {shown}")


def print_addresses(
    edge: HostPort, model: str, run_dir: Path, admin_socket: Path, nodes: Sequence[NodeConfig]
) -> None:
    """Print where everything is, ready to be pasted."""
    base_url = f"http://{edge}/v1"
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    lines = [
        "",
        f"OpenAI API    {base_url}",
        f"  curl {base_url}/chat/completions -H 'content-type: application/json' -d '{body}'",
        f"  openai.OpenAI(base_url={base_url!r}, api_key='none')",
        f"Admin API     unix:{admin_socket}",
        f"  curl --unix-socket {admin_socket} http://admin/v1/plan",
        f"  wattmesh status --admin-address unix:{admin_socket}",
        "Engine metrics, through the nodes' Envoys",
        *(
            f"  http://{node.address}:{node.mesh_port}/wattmesh/engines/{engine.name}/metrics"
            for node in nodes
            for engine in node.engines
        ),
        f"Logs          {run_dir / 'logs'}",
    ]
    typer.echo("\n".join(lines))
