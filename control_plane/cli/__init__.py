"""The `wattmesh` command.

Importing this package is cheap: whatever is heavy (grpc, the xDS protobufs, aiohttp) is imported
by the command that needs it, so that `--help` and shell completion answer at once.
"""

import sys
from collections.abc import Sequence

OK, FINDING, BAD_INPUT = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 ok, 1 finding, 2 bad input or usage."""
    from control_plane.cli.app import run_app  # noqa: PLC0415 see the module's docstring
    from control_plane.errors import InputError, WattmeshError  # noqa: PLC0415

    try:
        return run_app(sys.argv[1:] if argv is None else argv)
    except InputError as error:
        for problem in error.problems:
            print(" ".join(str(problem).split("\n")), file=sys.stderr)  # noqa: T201
    except (WattmeshError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
    return BAD_INPUT
