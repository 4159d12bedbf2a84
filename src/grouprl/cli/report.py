"""`grouprl report`: the page of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from grouprl.cli.options import parse
from grouprl.report import write_report


@dataclass(frozen=True)
class ReportArguments:
    run: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """Where to write it, instead of report.html in the run's folder."""


def report_command(arguments: Sequence[str]) -> int:
    """Write the page and print where it is."""
    given = parse(
        ReportArguments, arguments, prog="grouprl report", description="Write report.html for a run."
    )
    print(write_report(given.run, given.output))
    return 0
