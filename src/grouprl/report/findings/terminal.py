"""Findings on a terminal: plain lines, with or without colour, whatever the model wrote."""

from __future__ import annotations

import re
from collections.abc import Sequence

from grouprl.report.findings.compare import Comparison, Line, value
from grouprl.report.findings.finding import Evidence, Example, Finding, Severity
from grouprl.report.findings.overview import Overview, Report
from grouprl.report.findings.statistics import Interval
from grouprl.report.series import steps_in_words
from grouprl.report.text import clip_head, display_width, safe_text, sparkline, wrap

STYLES = {
    "error": "1;31",
    "warning": "1;33",
    "info": "1;36",
    "good": "1;32",
    "bold": "1",
    "dim": "2",
}
MARKS = {Severity.ERROR: ("✗", "x"), Severity.WARNING: ("▲", "!"), Severity.INFO: ("●", "i")}
LABEL = 12


class Paper:
    """What lines are written on: its width, and whether it takes colour and Unicode."""

    def __init__(self, width: int = 80, *, colour: bool = False, ascii: bool = False) -> None:
        self.width, self.colour, self.ascii = max(width, 40), colour, ascii

    def style(self, text: str, style: str) -> str:
        """The text in a style, itself where there is no colour."""
        return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if self.colour and text else text

    def plain(self, text: str) -> str:
        """Our own text, in ASCII where nothing else can be shown."""
        if not self.ascii:
            return text
        for mark, spelt in (
            ("→", "->"),
            ("–", "-"),
            ("−", "-"),
            ("·", "|"),
            ("…", "..."),
            ("±", "+-"),
            ("×", "x"),
        ):
            text = text.replace(mark, spelt)
        return text.encode("ascii", "replace").decode()

    def untrusted(self, text: str, limit: int | None = None) -> str:
        """Text of a model or a file: one line that does nothing but be read."""
        return safe_text(text, limit, ascii=self.ascii)

    def wrap(self, text: str, *, indent: str = "", first: str | None = None) -> list[str]:
        """Our own text in lines that fit."""
        return wrap(self.plain(text), self.width, first=indent if first is None else first, indent=indent)


def format_report(report: Report, *, width: int = 80, colour: bool = False, ascii: bool = False) -> str:
    """A report to print.

    Args:
        report: What `findings.report` gives.
        width: Columns to fill, 40 or more.
        colour: With ANSI styles.
        ascii: For terminals without Unicode.

    Returns:
        Text without a newline at its end. No line is wider than `width`; texts of models come out as `safe_text`
        spells them, so that the only escape sequences are ours.
    """
    paper = Paper(width, colour=colour, ascii=ascii)
    lines = [*_head(paper, report), *_overview(paper, report.overview), "", _verdict(paper, report.findings)]
    for finding in report.findings:
        lines += ["", *format_finding(paper, finding)]
    if any(one.low is not None for finding in report.findings for one in finding.evidence):
        note = paper.wrap("[low, high]: 99.8 % interval, groups as clusters")
        lines += ["", *(paper.style(line, "dim") for line in note)]
    return "\n".join(lines)


def _head(paper: Paper, report: Report) -> list[str]:
    o = report.overview
    size = f" of {o.group_size}" if o.group_size else ""
    counts = [
        counted(o.steps, "step"),
        f"{counted(o.groups, 'group')}{size}",
        counted(o.completions, "completion"),
        *([counted(o.tokens, "token")] if o.tokens is not None else []),
        *([f"{counted(o.ungrouped, 'row')} without a group left out"] if o.ungrouped else []),
    ]
    who = [report.framework] if report.framework else []
    return [
        paper.style(paper.untrusted(report.name, paper.width), "bold"),
        *(paper.style(line, "dim") for line in paper.wrap(" · ".join([*who, *counts]))),
        *_notes(paper, report.notes),
        "",
    ]


def _notes(paper: Paper, notes: Sequence[str]) -> list[str]:
    """How the records were read; that a format is unverified stands out."""
    lines = []
    for note in notes:
        wrapped = paper.wrap(safe_text(note), indent="  ", first="- " if paper.ascii else "· ")
        style = "warning" if note.startswith("unverified") else "dim"
        lines += [paper.style(line, style) for line in wrapped]
    return lines


def _overview(paper: Paper, o: Overview) -> list[str]:
    """The facts, each with a label."""
    facts: list[tuple[str, str]] = []
    last = o.rewards[1]
    known = [value for value in o.reward if value is not None]
    if known:
        room = paper.width - LABEL - 20
        curve = sparkline(o.reward, width=min(room, max(len(o.reward), 1)), ascii=paper.ascii)
        if len(known) > 1:
            facts.append(("reward", f"{known[0]:.3g} {curve} {known[-1]:.3g}"))
        elif last is not None:
            facts.append(("reward", f"{last.value:.3g} [{last.low:.3g}, {last.high:.3g}]"))
    quarters = ", first and last quarter of the steps" if o.steps > 1 else ""
    moved = [
        (
            "right",
            _from_to(o.right, "share"),
            f"reward ≥ {o.success_reward:g}{quarters}",
        ),
        ("length", _from_to(o.length, "tokens"), "tokens a completion"),
        ("entropy", _from_to(o.entropy, "nats"), "nats a token"),
    ]
    held_out = _from_to(o.accuracy, "share")
    if held_out:
        facts.append(("held-out", f"{held_out} right"))
    facts += [(label, f"{text} ({what})") for label, text, what in moved if text]
    if o.truncated is not None:
        facts.append(("cut off", f"{_value(o.truncated.value, 'share')} of the completions"))
    if o.groups:
        said = {
            "informative": "teach",
            "all_high": "all right",
            "all_low": "all wrong",
            "single": "one scored",
            "unscored": "nothing scored",
        }
        shares = [
            f"{_value(o.kinds[k], 'share')} {w}" for k, w in said.items() if o.kinds[k] or k == "informative"
        ]
        facts.append(("groups", " · ".join(shares)))
    if o.loss:
        facts.append(("loss", o.loss))
    lines = []
    for label, text in facts:
        first = f"  {label:<{LABEL - 2}}"
        wrapped = paper.wrap(
            text.replace("≥", ">=") if paper.ascii else text, indent=" " * LABEL, first=first
        )
        lines += [paper.style(wrapped[0][:LABEL], "dim") + wrapped[0][LABEL:], *wrapped[1:]]
    return lines


def _verdict(paper: Paper, findings: Sequence[Finding]) -> str:
    if not findings:
        return paper.style("No findings.", "good")
    counts = [
        (severity, sum(f.severity == severity for f in findings))
        for severity in sorted(Severity, reverse=True)
    ]
    names = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "remark"}
    return ", ".join(
        paper.style(counted(count, names[severity]), severity.label) for severity, count in counts if count
    )


def format_finding(paper: Paper, finding: Finding) -> list[str]:
    """One finding: title, where, what it means, the numbers, an example, what to do."""
    mark = MARKS[finding.severity][paper.ascii]
    indent = "  "
    titles = paper.wrap(safe_text(finding.title), indent=indent, first=f"{mark} ")
    lines = [paper.style(line, finding.severity.label) for line in titles]
    where = " · ".join(filter(None, (finding.severity.label, finding.name, steps_in_words(finding.steps))))
    lines += [paper.style(line, "dim") for line in paper.wrap(where, indent=indent)]
    lines += paper.wrap(safe_text(finding.meaning), indent=indent)
    lines += _evidence(paper, finding.evidence, indent + "  ")
    prompt = None
    for example in finding.examples:
        lines += _example(paper, example, indent + "  ", same_prompt=example.prompt == prompt)
        prompt = example.prompt
    arrow = "->" if paper.ascii else "→"
    for advice in finding.advice:
        lines += paper.wrap(safe_text(advice), indent=indent + "   ", first=f"{indent}{arrow} ")
    return lines


def _evidence(paper: Paper, evidence: Sequence[Evidence], indent: str) -> list[str]:
    """A column of labels and a column of numbers, each with its interval."""
    if not evidence:
        return []
    labels = [paper.plain(safe_text(one.label)) for one in evidence]
    most = max(paper.width - len(indent) - 36, 12)
    wide = min(max(map(display_width, labels)), most)
    lines = []
    for one, label in zip(evidence, labels, strict=True):
        label = safe_text(label, wide, ascii=paper.ascii)
        number = f"{_value(one.value, one.unit):>14}"
        interval = ""
        if one.low is not None and one.high is not None:
            interval = f"  [{_bare(one.low, one.unit)}, {_bare(one.high, one.unit)}]"
        text = f"{indent}{label}{' ' * (wide - display_width(label))}{paper.plain(number)}"
        room = paper.width - display_width(text)
        interval = paper.plain(interval)
        lines.append(text + (paper.style(interval, "dim") if display_width(interval) <= room else ""))
    return lines


def _example(paper: Paper, example: Example, indent: str, *, same_prompt: bool) -> list[str]:
    where = paper.wrap(f"e.g. step {example.step}: {example.outcome}", indent=f"{indent}  ", first=indent)
    lines = [paper.style(line, "dim") for line in where]
    room = paper.width - len(indent) - 2
    if example.prompt and not same_prompt:
        prompt = paper.untrusted(example.prompt.strip())
        lines.append(f"{indent}  {paper.style(clip_head(prompt, room, ascii=paper.ascii), 'dim')}")
    if example.completion is not None:
        lines.append(f"{indent}  {paper.untrusted(example.completion or '(empty)', room)}")
    return lines


def _from_to(pair: tuple[Interval | None, Interval | None], unit: str) -> str:
    """ "8.0 % → 74 %", or one of them; "" where there is none."""
    known = [one for one in pair if one is not None]
    shown = list(dict.fromkeys(_value(one.value, unit, short=True) for one in known))
    if len(shown) == 1:  # one stretch, or no change: how sure is it?
        return f"{shown[0]} [{_bare(known[-1].low, unit)}, {_bare(known[-1].high, unit)}]"
    return " → ".join(shown)


def _value(value: float, unit: str, *, short: bool = False) -> str:
    if unit == "share":
        return f"{_bare(value, unit)} %"
    if unit == "times":
        return f"{_bare(value, unit)} ×"
    return _bare(value, unit) if short or unit in ("count", "number") else f"{_bare(value, unit)} {unit}"


def _bare(value: float, unit: str) -> str:
    """The number alone."""
    if unit == "share":
        return f"{100 * value:.1f}".rstrip("0").rstrip(".") if value in (0, 1) else f"{100 * value:.1f}"
    if unit == "count" or (unit == "tokens" and value >= 1000):
        return f"{value:,.0f}"
    if unit == "tokens":
        return f"{value:.1f}".removesuffix(".0")
    return f"{value:.3g}" if abs(value) < 1e6 else f"{value:.1e}"


def counted(count: int, what: str) -> str:
    """ "1 step", "1,024 completions"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


ANSI = re.compile(r"\x1b\[[0-9;]*m")
"""The styles that `format_report` writes."""


def format_comparison(
    comparison: Comparison, *, width: int = 80, colour: bool = False, ascii: bool = False
) -> str:
    """Two runs side by side, to print. See `format_report`."""
    paper = Paper(width, colour=colour, ascii=ascii)
    lines = []
    for letter, report in (("A", comparison.a), ("B", comparison.b)):
        lines.append(paper.style(f"{letter}  {paper.untrusted(report.name, paper.width - 3)}", "bold"))
        lines += _notes(paper, report.notes)
    header = f"  {'':<22}{'A':>12}{'B':>12}   B - A"
    lines += ["", paper.style(header, "dim"), *(_compared(paper, line) for line in comparison.lines), ""]
    for title, found in (
        ("only A", comparison.only_a),
        ("only B", comparison.only_b),
        ("both", comparison.both),
    ):
        for finding in found:
            mark = paper.style(MARKS[finding.severity][paper.ascii], finding.severity.label)
            texts = paper.wrap(safe_text(finding.title), indent=" " * 10, first=f"{title:<8}  ")
            lines += [f"{texts[0][:8]}{mark} {texts[0][10:]}", *texts[1:]]
    if not (comparison.only_a or comparison.only_b or comparison.both):
        lines.append(paper.style("No findings in either.", "good"))
    lines += [
        "",
        *(
            paper.style(line, "dim")
            for line in paper.wrap(
                "Reward, length and entropy: last quarter of the steps. [low, high]: 99.8 % interval of the "
                "difference; * where it leaves 0 out."
            )
        ),
    ]
    return "\n".join(lines)


def _compared(paper: Paper, line: Line) -> str:
    cells = "".join(
        f"{'-' if number is None else _value(number, line.unit, short=True):>12}"
        for number in (value(line.a), value(line.b))
    )
    text = f"  {line.label:<22}{paper.plain(cells)}"
    if line.change is not None:
        change = line.change
        bounds = f"[{_signed(change.low, line.unit)}, {_signed(change.high, line.unit)}]"
        text += f" {'*' if line.sure else ' '} {_signed(change.value, line.unit)}  {bounds}"
    text = paper.plain(text)
    return paper.style(text, "bold") if line.sure else text


def _signed(number: float, unit: str) -> str:
    return f"{100 * number:+.1f}" if unit == "share" else f"{number:+.3g}"
