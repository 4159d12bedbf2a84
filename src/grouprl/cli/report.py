"""`grouprl report`: what a run's records say, on the terminal, as JSON, or as a page."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from grouprl.cli.options import parse
from grouprl.errors import ConfigError
from grouprl.report.text import safe_text

DESCRIPTION = """What a run learned from and what it wasted: findings with evidence and what to do.

  grouprl report runs/arithmetic-1                    print them
  grouprl report runs/arithmetic-1 --html             write report.html as well
  grouprl report rollouts.parquet --fail-on warning   exit code 1 if there is one: for CI
  grouprl report --compare runs/a runs/b              two runs side by side

Each finding has its section in docs/findings.md."""

WIDEST = 100


@dataclass(frozen=True)
class ReportArguments:
    run: Annotated[Path | None, tyro.conf.Positional] = None
    """A run's folder, a Parquet file of rollouts, or a folder of them."""
    html: bool = False
    """Also write report.html into the run's folder."""
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """Where to write the page instead; means --html."""
    json: bool = False
    """Print JSON, for machines."""
    fail_on: Literal["info", "warning", "error"] | None = None
    """Exit code 1 where there is a finding of this severity or a graver one."""
    compare: Annotated[tuple[Path, Path] | None, tyro.conf.arg(metavar="A B")] = None
    """Two runs side by side."""
    success_reward: float | None = None
    """From this reward on a completion counts as right; the run's own unless told, else 1."""


def report_command(arguments: Sequence[str]) -> int:
    """Print findings, write the page where asked. Returns the exit code: 1 where --fail-on says so."""
    given = parse(ReportArguments, arguments, prog="grouprl report", description=DESCRIPTION)
    _check(given)
    from grouprl.report import findings

    if given.compare is not None:
        pair = findings.compare(
            *(findings.report(path, success_reward=given.success_reward) for path in given.compare)
        )
        _print(given, pair.to_dict(), findings.format_comparison(pair, **_look()))
        worst = pair.b.worst
    else:
        found = findings.report(given.run or Path(), success_reward=given.success_reward)
        _print(given, found.to_dict(), findings.format_report(found, **_look()))
        worst = found.worst
    if given.html or given.output is not None:
        from grouprl.report import write_report

        page = write_report(given.run or Path(), given.output)
        print(f"page  {safe_text(str(page))}", file=sys.stderr if given.json else sys.stdout)
    if given.fail_on is None or worst is None:
        return 0
    return int(worst >= findings.Severity[given.fail_on.upper()])


def _check(given: ReportArguments) -> None:
    if (given.run is None) == (given.compare is None):
        what = "no run" if given.run is None else "a run and --compare"
        raise ConfigError(f"grouprl report: {what}, expected a run's path, or --compare with two; give one")
    if given.compare is not None and (given.html or given.output is not None):
        raise ConfigError(
            "grouprl report: --compare with a page, expected one run for a page; write a page of each run"
        )


def _print(given: ReportArguments, plain: object, text: str) -> None:
    if given.json:
        print(json.dumps(plain, ensure_ascii=True, allow_nan=False, indent=2))
    else:
        print(text)


def _look() -> dict[str, Any]:
    """Width, colour (NO_COLOR and FORCE_COLOR are heeded) and whether the terminal takes Unicode."""
    terminal = sys.stdout.isatty()
    colour = bool(os.environ.get("FORCE_COLOR")) or (
        terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )
    width = min(shutil.get_terminal_size((80, 24)).columns, WIDEST) if terminal else 80
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    return {"width": width, "colour": colour, "ascii": not encoding.startswith("utf")}
