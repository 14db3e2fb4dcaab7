"""`python -m engines.simulator`: one simulated engine on a Unix socket."""

import re
from typing import Annotated

import typer
import uvloop

from engines.gpu import load_gpu_table
from engines.keep_alive import ENGINE_KEEP_ALIVE_S
from engines.simulator.server import EngineOptions, serve
from engines.simulator.service_model import service_model
from engines.sockets import SocketError
from observability.logs import configure_logs


def main(
    uds: Annotated[str, typer.Option(help="Unix socket to listen on.")],
    served_model_name: Annotated[str, typer.Option(help="Model that callers ask for.")],
    gpu: Annotated[str | None, typer.Option(help='GPU name, e.g. "NVIDIA L4".')] = None,
    gpu_power: Annotated[
        float | None,
        typer.Option(min=0.01, metavar="X", help="Speed, one A100-80GB = 100; wins over --gpu."),
    ] = None,
    max_num_seqs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Most sequences in a batch.")
    ] = 256,
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Most tokens of a step; vLLM's default on the card."),
    ] = None,
    max_model_len: Annotated[
        int, typer.Option(min=2, metavar="N", help="Most tokens of a request.")
    ] = 32768,
    keep_alive: Annotated[
        float,
        typer.Option(min=0.1, metavar="S", help="Seconds until an idle connection is closed."),
    ] = ENGINE_KEEP_ALIVE_S,
    socket_mode: Annotated[str, typer.Option(help="Mode of the socket, octal.")] = "0660",
    seed: Annotated[int, typer.Option(help="Seed of the words.")] = 0,
    speedup: Annotated[
        float, typer.Option(min=0.001, metavar="X", help="Serve this much faster.")
    ] = 1.0,
) -> None:
    """Serve OpenAI's API on a Unix socket as vLLM would, at the speed of a GPU. Not vLLM.

    Example: python -m engines.simulator --uds /tmp/e0.sock --served-model-name acme/fox
    """
    configure_logs()
    if max_num_batched_tokens is not None and max_num_batched_tokens < max_num_seqs:
        raise typer.BadParameter(
            f"{max_num_batched_tokens} is less than --max-num-seqs ({max_num_seqs})",
            param_hint="--max-num-batched-tokens",
        )
    options = EngineOptions(
        uds=uds,
        model=served_model_name,
        service=service_model(load_gpu_table(), gpu=gpu, gpu_power=gpu_power, speedup=speedup),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        keep_alive_s=keep_alive,
        socket_mode=_mode(socket_mode),
        seed=seed,
    )
    try:
        uvloop.run(serve(options))
    except SocketError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error


def _mode(text: str) -> int:
    if not re.fullmatch("0?[0-7]{3}", text):
        raise typer.BadParameter(f"{text!r} is not octal, e.g. 0660", param_hint="--socket-mode")
    return int(text, 8)


if __name__ == "__main__":
    typer.run(main)
