"""Runs as plain text: curves in one line, and model output that cannot touch the terminal it is shown on.

What a model writes is untrusted: escape sequences would move the cursor or retitle the window, bidi controls
reorder what is read. Every function here returns plain text, never markup, with such characters spelt out.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-:=+*#"

# C0 and C1 controls but for newline; soft hyphen; bidi marks, embeddings, overrides and isolates; zero-width
# characters (the two joiners stay: emoji and many scripts are written with them); line and paragraph
# separators; tags; interlinear marks; lone surrogates.
_INVISIBLE = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff\ud800-\udfff]"
)


def segments(text: str) -> list[tuple[bool, str]]:
    """The text in pieces: (False, as it is) and (True, a control or invisible character spelt out).

    Newlines stay as they are.

    Example:
        >>> segments("a\\x1b[31mb")
        [(False, 'a'), (True, '\\\\x1b'), (False, '[31mb')]
    """
    pieces: list[tuple[bool, str]] = []
    position = 0
    for match in _INVISIBLE.finditer(text):
        if match.start() > position:
            pieces.append((False, text[position : match.start()]))
        pieces.append((True, _spelt_out(match[0])))
        position = match.end()
    if position < len(text):
        pieces.append((False, text[position:]))
    return pieces


def safe_text(text: str, limit: int | None = None, *, ascii: bool = False) -> str:
    """One line of text that does nothing to a terminal but be read.

    Controls, escape sequences, bidi overrides and invisible characters come out spelt (`\\x1b`), newlines
    as ⏎. Nothing of it is markup; hand it to rich as `Text`, not as a markup string.

    Args:
        text: Anything, such as a model's completion.
        limit: At most so many terminal columns (wide characters count two), "…" included where it is cut.
        ascii: Every character outside ASCII spelt out as well, newlines as `\\n`.

    Example:
        >>> safe_text("4\\n\\x1b]0;title\\x07", limit=None), safe_text("seventeen", limit=6)
        ('4⏎\\\\x1b]0;title\\\\x07', 'seven…')
    """
    # No character takes less than a column but combining marks; four a column is more than any script needs.
    head = text if limit is None else text[: 4 * limit + 4]
    shown = "".join(piece for _, piece in segments(head)).replace("\n", "\\n" if ascii else "⏎")
    if ascii:
        shown = shown.encode("ascii", "backslashreplace").decode()
    return shown if limit is None else _clip(shown, limit, cut=len(head) < len(text), ascii=ascii)


def display_width(text: str) -> int:
    """How many terminal columns the text takes.

    Example:
        >>> display_width("abc"), display_width("加法"), display_width("e\\u0301")
        (3, 4, 1)
    """
    return sum(map(_columns, text))


def wrap(text: str, width: int, *, first: str = "", indent: str = "") -> list[str]:
    """Words in lines of at most `width` columns; a word that is longer is cut.

    Args:
        text: Safe text.
        width: More than the indents take, by two or more.
        first: What the first line begins with.
        indent: What the others begin with.

    Returns:
        At least one line; white space at their ends is gone.

    Example:
        >>> wrap("加法 is addition", 10, first="- ", indent="  ")
        ['- 加法 is', '  addition']
    """
    lines, line, empty = [], first, True
    for word in text.split():
        while word:
            gap = "" if empty else " "
            room = width - display_width(line) - len(gap)
            if display_width(word) <= room:
                line, word, empty = line + gap + word, "", False
            elif empty:
                cut = max(_fitting(word, room), 1)
                lines.append(line + word[:cut])
                line, word = indent, word[cut:]
            else:
                lines.append(line)
                line, empty = indent, True
    return lines if empty and lines else [*lines, line.rstrip()]


def sparkline(values: Iterable[float | None], *, width: int | None = None, ascii: bool = False) -> str:
    """A curve in one line of block characters, lowest value lowest.

    Args:
        values: The curve. None, NaN and ±inf leave a space.
        width: At most so many characters; longer curves are averaged in equal stretches.
        ascii: For terminals without Unicode.

    Returns:
        One character a value; equal values give a flat line at half height; no values give "".

    Example:
        >>> sparkline([0.0, 0.25, None, 0.5, 1.0]), sparkline([2, 2, 2]), sparkline([0, 1], ascii=True)
        ('▁▃ ▅█', '▄▄▄', '_#')
    """
    points = [None if value is None or not math.isfinite(value) else float(value) for value in values]
    if width is not None and len(points) > width > 0:
        points = [
            _mean(points[i * len(points) // width : (i + 1) * len(points) // width]) for i in range(width)
        ]
    present = [point for point in points if point is not None]
    if not present:
        return " " * len(points)
    blocks = _ASCII_BLOCKS if ascii else _BLOCKS
    low, high = min(present) / 2, max(present) / 2  # halves: their difference cannot overflow
    line = ""
    for point in points:
        if point is None:
            line += " "
        elif high == low:
            line += blocks[3]
        else:
            line += blocks[round((point / 2 - low) / (high - low) * (len(blocks) - 1))]
    return line


def format_groups(
    rows: Iterable[Mapping[str, Any]], *, width: int = 96, completions: int = 8, ascii: bool = False
) -> str:
    """Sample groups to print: each prompt, and its completions with reward and advantage.

    Args:
        rows: Rollout rows (`records.rollout_schema`), a group's rows together or not. A polars DataFrame
            gives them as `frame.to_dicts()`.
        width: Columns to fill.
        completions: At most so many of a group; a last line says how many more there are.
        ascii: For terminals without Unicode.

    Returns:
        Plain text without a newline at its end; "" without rows.
    """
    groups: dict[tuple[Any, Any], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row.get("step"), row.get("group_id")), []).append(row)
    return "\n\n".join(_group(members, width, completions, ascii) for members in groups.values())


def _group(members: Sequence[Mapping[str, Any]], width: int, completions: int, ascii: bool) -> str:
    first = members[0]
    step, group = first.get("step"), safe_text(str(first.get("group_id")), limit=24, ascii=ascii)
    prompt = safe_text((first.get("prompt") or "").strip(), ascii=ascii)
    lines = [
        f"step {step}, group {group}",
        f"  prompt  {clip_head(prompt, width - 10, ascii=ascii)}",
        f"  {'reward':>8}  {'advantage':>9}  {'end':<6}  completion",
    ]
    for row in members[:completions]:
        reward = "unscored" if row.get("reward") is None else f"{row['reward']:.3g}"
        advantage = "" if row.get("advantage") is None else f"{row['advantage']:+.2f}"
        end = safe_text(row.get("finish_reason") or "", limit=6, ascii=ascii)
        text = safe_text(row.get("completion") or "(empty)", limit=max(width - 31, 8), ascii=ascii)
        lines.append(f"  {reward:>8}  {advantage:>9}  {end:<6}  {text}".rstrip())
    more = len(members) - completions
    if more > 0:
        lines.append(f"  and {more} more completion{'s' if more > 1 else ''}")
    return "\n".join(lines)


def _spelt_out(character: str) -> str:
    code = ord(character)
    if character == "\t":
        return "\\t"
    if character == "\r":
        return "\\r"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _columns(character: str) -> int:
    if character < "\u0300":
        return 1
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _clip(text: str, limit: int, *, cut: bool, ascii: bool) -> str:
    """At most `limit` columns from the left; `cut` says that there was more text than this."""
    if not cut and display_width(text) <= limit:
        return text
    mark = "..." if ascii else "…"
    room = max(limit - len(mark), 0)
    return text[: _fitting(text, room)] + mark[:limit]


def clip_head(text: str, limit: int, *, ascii: bool = False) -> str:
    """At most `limit` columns of safe text from the right: a prompt's question stands at its end.

    Example:
        >>> clip_head("Some words. What is 2 + 2?", 13)
        '…at is 2 + 2?'
    """
    if len(text) <= limit and display_width(text) <= limit:
        return text
    mark = "..." if ascii else "…"
    kept = _fitting(text[::-1], max(limit - len(mark), 0))
    return mark[:limit] + text[len(text) - kept :]


def _fitting(text: Iterable[str], room: int) -> int:
    """How many characters of `text` fit into `room` columns."""
    used = count = 0
    for character in text:
        used += _columns(character)
        if used > room:
            break
        count += 1
    return count


def _mean(points: Sequence[float | None]) -> float | None:
    present = [point for point in points if point is not None]
    return math.fsum(point / len(present) for point in present) if present else None
