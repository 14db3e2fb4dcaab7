"""`python -m control_plane.cli` is `wattmesh`."""

import sys

from control_plane.cli import main

sys.exit(main())
