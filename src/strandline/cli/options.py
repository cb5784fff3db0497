"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

ProfileOption = Annotated[str | None, typer.Option("--profile", help="Profile of strandline.yaml to use.", metavar="NAME")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print versioned JSON instead of text.")]
