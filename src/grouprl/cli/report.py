"""`grouprl report`: what a run's records say, on the terminal, as JSON, or as a page."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from grouprl.cli.options import parse
from grouprl.errors import ConfigError
from grouprl.report.text import safe_text

if TYPE_CHECKING:
    from grouprl.report.findings import Report, RunData

DESCRIPTION = """What a run learned from and what it wasted: findings with evidence and what to do.

  grouprl report runs/arithmetic-1                       print them
  grouprl report runs/arithmetic-1 --html                write report.html as well
  grouprl report outputs/completions --fail-on warning   another framework's; exit code 1 if there is one: for CI
  grouprl report scores.csv --columns group_id=uid reward=points
  grouprl report --compare runs/a runs/b                 two runs side by side

Each finding has its section in docs/findings.md, each format its line in docs/records.md."""

WIDEST = 100


@dataclass(frozen=True)
class ReportArguments:
    run: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")] = None
    """A run's folder, or rollouts of any known framework: a folder, a file, a glob in quotes."""
    format: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """The rollouts' format, such as trl or verl, where it is not recognised by itself."""
    columns: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=COLUMN …")] = ()
    """Of a table: grouprl's names, and the columns that they are called there, such as reward=score."""
    group_size: Annotated[int | None, tyro.conf.arg(metavar="G")] = None
    """G, for rollouts without group ids in which a prompt may be drawn twice in a row."""
    rewards: Annotated[tuple[str, ...], tyro.conf.arg(metavar="COLUMN[=WEIGHT] …")] = ()
    """The columns that are reward components, for formats that do not say which they are."""
    html: bool = False
    """Also write the page: report.html in the run's folder, beside a file under its name."""
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"], metavar="FILE")] = None
    """Where to write the page instead; means --html."""
    json: bool = False
    """Print JSON, for machines."""
    fail_on: Literal["info", "warning", "error"] | None = None
    """Exit code 1 where there is a finding of this severity or a graver one."""
    compare: Annotated[tuple[Path, Path] | None, tyro.conf.arg(metavar="A B")] = None
    """Two runs side by side."""
    success_reward: Annotated[float | None, tyro.conf.arg(metavar="REWARD")] = None
    """From this reward on a completion counts as right; the run's own unless told, else as the rewards suggest."""


def report_command(arguments: Sequence[str]) -> int:
    """Print findings, write the page where asked. Returns the exit code: 1 where --fail-on says so."""
    given = parse(ReportArguments, arguments, prog="grouprl report", description=DESCRIPTION)
    _check(given)
    from grouprl.report import findings

    if given.compare is not None:
        pair = findings.compare(*(findings.report(_read(given, path)) for path in given.compare))
        _print(given, pair.to_dict(), findings.format_comparison(pair, **_look()))
        worst = pair.b.worst
    else:
        run = _read(given, given.run or Path())
        found = findings.report(run)
        _print(given, found.to_dict(), findings.format_report(found, **_look()))
        worst = found.worst
        if given.html or given.output is not None:
            _write_page(given, run, found)
    if given.fail_on is None or worst is None:
        return 0
    return int(worst >= findings.Severity[given.fail_on.upper()])


def _read(given: ReportArguments, path: Path) -> RunData:
    from grouprl.report import findings

    where = "grouprl report"
    columns = {}
    for text in given.columns:
        name, equals, column = text.partition("=")
        if not (name and equals and column):
            raise ConfigError(f"{where}: --columns {text!r}, expected NAME=COLUMN, such as reward=score")
        columns[name] = column
    return findings.read_run(
        path,
        given.format,
        columns=columns or None,
        group_size=given.group_size,
        rewards=dict(_weight(where, text) for text in given.rewards) or None,
        success_reward=given.success_reward,
    )


def _weight(where: str, text: str) -> tuple[str, float]:
    name, equals, weight = text.partition("=")
    try:
        return name, float(weight) if equals else 1.0
    except ValueError:
        raise ConfigError(
            f"{where}: --rewards {text!r}, expected COLUMN or COLUMN=WEIGHT, such as format=0.1"
        ) from None


def _write_page(given: ReportArguments, run: RunData, found: Report) -> None:
    from grouprl.report import write_report
    from grouprl.report.sources import source_of

    page = write_report(source_of(run), given.output, findings=found.findings)
    print(f"page  {safe_text(str(page))}", file=sys.stderr if given.json else sys.stdout)


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
