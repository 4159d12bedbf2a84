r"""Where a completion's final answer stands: the text of it, or that it has none. Nothing is parsed here.

The rule, in this order:

1. What follows a line that begins with "Question:", "Problem:" or "Q:" is read only where nothing before it holds an
   answer: a base model runs on into the next problem.
2. Where the completion closes a thought (`</think>`), only what follows the last one is read.
3. A closed `<answer>…</answer>` comes first, the last one; then steps 4 to 6 within it, and its whole text where they
   find nothing.
4. The last `\boxed{…}` (or `\fbox`) whose braces are balanced; one that was cut off does not count.
5. Else the last `#### …`, to the end of its line.
6. Else the last "final answer is …" or "Final answer: …", to the end of its sentence or line.

So one answer is read, and listing several does not help; where a marker stands does not matter. "The answer is 42" is
no marker: base models write it in the middle of a thought.
"""

from __future__ import annotations

import re

_RUN_ON = re.compile(r"^[ \t]*+(?:\*\*)?(?:Question|Problem|Q)(?:\*\*)?:", re.MULTILINE)
_ANSWER_TAG = re.compile(r"<answer>((?:(?!</?answer>).)*+)</answer>", re.DOTALL)
_BOX = re.compile(r"\\f?box(?:ed)?\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_HASHES = re.compile(r"####[ \t]*+((?:(?!####)[^\n])*+)")
_PHRASE = re.compile(
    r"\bfinal\s+answer\b(?:\*\*)?(?:\s+is\b|\s*:)(?:\*\*)?\s*:?[ \t]*\n?([^\n]*)", re.IGNORECASE
)
_LEADING_MATH = re.compile(r"\$\$?(?:\\.|[^$\\])++\$\$?|\\\(.+?\\\)|\\\[.+?\\\]")
_SENTENCE_END = re.compile(r"[.?](?=\s|$)")
_CALCULATOR = re.compile(r"<<[^<>\n]*>>")

HASHES = "####"


def final_answer(completion: str) -> str | None:
    r"""The text of a completion's final answer, by the rule at the head of this module.

    Args:
        completion: What the model wrote. Time is linear in its length.

    Returns:
        The text, without white space round it; None where the completion has no marker, or an empty answer.

    Example:
        >>> final_answer(r"\boxed{2} is wrong, so \boxed{\frac{1}{2}}.")
        '\\frac{1}{2}'
        >>> final_answer("That makes #### 42\nand so on"), final_answer("The answer is 42.")
        ('42', None)
    """
    run_on = _RUN_ON.search(completion)
    before = _answer_of(completion[: run_on.start()]) if run_on else None
    return _answer_of(completion) if before is None else before


def last_box(text: str) -> str | None:
    r"""What the last balanced `\boxed{…}` holds; None where there is none.

    >>> last_box(r"\boxed{840} \boxed{\text{a {b} c}} \boxed{1")
    '\\text{a {b} c}'
    """
    opened = [match.end() for match in _BOX.finditer(text)]
    if not opened:
        return None
    closes = _closing_braces(text, opened[0] - 1)
    for start in reversed(opened):
        if (end := closes.get(start - 1)) is not None:
            return text[start:end].strip()
    return None


def after_hashes(text: str) -> list[str]:
    """What follows each `####`, to the next or the end of its line, calculator marks (<<48/2=24>>) removed."""
    return [_CALCULATOR.sub("", match[1]).strip() for match in _HASHES.finditer(text)]


def _answer_of(completion: str) -> str | None:
    text = completion.rpartition("</think>")[2]
    tagged = _last(_ANSWER_TAG, text)
    if tagged is not None:
        return _marked(tagged) or tagged.strip() or None
    return _marked(text)


def _marked(text: str) -> str | None:
    boxed = last_box(text)
    if boxed is not None:
        return boxed or None
    hashed = [answer for answer in after_hashes(text) if answer]
    if hashed:
        return hashed[-1]
    said = _last(_PHRASE, text)
    return _first_sentence(said) or None if said is not None else None


def _first_sentence(text: str) -> str:
    text = text.strip()
    if math := _LEADING_MATH.match(text):
        return math[0]
    return text[: end.start()] if (end := _SENTENCE_END.search(text)) else text


def _last(pattern: re.Pattern[str], text: str) -> str | None:
    found = None
    for match in pattern.finditer(text):
        found = match[1]
    return found


def _closing_braces(text: str, start: int) -> dict[int, int]:
    r"""Where each brace that opens at `start` or later closes; escaped ones (\{) are none."""
    closes: dict[int, int] = {}
    stack: list[int] = []
    for match in _BRACE.finditer(text, start):
        if match[0] == "{":
            stack.append(match.start())
        elif match[0] == "}" and stack:
            closes[stack.pop()] = match.start()
    return closes
