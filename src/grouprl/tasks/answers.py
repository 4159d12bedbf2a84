"""The number in a model's answer, read exactly: Fraction throughout, so "29.00" is 29 and 0.1 is 1/10.

A model's text is untrusted. It is matched by possessive regular expressions in time linear in its length,
never evaluated, and a number of more than `MAX_CHARACTERS` characters is no number.

The rules, each of which has a test:

- Digits are the ten ASCII ones. Arabic-Indic, full-width and superscript digits are not read.
- Commas that group thousands belong to the number (1,234,567); any other comma ends it, so the last number
  of "1,2,3" is 3. "100,200" is one hundred thousand two hundred, whatever was meant.
- A minus (- or U+2212) is a sign where it touches the number, or the currency mark before it, and does not
  follow an operand: -7, (-7), 5 * -7, -$7 and "5 -7" are negative; 5-7, x-7, (5)-7, "5 - 7" and --7 are not.
- A full stop ends a sentence unless a digit follows: "72." is 72. ".5" is a half where it stands free.
- Exponents count (1e-1 is 1/10), up to three digits of them.
- A slash, colon, percent or letter just ends a number: the last number of "3/4" is 4, that of "22km" 22.
- What runs on like 1.2.3 is no number, and nothing before it is read in its place.
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_CHARACTERS = 300
"""Longer digit strings are no number: wrong answers all, and int() is slow on them and refuses 4,300."""

_RUN = re.compile(r"[0-9]++(?:[.,][0-9]++)*+(?:[eE][-+\u2212]?[0-9]++(?![A-Za-z]))?+")
_NUMBER = re.compile(
    r"(?P<sign>[-+\u2212]?)[$€£¥]?"
    r"(?P<digits>(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
    r"(?:[eE](?P<exponent>[-+\u2212]?[0-9]{1,3}))?"
)
_MINUS = "-\u2212"
_CURRENCY = "$€£¥"


def number(text: str) -> Fraction | None:
    """The value of a text that is one number and nothing else but white space round it.

    Args:
        text: Any text.

    Returns:
        The exact value; None where the text is empty, holds anything else, or is too long.

    Example:
        >>> number(" -1,234.50 ")
        Fraction(-2469, 2)
        >>> number("$29.00"), number("12 apples"), number("1,23")
        (Fraction(29, 1), None, None)
    """
    text = text.strip()
    match = _NUMBER.fullmatch(text) if len(text) <= MAX_CHARACTERS else None
    if match is None:
        return None
    digits = match["digits"].replace(",", "")
    exponent = (match["exponent"] or "0").replace("\u2212", "-")
    value = Fraction(f"{digits}e{exponent}")
    return -value if match["sign"] and match["sign"] in _MINUS else value


def last_number(text: str) -> Fraction | None:
    """The last number in a text, by the rules at the head of this module.

    Args:
        text: A completion. Its length does not matter: time is linear in it.

    Returns:
        The exact value; None where there is no number, or the last one is not readable (1.2.3, or a string
        of thousands of digits). An earlier number is never read in its place.

    Example:
        >>> last_number("The total is 72 clips, altogether.")
        Fraction(72, 1)
        >>> last_number("so it costs -$1,234.5.")
        Fraction(-2469, 2)
        >>> last_number("5-3"), last_number("no idea")
        (Fraction(3, 1), None)
    """
    last = None
    for last in _RUN.finditer(text):  # noqa: B007  (read after the loop)
        pass
    if last is None or len(last[0]) > MAX_CHARACTERS:
        return None
    start, run = last.start(), last[0]
    if not _NUMBER.fullmatch(run):  # a list without spaces: its last item
        start += run.rfind(",") + 1
        run = run[run.rfind(",") + 1 :]
    return number(_prefix(text, start) + run)


def last_integer(text: str) -> int | None:
    """The last number in a text, where it is whole: "22" and "22.0" are 22.

    Args:
        text: A completion.

    Returns:
        The integer; None where there is no number or the last one is not whole. So "22.5" is neither 22 nor
        5, and no earlier integer is read in its place.

    Example:
        >>> last_integer("7 + 15 = 22"), last_integer("12"), last_integer("22.5")
        (22, 12, None)
    """
    value = last_number(text)
    return int(value) if value is not None and value.denominator == 1 else None


def _prefix(text: str, start: int) -> str:
    """The sign and the leading decimal point that belong to the digits at `start`."""
    before = text[max(0, start - 4) : start]
    point = before.endswith(".") and not _ends_operand(before[:-1]) and not before.endswith("..")
    if point:
        before = before[:-1]
    if before and before[-1] in _CURRENCY:
        before = before[:-1]
    signed = bool(before) and before[-1] in _MINUS
    negative = signed and not _ends_operand(before[:-1]) and (len(before) < 2 or before[-2] not in _MINUS)
    return ("-" if negative else "") + ("." if point else "")


def _ends_operand(before: str) -> bool:
    """Whether a minus after this text subtracts: it follows a number, a name or a closing bracket."""
    return bool(before) and (before[-1].isalnum() or before[-1] in ")]}%")
