"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from control_plane.cli.output import Output

DEFAULT_CONSUL = "http://127.0.0.1:8500"

CatalogFile = Annotated[
    Path,
    typer.Option(
        "--catalog",
        metavar="FILE",
        help="What Consul's /v1/health/service/wattmesh-engine answers, recorded.",
    ),
]
PolicyFile = Annotated[
    Path | None,
    typer.Option("--policy", metavar="FILE", help="policy.yaml; without it, the empty policy."),
]
OutputForm = Annotated[Output, typer.Option("-o", "--output", help="How data is printed.")]
ConsulAddress = Annotated[
    str,
    typer.Option(
        "--consul-address",
        metavar="URL",
        envvar="CONSUL_HTTP_ADDR",
        help="The local Consul agent. Its token is taken from CONSUL_HTTP_TOKEN.",
    ),
]
TlsDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        envvar="WATTMESH_TLS_DIR",
        help="tls.crt, tls.key and ca.crt of a monitor or operator, for an admin API on TLS.",
    ),
]
EnvoyTlsDir = Annotated[
    Path | None,
    typer.Option(
        "--tls-dir",
        metavar="DIR",
        help="tls.crt, tls.key and ca.crt of this Envoy, for control planes and the mesh; "
        "two files that name them are written beside.",
    ),
]
LkgDirectory = Annotated[
    Path | None,
    typer.Option(
        "--lkg", metavar="DIR", help="The cache of `wattmesh lkg`, for when no control plane is up."
    ),
]
AdminAddress = Annotated[
    str | None,
    typer.Option(
        "--admin-address",
        metavar="ADDRESS",
        envvar="WATTMESH_ADMIN_ADDRESS",
        help="The control plane's admin API; default: the mesh of `wattmesh up`.",
    ),
]
LogFormat = Annotated[Literal["text", "json"], typer.Option("--log-format")]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], typer.Option("--log-level")]
VllmPython = Annotated[
    str | None,
    typer.Option(
        "--vllm-python",
        metavar="PATH",
        envvar="WATTMESH_VLLM_PYTHON",
        help="A Python that can import vLLM (default: the one that runs this).",
    ),
]
