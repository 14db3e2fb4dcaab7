"""`wattmesh ca`: a small certificate authority for trials; a real one works by the same files."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from control_plane.cli.options import OutputForm
from control_plane.cli.output import Output, print_data, print_table

ca_app = typer.Typer(
    name="ca",
    help="A small certificate authority for trials: make it, issue from it, rotate it.",
    no_args_is_help=True,
)

Directory = Annotated[
    Path, typer.Option("--dir", metavar="DIR", help="The CA's own directory; keep it private.")
]
_AUTHORITY_DAYS, _HOST_DAYS = 3650, 90


@ca_app.command("init")
def init_command(
    directory: Directory,
    trust_domain: Annotated[
        str, typer.Option(metavar="NAME", help="First part of every SPIFFE ID.")
    ] = "wattmesh.local",
    days: Annotated[int, typer.Option(min=1, max=36_500, help="How long it is good.")] = (
        _AUTHORITY_DAYS
    ),
) -> None:
    """Make a CA. One that is there already is never touched.

    Example: wattmesh ca init --dir ca --trust-domain mesh.example
    """
    from control_plane.mtls.authority_files import init_authority  # noqa: PLC0415

    authority = init_authority(directory, trust_domain, now=_now(), lifetime=timedelta(days=days))
    ends_at = authority.issuer.certificate.not_valid_after_utc
    typer.echo(f"CA of {authority.trust_domain} in {directory}, good until {ends_at:%Y-%m-%d}")


@ca_app.command("issue")
def issue_command(
    directory: Directory,
    role: Annotated[
        str, typer.Option(help="control-plane, edge, node, monitor (reads) or operator (acts).")
    ],
    workload_id: Annotated[
        str, typer.Option("--id", metavar="ID", help="Of an Envoy: its node ID.")
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Gets tls.key, tls.crt and ca.crt, by rename.")
    ],
    name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A host name or address, for clients that check those."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=36_500, help="How long it is good.")] = _HOST_DAYS,
    group: Annotated[
        str | None, typer.Option(help="Members may read the key (default: the owner alone).")
    ] = None,
) -> None:
    """Issue a certificate for one workload; again over the same directory renews it.

    Example: wattmesh ca issue --dir ca --role edge --id edge-1 --out /etc/wattmesh/tls
    """
    from control_plane.mtls.authority_files import issue_files, read_authority  # noqa: PLC0415
    from control_plane.mtls.spiffe import make_identity  # noqa: PLC0415

    authority = read_authority(directory)
    identity = make_identity(authority.trust_domain, role, workload_id)
    issue_files(
        authority,
        identity,
        out,
        now=_now(),
        lifetime=timedelta(days=days),
        names=name or (),
        group=group,
    )
    typer.echo(f"{identity} in {out}")


@ca_app.command("rotate")
def rotate_command(
    step: Annotated[str, typer.Argument(metavar="begin|switch|finish", help="In this order.")],
    directory: Directory,
    days: Annotated[int, typer.Option(min=1, max=36_500, help="How long a new CA is good.")] = (
        _AUTHORITY_DAYS
    ),
) -> None:
    """Take one step from the CA that is to the next one, with an overlap.

    begin: the next CA is made, and ca.crt trusts both; copy ca.crt everywhere.
    switch: the next CA signs; issue every certificate again.
    finish: ca.crt trusts the next one alone; copy it everywhere.

    Example: wattmesh ca rotate begin --dir ca
    """
    from control_plane.mtls.authority_files import STEPS, read_authority, rotate  # noqa: PLC0415

    taken = next((known for known in STEPS if known == step), None)
    if taken is None:
        raise typer.BadParameter(f"{step!r}: expected {', '.join(STEPS)}")
    authority = rotate(read_authority(directory), taken, now=_now(), lifetime=timedelta(days=days))
    typer.echo(f"{step}: {len(authority.trusted)} trusted in {directory / 'ca.crt'}")


@ca_app.command("show")
def show_command(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="PEM certificates.")],
    output: OutputForm = Output.TABLE,
) -> None:
    """Print who certificates are for, who signed them and how long they are good.

    Exit 1 when one is over.
    Example: wattmesh ca show /etc/wattmesh/tls/tls.crt /etc/wattmesh/tls/ca.crt
    """
    from control_plane.mtls.show import certificate_rows  # noqa: PLC0415

    rows = certificate_rows(files, now=_now())
    if output is Output.TABLE:
        columns = ("file", "for", "signed by", "until", "state")
        print_table("", columns, [[row[column] for column in columns] for row in rows])
    else:
        print_data({"certificates": rows}, output)
    raise typer.Exit(1 if any(row["state"] == "over" for row in rows) else 0)


def _now() -> datetime:
    return datetime.now(UTC)
