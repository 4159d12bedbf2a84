r"""What an answer's text says: a plain number, words, or mathematics that a checker has to parse.

Numbers are read here, exactly, and never by a computer algebra system:

- everything that `grouprl.tasks.answers` reads ($1,234.00 is 1234, −7, 1e-1), and LaTeX's ways to write it
  (1{,}234, 1\,234, \$5);
- fractions 3/4 and \frac{3}{4}, mixed numbers 1\frac{1}{2} and 1 1/2;
- a percent sign, which is kept apart (`Number.percent`): see `same_number`;
- repeating decimals 0.1\overline{6};
- a unit after the number, in \text{…} or as words, and degrees (^\circ): left out. A word of quantity is no unit: "3
  million", "5 or 6", "a quarter of 5" are no numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from grouprl.tasks import answers

MAX_CHARACTERS = 1000
"""A longer answer is not read: no gold is as long, and a checker's time grows faster than the text."""

MAX_WORDS = 8


@dataclass(frozen=True)
class Number:
    """A plain number: `value` as it is written, before a percent sign."""

    value: Fraction
    percent: bool = False

    @property
    def amount(self) -> Fraction:
        """What it is worth: 28 % is 0.28."""
        return self.value / 100 if self.percent else self.value


@dataclass(frozen=True)
class Words:
    """An answer that is a word or a few, compared as text without case: a name, a choice, a time of day, a number with
    its base (4210_5)."""

    text: str


@dataclass(frozen=True)
class Formula:
    """Mathematics, as LaTeX."""

    latex: str


Value = Number | Words | Formula


def read_value(text: str) -> Value | None:
    r"""What an answer says.

    Args:
        text: An answer, without the sentence round it. Dollar signs, \( \), ** and a full stop round it are left out.

    Returns:
        The value; None where it cannot be read: empty, too long, numbers side by side ("3 3" is no product), several
        full stops in one (1.2.3), text that is neither words nor mathematics.

    Example:
        >>> read_value("$1,234.00."), read_value(r"\text{Evelyn}")
        (Number(value=Fraction(1234, 1), percent=False), Words(text='evelyn'))
        >>> read_value(r"28\%").amount, read_value(r"$\frac{3}{4}$").value, read_value("3 3")
        (Fraction(7, 25), Fraction(3, 4), None)
        >>> read_value(r"2\sqrt{3}")
        Formula(latex='2\\sqrt{3}')
    """
    if len(text) > MAX_CHARACTERS:
        return None
    text = _bare(text)
    if not text:
        return None
    number = _number(text)
    if number is not None:
        return number
    words = _words(text)
    if words is not None:
        return words
    if _UNREADABLE.search(text) or _prose(text):
        return None
    return Formula(_without_unit(text).replace("\\%", "%").replace("%", "\\%"))


def same_number(gold: Number, answer: Number) -> bool:
    """Whether two plain numbers are equal, exactly: 0.333 is not 1/3.

    A percent sign says hundredths, and where one side alone has it it may as well be the name of the unit, since a
    question for a percentage is answered by "28", "28%" and "0.28" alike:

        gold 28%   28%, 28 and 0.28 are right
        gold 28    28 and 28% are right, 0.28 is not
        gold 0.28  0.28, 28% and 0.28% are right, 28 is not

    >>> same_number(Number(Fraction(28)), Number(Fraction(28), percent=True))
    True
    >>> same_number(Number(Fraction(28, 100)), Number(Fraction(28)))
    False
    """
    return (
        gold.value == answer.value
        if gold.percent == answer.percent
        else (gold.value == answer.value or gold.amount == answer.amount)
    )


def same_words(gold: Words, text: str) -> bool:
    """Whether an answer's text is these words, also where `read_value` would not take it for words.

    >>> same_words(Words("june 20"), "**June 20**")
    True
    """
    return len(text) <= MAX_CHARACTERS and _folded(_bare(text)) == gold.text


_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_DOLLAR = re.compile(r"(?<!\\)\$")
_ENDING = re.compile(r"(?:\\[,;:!]|[.,;\s])+$")
_SYMBOLS = {
    "\u2212": "-", "\u00d7": r"\times ", "\u00b7": r"\cdot ", "\u03c0": r"\pi ", "\u221e": r"\infty ",
    "\u2264": r"\le ", "\u2265": r"\ge ", "\u222a": r"\cup ", "\u00b0": r"^\circ ", "\u00a0": " ",
}  # fmt: skip
_TEXT = re.compile(r"\\(?:text(?:bf|rm|it|normal)?|mbox|math(?:rm|bf|it))\s*\{([^{}]*)\}")
_SPACING = re.compile(r"\\[,;:! ]|~")
_UNIT = r"[A-Za-z°][A-Za-z°.²³'-]*(?:\^?[23])?"
_TRAILING_UNIT = re.compile(rf"\s*(?:\^\s*\{{?\\circ\}}?|°|(?:{_UNIT})(?:[ /]+{_UNIT})*)$")
_TEXT_UNIT = re.compile(r"\s*\\(?:text(?:rm|normal)?|mbox|mathrm)\s*\{[^{}]*\}\s*(?:\^\s*(?:\d|\{\d\}))?$")
_QUANTITIES = (
    "hundred hundreds thousand thousands million millions billion billions trillion trillions dozen dozens score "
    "half halves third thirds quarter quarters fourth fourths fifth fifths tenth tenths hundredth hundredths bn "
    "or and to not plus minus times over squared cubed factorial mod pi sqrt percent percentage pct"
)
_NO_UNIT = frozenset(_QUANTITIES.split())
_PERCENT = re.compile(r"\s*(?:\\?%|percent(?:age)?|pct)$", re.IGNORECASE)
_SLASH = re.compile(
    r"(?P<sign>[-+\u2212]?)(?:(?P<whole>[0-9]+) )?(?P<above>[0-9.,]+) ?/ ?(?P<below>[0-9.,]+)"
)
_PART = r"(?:\{\s*(-?[0-9.,]+)\s*\}|([0-9]))"
_FRAC = re.compile(rf"(?P<sign>[-+\u2212]?)\s*(?P<whole>[0-9]*)\s*\\[dtc]?frac\s*{_PART}\s*{_PART}")
_CLOCK = re.compile(r"[0-9]{1,2}:[0-9]{2}(?: ?[ap]\.?m\.?)?", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z][A-Za-z'.-]*")
_CHOICE = re.compile(r"\(?([A-Za-z])\)")
_NAMES = (
    "sin cos tan cot sec csc log ln exp sqrt arcsin arccos arctan sinh cosh tanh min max gcd lcm mod det "
    "and or inf pi infty infinity"
)
_FUNCTIONS = frozenset(_NAMES.split())
_COMMAND = re.compile(r"\\(?:begin|end|operatorname|overline|mathbb|mathcal)\s*\{[^{}]*\}|\\[A-Za-z]+")
_BASE = re.compile(r"([0-9A-Fa-f]+)\s*_\s*(?:\{\s*)?(?:\\text\s*\{\s*)?([0-9]+)[\s}]*")
_REPEATING = re.compile(r"(-?)([0-9]*)\.([0-9]*)\\overline\s*\{([0-9]+)\}")
_UNREADABLE = re.compile(
    r"(?<!_)[0-9]\s+[0-9]|[0-9]\.[0-9]+\.[0-9]|[0-9]\s*_|\\[lc]?dots|\\boxed|['\"]|[^\x20-\x7e]"
)
"""What the parser would read as something else, or leave out: numbers side by side, a base, dots, primes."""


def _bare(text: str) -> str:
    """Without what stands round an answer, and with the ASCII form of what stands in it."""
    for symbol, ascii_form in _SYMBOLS.items():
        text = text.replace(symbol, ascii_form)
    text = " ".join(text.split())
    text = text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    while True:
        before = text
        text = _ENDING.sub("", text.strip("*` "))
        for opening, closing in _WRAPPERS:
            inner = text[len(opening) : len(text) - len(closing)]
            framed = inner and text.startswith(opening) and text.endswith(closing)
            if framed and (opening[0] == "\\" or not _DOLLAR.search(inner)):
                text = inner
        if text == before:
            return text


def _number(text: str) -> Number | None:
    text = _TEXT.sub(lambda match: match[1], text) if _TEXT.fullmatch(text) else text
    text = _SPACING.sub("", text).replace("{,}", ",").replace("\\$", "$").strip()
    for candidate in dict.fromkeys((text, _without_unit(text), _without_unit(_without_unit(text)))):
        percent = _PERCENT.search(candidate)
        digits = candidate[: percent.start()] if percent else candidate
        value = answers.number(digits)
        value = _fraction(digits) if value is None else value
        if value is not None:
            return Number(value, percent is not None)
    return None


def _fraction(text: str) -> Fraction | None:
    text = text.strip()
    if len(text) > answers.MAX_CHARACTERS:
        return None
    if match := _REPEATING.fullmatch(text):
        return _repeating(*match.groups())
    if match := _SLASH.fullmatch(text):
        whole, above, below = match["whole"], match["above"], match["below"]
    elif match := _FRAC.fullmatch(text):
        whole = match["whole"]
        above, below = match[3] or match[4], match[5] or match[6]
    else:
        return None
    parts = [answers.number(part) for part in (whole or "0", above, below)]
    if any(part is None for part in parts) or not parts[2]:
        return None
    first, numerator, denominator = (part for part in parts if part is not None)
    if whole and not 0 <= numerator < denominator:
        return None  # 3 \frac{5}{2}: a product, or a slip
    value = first + numerator / denominator
    return -value if match["sign"] in ("-", "\u2212") else value


def _repeating(sign: str, whole: str, once: str, again: str) -> Fraction:
    """0.1666… from "0", "1", "6": the digits that come once, and those that come again for ever over 9…90…0."""
    value = Fraction(int(f"{whole}{once}" or "0"), 10 ** len(once))
    value += Fraction(int(again), (10 ** len(again) - 1) * 10 ** len(once))
    return -value if sign else value


def _without_unit(text: str) -> str:
    """Without a unit after a number or a closing brace; a bare letter after a number is a variable, not a unit."""
    if (found := _TEXT_UNIT.search(text)) and found.start() > 0:
        inner = _TEXT.search(found[0])
        if inner is not None and _are_units(inner[1], letters=True):
            return text[: found.start()].strip()
    found = _TRAILING_UNIT.search(text)
    if found is None or not text[: found.start()] or not text[: found.start()][-1].isdigit():
        return text
    return (
        text[: found.start()]
        if _are_units(found[0]) and not re.search(r"\\|[A-Za-z]", text[: found.start()])
        else text
    )


def _are_units(text: str, *, letters: bool = False) -> bool:
    words = [word.lower() for word in re.findall(r"[A-Za-z]+", text)]
    if len(words) > MAX_WORDS or not _NO_UNIT.isdisjoint(words):
        return False
    return letters or not words or len(words[0]) > 1


def _words(text: str) -> Words | None:
    if based := _BASE.fullmatch(text):
        return Words(f"{based[1].lower()}_{based[2]}")
    if _CLOCK.fullmatch(text):
        return Words(text.lower().replace(" ", "").replace(".", ""))
    if inner := _TEXT.fullmatch(text):
        return Words(_folded(inner[1])) if inner[1].strip() else None
    if choice := _CHOICE.fullmatch(text):
        return Words(choice[1].lower())
    words = text.split()
    if len(words) > MAX_WORDS or not all(_WORD.fullmatch(word.rstrip(",")) for word in words):
        return None
    if len(text) == 1 or any(len(word) > 2 and word.lower() not in _FUNCTIONS for word in words):
        return Words(_folded(text))
    return None


def _folded(text: str) -> str:
    text = text.strip().strip(".")
    if choice := _CHOICE.fullmatch(text):
        text = choice[1]
    return " ".join(text.lower().split())


def _prose(text: str) -> bool:
    """Whether it holds words that no formula has: mathematics between them would be read as products of letters."""
    outside = _COMMAND.sub(" ", _TEXT.sub(" ", text))
    return any(len(word) > 3 and word.lower() not in _FUNCTIONS for word in re.findall(r"[A-Za-z]+", outside))
