"""report.html: one file that shows what a run did, readable anywhere, with nothing fetched from anywhere.

Prompts and completions are untrusted text. In the page's markup they are escaped by the template; those of the
browser of groups travel as compressed data and enter the page as text nodes alone. Control and invisible
characters are spelt out, and the content security policy runs no script but the page's own, by hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grouprl.errors import MissingDependency, RunError
from grouprl.records import RunFolder, atomic_write
from grouprl.records.jsonl import clean_text
from grouprl.report.html_parts import evaluation_table, finding_views, heading, tiles
from grouprl.report.opening import polars, readable
from grouprl.report.sources import Source, open_source
from grouprl.report.text import segments

if TYPE_CHECKING:
    from grouprl.report.findings.finding import Finding

SCRIPTS = ("text.js", "charts.js", "list.js", "browser.js", "page.js")
LIVE_SCRIPT = "live.js"


def write_report(
    run: str | Path | RunFolder | Source,
    output: str | Path | None = None,
    *,
    findings: Sequence[Finding] | None = None,
) -> Path:
    """Write a run's report as one self-contained HTML file.

    Args:
        run: The run's folder; rollouts of any known framework, as a folder, a file or a glob; or a `Source`
            (`source_of` makes one of records that were read already).
        output: The file to write, or an existing folder to put `report.html` into; by default the run's folder,
            for a file of rollouts `<its name>.html` beside it, for a glob the current folder.
        findings: What to say was found in it; by default what the checks of `grouprl.report.findings` find.

    Returns:
        The file's path.

    Raises:
        RunError: No run there, no finished step in it, a log or rollout file that cannot be read, or an
            output that cannot be written.
        MissingDependency: polars or jinja2 is not installed.

    A run without evaluations, or without rollouts on disk, gets a page that says so.
    """
    source = run if isinstance(run, Source) else open_source(run)
    if not source.metrics:
        raise RunError(f"{source.name}: no finished step, expected at least one; train first, then report")
    page = render(source, findings=_found(source) if findings is None else findings)
    path = _beside(source) if output is None else Path(output).expanduser()
    if path.is_dir():
        path = path / "report.html"
    try:
        atomic_write(path, page.encode())
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror}); choose another output") from error
    return path


def _found(source: Source) -> Sequence[Finding]:
    from grouprl.report.findings.registry import run_checks

    if source.run is None:
        return ()
    with readable(source.name):
        return run_checks(source.run)


def _beside(source: Source) -> Path:
    """Where a page stands unless told otherwise."""
    where = source.path
    if where is not None and where.is_file():
        return where.with_suffix(".html")
    return where / "report.html" if where is not None and where.is_dir() else Path("report.html")


def render(
    source: Source,
    *,
    findings: Sequence[Finding] | None = None,
    live: str | None = None,
    most_completions: int | None = None,
) -> str:
    """The page's HTML.

    Args:
        source: The records.
        findings: What was found in them; None where nothing was looked for (yet, in a page that follows a run).
        live: For the page that follows a run: a stamp of what the run's files held. None for a page on its own.
        most_completions: At most so many completions; `groups_browser.MOST_COMPLETIONS` by default.

    Raises:
        MissingDependency: jinja2 is not installed.
        RunError: A rollout file cannot be read.
    """
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise MissingDependency(
            "report: jinja2 is needed for the page; pip install 'grouprl[report]'"
        ) from error
    from grouprl.report.figures import figures
    from grouprl.report.groups_browser import MOST_COMPLETIONS, browser

    polars()  # a missing one is said as such
    with readable(source.name):
        drawn = figures(source)
        held = browser(source, most_completions=most_completions or MOST_COMPLETIONS)
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["segments"] = lambda text: segments(str(text))
    environment.filters["json_block"] = lambda value: Markup(script_safe_json(value))  # noqa: S704
    style = _asset("report.css")
    script = "\n".join(_asset(name) for name in (*SCRIPTS, *([LIVE_SCRIPT] if live is not None else [])))
    page = environment.from_string(_asset("report.html.j2")).render(
        name=source.name,
        heading=heading(source),
        tiles=tiles(source),
        findings=None if findings is None else finding_views(findings),
        evaluations=evaluation_table(source.evaluations),
        figures=drawn.drawn,
        absent=drawn.absent,
        notes=source.notes,
        source=source,
        browser=held,
        config=source.config_text,
        live=live,
        style=Markup(style),  # noqa: S704
        script=Markup(script),  # noqa: S704
        policy=content_policy(style, script, live=live is not None),
    )
    return clean_text(page)


def content_policy(style: str, script: str, *, live: bool) -> str:
    """The page's Content-Security-Policy: its own style and script by hash, and nothing fetched.

    A live page may ask the server that it came from, and no other.
    """
    asks = "connect-src 'self'; " if live else ""
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; {asks}"
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def script_safe_json(value: Any) -> str:
    """JSON that cannot end the script element which holds it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return (files("grouprl.report") / "templates" / name).read_text(encoding="utf-8").replace("\r", "")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
