"""The commands and their options; each imports what it needs when it runs."""

# ruff: noqa: PLC0415 the imports inside commands keep `--help` quick

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from control_plane.addresses import HostPort, UnixSocket, parse_address, parse_host_port
from control_plane.cli import BAD_INPUT, FINDING, OK
from control_plane.cli.ca import ca_app
from control_plane.cli.options import (
    DEFAULT_CONSUL,
    AdminAddress,
    CatalogFile,
    ConsulAddress,
    EnvoyTlsDir,
    LkgDirectory,
    LogFormat,
    LogLevel,
    OutputForm,
    PolicyFile,
    TlsDir,
    VllmPython,
)
from control_plane.cli.output import (
    MODEL_COLUMNS,
    PLAN_COLUMNS,
    Output,
    limit_text,
    model_rows,
    plan_rows,
    print_data,
    print_problems,
    print_table,
)
from control_plane.debounce import Debounce
from control_plane.errors import WattmeshError

app = typer.Typer(
    name="wattmesh",
    help="Wattmesh: an Envoy-fronted mesh for fleets of vLLM engines, weighted by GPU power.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(ca_app)


quarantine_app = typer.Typer(
    name="quarantine",
    help="What an Envoy refused: list it, or offer it again.\n\nExample: wattmesh quarantine list",
    no_args_is_help=True,
)
app.add_typer(quarantine_app)


def run_app(argv: Sequence[str]) -> int:
    """Run one command line; usage errors end it with 2."""
    try:
        status = app(args=list(argv), prog_name="wattmesh", standalone_mode=True)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else BAD_INPUT
    return status if isinstance(status, int) else OK


@app.command("plan")
def plan_command(
    catalog: CatalogFile, policy: PolicyFile = None, output: OutputForm = Output.TABLE
) -> None:
    """Print who would get which share of the traffic. Needs no network.

    Example: wattmesh plan --catalog catalog.json --policy policy.yaml -o json
    """
    from control_plane.cli.offline import load_plan
    from control_plane.plan_view import plan_to_json

    value = plan_to_json(load_plan(catalog, policy))
    print_problems(value["problems"])
    if output is Output.TABLE:
        print_table("", PLAN_COLUMNS, plan_rows(value["engines"]))
        print_table("\nModels", MODEL_COLUMNS, model_rows(value["models"]))
        if value["request_limit"]:
            print(f"\nAll models together: {limit_text(value['request_limit'])}")  # noqa: T201
    else:
        print_data(value, output)


@app.command("resources")
def resources_command(
    role: Annotated[Literal["edge", "node"], typer.Option(help="Which kind of Envoy.")],
    catalog: CatalogFile,
    policy: PolicyFile = None,
    node: Annotated[str, typer.Option(metavar="ID", help="Node ID, with --role node.")] = "",
    output: OutputForm = Output.JSON,
) -> None:
    """Print the xDS resources that an Envoy would be sent, as proto3 JSON. Needs no network.

    Example: wattmesh resources --role node --node gpu-1 --catalog catalog.json -o yaml
    """
    from control_plane.cli.offline import load_plan, resources_json

    plan = load_plan(catalog, policy)
    known = [item.id for item in plan.nodes]
    if role == "node" and node not in known:
        raise WattmeshError(
            f"--node {node!r}: expected a node of the catalog: {', '.join(known) or 'it has none'}"
        )
    print_problems(str(problem) for problem in plan.problems)
    value = resources_json(plan, role, node)
    if output is not Output.TABLE:
        print_data(value, output)
        return
    rows = [
        [type_url.rpartition(".")[2], resource.get("name") or resource.get("cluster_name", "")]
        for type_url, resources in value.items()
        for resource in resources
    ]
    print_table("", ("type", "name"), rows)


@app.command("explain")
def explain_command(
    subject: Annotated[
        str, typer.Argument(metavar="MODEL|ENGINE", help="A model, or an engine's ID.")
    ],
    catalog: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A recorded answer of Consul.")
    ] = None,
    policy: PolicyFile = None,
    admin_address: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Ask a running control plane, with what it measured."),
    ] = None,
    tls_dir: TlsDir = None,
    output: OutputForm = Output.TABLE,
) -> None:
    """Print every step from an engine's metadata to its weight, with units.

    From two files, with no network; or from a running control plane, with what it measured.

    Example: wattmesh explain acme/fox-7b --catalog catalog.json --policy policy.yaml
    Example: wattmesh explain acme/fox-7b --admin-address unix:/run/wattmesh/admin.sock
    """
    from control_plane.cli.compare import print_explanation, print_live_explanation

    if (catalog is None) == (admin_address is None):
        raise typer.BadParameter("give either --catalog or --admin-address")
    if catalog is not None:
        print_explanation(subject, catalog, policy, output)
    else:
        print_live_explanation(subject, _addresses([str(admin_address)])[0], tls_dir, output)


@app.command("diff")
def diff_command(
    catalog: CatalogFile,
    policy: PolicyFile = None,
    to_catalog: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The changed catalog; default: the same.")
    ] = None,
    to_policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The changed policy; default: the same.")
    ] = None,
    output: OutputForm = Output.TABLE,
) -> None:
    """Print what a changed catalog or policy would move; exit 1 when anything would.

    Example: wattmesh diff --catalog now.json --to-catalog capped.json --policy policy.yaml
    """
    from control_plane.cli.compare import print_diff

    before, after = (catalog, policy), (to_catalog or catalog, to_policy or policy)
    raise typer.Exit(FINDING if print_diff(before, after, output) else OK)


@app.command("validate")
def validate_command(
    catalog: CatalogFile, policy: PolicyFile = None, output: OutputForm = Output.TABLE
) -> None:
    """Check a catalog and a policy up to the payloads; exit 1 when something was found.

    Example: wattmesh validate --catalog catalog.json --policy policy.yaml
    """
    from control_plane.cli.offline import load_plan, payload_violations

    plan = load_plan(catalog, policy)
    problems = [str(problem) for problem in plan.problems]
    violations = payload_violations(plan)
    print_problems([*problems, *violations])
    if output is Output.TABLE:
        found = len(problems) + len(violations)
        typer.echo(
            f"{len(plan.engines)} engines on {len(plan.nodes)} nodes, {len(plan.models)} models: "
            + (f"{found} findings" if found else "no finding")
        )
    else:
        print_data({"problems": problems, "violations": violations}, output)
    raise typer.Exit(FINDING if problems or violations else OK)


@app.command("bootstrap")
def bootstrap_command(
    role: Annotated[Literal["edge", "node"], typer.Option(help="Which kind of Envoy.")],
    node_id: Annotated[str, typer.Option("--node-id", metavar="ID", help="Envoy's node.id.")],
    xds_address: Annotated[
        list[str],
        typer.Option(
            "--xds-address", metavar="ADDRESS", help="unix:PATH or HOST:PORT; may be repeated."
        ),
    ],
    lkg: LkgDirectory = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where an edge listens for callers.")
    ] = None,
    tls_cert: Annotated[
        str | None, typer.Option(metavar="FILE", help="What an edge shows to callers.")
    ] = None,
    tls_key: Annotated[str | None, typer.Option(metavar="FILE", help="Its private key.")] = None,
    tls_dir: EnvoyTlsDir = None,
    admin_socket: Annotated[
        str | None, typer.Option(metavar="PATH", help="Envoy's admin socket (mode 0600).")
    ] = None,
) -> None:
    """Print the bootstrap of an Envoy.

    Of several control planes Envoy uses one that is healthy, the cache when none is.
    Example: wattmesh bootstrap --role edge --node-id edge-1 --listen 0.0.0.0:10000
    --xds-address 10.0.0.5:18000 > edge.yaml && envoy -c edge.yaml --disable-hot-restart
    """
    from control_plane.bootstrap import render_bootstrap
    from control_plane.cli.bootstrap_tls import prepare_tls

    if (role == "edge") != (listen is not None):
        raise WattmeshError("--listen: expected with --role edge, and only there")
    if (tls_cert is None) != (tls_key is None):
        raise WattmeshError("--tls-cert and --tls-key: expected both or neither")
    text = render_bootstrap(
        role=role,
        node_id=node_id,
        xds_addresses=_addresses(xds_address),
        lkg=str(lkg.absolute()) if lkg else None,
        mesh=prepare_tls(tls_dir, role=role, node_id=node_id) if tls_dir else None,
        admin_socket=admin_socket or f"/run/wattmesh/{node_id}.envoy.sock",
        listen=parse_host_port(listen) if listen else None,
        tls_cert=tls_cert,
        tls_key=tls_key,
    )
    typer.echo(text, nl=False)


@app.command("control-plane")
def control_plane_command(
    catalog: Annotated[
        str, typer.Option(metavar="consul|FILE", help="Where the engines are known.")
    ] = "consul",
    policy: PolicyFile = None,
    xds_address: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="unix:PATH or HOST:PORT; may be repeated."),
    ] = None,
    admin_address: Annotated[
        str, typer.Option(metavar="ADDRESS", help="unix:PATH or HOST:PORT of the admin API.")
    ] = "unix:/run/wattmesh/admin.sock",
    rest_address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve xDS over REST, too.")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PEM chain with our SPIFFE ID.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="PEM private key.")] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PEM of the CAs whose clients are let in.")
    ] = None,
    allow_plaintext: Annotated[
        bool, typer.Option("--allow-plaintext", help="Let other hosts connect without TLS.")
    ] = False,
    mesh_tls: Annotated[
        Literal["off", "accept", "use", "require"] | None,
        typer.Option(help="Between edges and nodes; default: require with --tls-cert, else off."),
    ] = None,
    consul_address: ConsulAddress = DEFAULT_CONSUL,
    debounce_ms: Annotated[
        int, typer.Option(min=0, max=60_000, help="Quiet time before changes are published.")
    ] = 100,
    debounce_max_ms: Annotated[
        int, typer.Option(min=0, max=600_000, help="Longest wait of a change.")
    ] = 10_000,
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
) -> None:
    """Watch the catalog and serve every Envoy over xDS, until stopped.

    With TLS, which holds for everything on TCP, an Envoy is sent its own resources alone.

    Example: wattmesh control-plane --catalog consul --policy policy.yaml
    --xds-address 0.0.0.0:18000 --tls-cert tls.crt --tls-key tls.key --tls-ca ca.crt
    """
    from control_plane.cli.exposure import check_exposure, parse_mesh_tls, parse_tls_files
    from control_plane.cli.serve import serve_control_plane
    from control_plane.service import ControlPlaneConfig

    tls = parse_tls_files(tls_cert, tls_key, tls_ca)
    config = ControlPlaneConfig(
        catalog=catalog,
        policy=policy,
        xds_addresses=_addresses(xds_address or ["unix:/run/wattmesh/xds.sock"]),
        admin_address=_addresses([admin_address])[0],
        rest_address=parse_host_port(rest_address) if rest_address else None,
        tls=tls,
        mesh_tls=parse_mesh_tls(mesh_tls, tls),
        consul_address=consul_address,
        debounce=_debounce(debounce_ms, debounce_max_ms),
    )
    addresses = (*config.xds_addresses, config.admin_address, config.rest_address)
    check_exposure(addresses, config.tls, allow_plaintext=allow_plaintext)
    raise typer.Exit(serve_control_plane(config, level=log_level, as_json=log_format == "json"))


@app.command("agent")
def agent_command(
    node: Annotated[Path, typer.Option(metavar="FILE", help="node.yaml: this host's engines.")],
    consul_address: ConsulAddress = DEFAULT_CONSUL,
    xds_address: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="Also run this host's node Envoy, served from here; may be repeated.",
        ),
    ] = None,
    lkg: LkgDirectory = None,
    run_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="Logs, and Envoy's bootstrap and admin socket.")
    ] = Path("/run/wattmesh"),
    tls_dir: EnvoyTlsDir = None,
    vllm_python: VllmPython = None,
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
) -> None:
    """Run the engines of one GPU host and keep them registered, until stopped.

    With --lkg the node Envoy's last-known-good cache runs beside it.

    Example: wattmesh agent --node node.yaml --xds-address 10.0.0.5:18000
    """
    from control_plane.cli.host import AgentOptions, serve_agent

    if lkg is not None and not xds_address:
        raise WattmeshError("--lkg: expected with --xds-address, which runs the node Envoy")
    options = AgentOptions(
        node=node,
        consul_address=consul_address,
        xds_addresses=_addresses(xds_address or ()),
        lkg=lkg.absolute() if lkg else None,
        run_dir=run_dir,
        tls_dir=tls_dir,
        vllm_python=vllm_python,
    )
    raise typer.Exit(serve_agent(options, level=log_level, as_json=log_format == "json"))


@app.command("lkg")
def lkg_command(
    directory: Annotated[
        Path,
        typer.Option("--dir", metavar="DIR", help="The cache, and the socket it is served on."),
    ],
    envoy_admin: Annotated[
        Path, typer.Option(metavar="PATH", help="The admin socket of the Envoy beside this.")
    ],
    poll_s: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Between two looks at Envoy's counters.")
    ] = 1.0,
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
) -> None:
    """Record what an Envoy has in force, and serve it while no control plane is up, until stopped.

    Its Envoy's bootstrap names the same directory: wattmesh bootstrap --lkg DIR.

    Example: wattmesh lkg --dir /var/lib/wattmesh/edge-1
    --envoy-admin /run/wattmesh/edge-1.envoy.sock
    """
    from control_plane.cli.lkg import serve_lkg
    from control_plane.lkg.service import LkgConfig

    config = LkgConfig(
        directory=directory.absolute(), envoy_admin=envoy_admin.absolute(), poll_s=poll_s
    )
    raise typer.Exit(serve_lkg(config, level=log_level, as_json=log_format == "json"))


@app.command("status")
def status_command(
    admin_address: AdminAddress = None, tls_dir: TlsDir = None, output: OutputForm = Output.TABLE
) -> None:
    """Print the engines in force and what every connected Envoy holds.

    Exit 1 when the control plane is not ready or an Envoy refused something.
    Example: wattmesh status --admin-address unix:/run/wattmesh/admin.sock
    """
    from control_plane.cli.status import print_status

    raise typer.Exit(print_status(_admin(admin_address), tls_dir, output))


@quarantine_app.command("list")
def quarantine_list_command(
    admin_address: AdminAddress = None, tls_dir: TlsDir = None, output: OutputForm = Output.TABLE
) -> None:
    """Print what an Envoy refused and is sent to nobody; exit 1 when there is anything.

    Example: wattmesh quarantine list -o json
    """
    from control_plane.cli.quarantine import print_quarantine

    raise typer.Exit(print_quarantine(_admin(admin_address), tls_dir, output))


@quarantine_app.command("clear")
def quarantine_clear_command(
    version: Annotated[
        str | None, typer.Argument(metavar="VERSION", help="As `list` shows it.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Everything that is refused.")] = False,
    admin_address: AdminAddress = None,
    tls_dir: TlsDir = None,
) -> None:
    """Offer refused content to Envoys again, a few of them first.

    Exit 1 when no such version is quarantined.
    Example: wattmesh quarantine clear 0123456789abcdef
    """
    from control_plane.cli.quarantine import clear_quarantine

    if (version is None) != everything:
        raise typer.BadParameter("give either a VERSION or --all")
    raise typer.Exit(clear_quarantine(_admin(admin_address), tls_dir, version))


@app.command("gpu")
def gpu_command(output: OutputForm = Output.TABLE) -> None:
    """Print this host's GPUs: what their driver says, their power caps, the capacity that follows.

    Exit 1 when a card is lost. A host without a GPU is told why there is none.
    Example: wattmesh gpu -o json
    """
    from control_plane.cli.gpu import print_gpus
    from engines.gpu import load_gpu_table
    from engines.gpu_probe import GpuProbe

    raise typer.Exit(print_gpus(GpuProbe().survey(), load_gpu_table(), output))


@app.command("up")
def up_command(
    engine: Annotated[
        Literal["simulated", "vllm"], typer.Option(help="What serves: a simulation, or vLLM.")
    ] = "simulated",
    node: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="node.yaml, repeatable; default: two example nodes."),
    ] = None,
    policy: PolicyFile = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where callers connect (default: 127.0.0.1:10000)."),
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="New or empty; only its logs stay.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Stop after the first answer.")] = False,
    vllm_python: VllmPython = None,
    log_level: LogLevel = "error",
) -> None:
    """Run a whole mesh on this machine: engines, Envoys and control plane; Ctrl-C stops it.

    Example: wattmesh up --once
    """
    from control_plane.cli.up import UpOptions, run_up

    options = UpOptions(
        engine=engine,
        nodes=tuple(node or ()),
        policy=policy,
        listen=listen,
        run_dir=run_dir,
        once=once,
        consul_address=os.environ.get("CONSUL_HTTP_ADDR"),
        vllm_python=vllm_python,
    )
    raise typer.Exit(run_up(options, level=log_level))


def _admin(address: str | None) -> UnixSocket | HostPort:
    from control_plane.cli.run_dir import default_admin_address

    return parse_address(address or default_admin_address())


def _addresses(texts: Sequence[str]) -> tuple[UnixSocket | HostPort, ...]:
    return tuple(parse_address(text) for text in texts)


def _debounce(quiet_ms: int, cap_ms: int) -> Debounce:
    return Debounce(quiet_s=quiet_ms / 1000, cap_s=max(cap_ms, quiet_ms) / 1000)
