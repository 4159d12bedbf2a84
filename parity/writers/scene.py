"""What the writers are given, where a framework's own run does not make it: two steps of three groups of four."""

from __future__ import annotations

from typing import NamedTuple

GROUP_SIZE = 4
NAN = float("nan")


class Row(NamedTuple):
    step: int
    draw: str
    """Names the group: one prompt drawn twice in a step is two draws."""
    place: int
    prompt: str
    completion: str
    answer: str
    reward: float


_DRAWS = [
    # step, draw, prompt, answer, (completion, reward) × 4
    (1, "1-a", "What is 2 + 2?", "4", [("4", 1.0), ("5", 0.0), ("four", 1.0), ("", NAN)]),
    (1, "1-b", "What is 2 + 2?", "4", [("4", 1.0)] * 4),
    (1, "1-c", "Größe «π»? 😀", "3", [("3", 0.5), ("3\n", 0.25), ("\x1b[31m", 0.0), ("</think>", -1.0)]),
    (2, "2-a", "Größe «π»? 😀", "3", [("3", 0.0)] * 4),
    (2, "2-b", 'Say "yes"\\no', "yes", [("yes", 1.0), ("no", 0.0), ("yes", 1.0), ("no", 0.0)]),
    (2, "2-c", "What is 2 + 2?", "4", [("4", 1.0), ("5", 0.0), ("6", 0.0), ("7", 0.0)]),
]


def rows() -> list[Row]:
    return [
        Row(step, draw, place, prompt, completion, answer, reward)
        for step, draw, prompt, answer, completions in _DRAWS
        for place, (completion, reward) in enumerate(completions)
    ]
