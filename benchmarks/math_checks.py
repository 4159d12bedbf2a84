"""Checks per second of the math reward, and of math-verify called in this process without any limit.

    python benchmarks/math_checks.py

Three batches, each scored by both sides in turns, best of --rounds: plain numbers (as GSM8K has them), formulas (as
MATH has them), and formulas with one answer in a hundred that never ends, which math-verify's own limit of signals
(5 s, its default) has to stop on its side. Formulas differ from each other, so that neither side answers from a cache.
One line a batch: ours, theirs, and ours over theirs.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable, Sequence

import math_verify

from grouprl.tasks.math_reward import MathReward

ENDLESS = "2^{2^{2^{2^{100}}}}"


def plain_numbers(count: int) -> list[tuple[str, str]]:
    """Gold and completion, half of them right."""
    return [(f"{n:,}", f"So she has {n} apples.\n#### {n + n % 2}.00") for n in range(1000, 1000 + count)]


def formulas(count: int) -> list[tuple[str, str]]:
    """Roots, fractions with letters, equations, sets, intervals; half of them right."""
    made = []
    for n in range(2, 2 + count):
        wrong = n % 2
        gold, answer = [
            (f"{n}\\sqrt{{3}}", f"\\sqrt{{{3 * n * n + wrong}}}"),
            (f"\\frac{{x+{n}}}{{2}}", f"\\frac{{x}}{{2}}+\\frac{{{n + wrong}}}{{2}}"),
            (f"y = {n}x + 1", f"y - {n + wrong}x = 1"),
            (f"\\{{1, {n}\\}}", f"{n + wrong}, 1"),
            (f"[{n}, \\infty)", f"[{n + wrong}, \\infty)"),
        ][n % 5]
        made.append((gold, f"Therefore $\\boxed{{{answer}}}$."))
    return made


def with_endless(count: int) -> list[tuple[str, str]]:
    """Formulas, of which every hundredth answer never ends."""
    return [
        (gold, f"\\boxed{{{ENDLESS}+{n}}}" if n % 100 == 50 else said)
        for n, (gold, said) in enumerate(formulas(count))
    ]


def ours(pairs: Sequence[tuple[str, str]]) -> int:
    """How many are right."""
    golds, completions = zip(*pairs, strict=True)
    return int(sum(MathReward()(completions, golds)))


def in_process(limit_s: int | None) -> Callable[[Sequence[tuple[str, str]]], int]:
    """math-verify as its documentation calls it: parse the gold, parse the completion, verify."""

    def check(pairs: Sequence[tuple[str, str]]) -> int:
        right = 0
        for gold, completion in pairs:
            parsed = math_verify.parse(f"${gold}$", parsing_timeout=limit_s)
            said = math_verify.parse(completion, parsing_timeout=limit_s)
            right += math_verify.verify(parsed, said, timeout_seconds=limit_s)
        return right

    return check


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100, help="completions in a batch")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    ours(formulas(20))  # starts the processes
    in_process(None)(formulas(20))
    for name, batch, limit_s, rounds in (
        ("plain numbers", plain_numbers(arguments.count), None, arguments.rounds),
        ("formulas", formulas(arguments.count), None, arguments.rounds),
        ("1 in 100 endless", with_endless(arguments.count), 5, 1),
    ):
        seconds: dict[str, float] = {}
        right: dict[str, int] = {}
        for _ in range(rounds):
            for side, check in (("ours", ours), ("theirs", in_process(limit_s))):
                start = time.perf_counter()
                right[side] = check(batch)
                seconds[side] = min(seconds.get(side, float("inf")), time.perf_counter() - start)
        rates = {side: len(batch) / took for side, took in seconds.items()}
        print(
            f"{name:17} {rates['ours']:9.0f}/s   math-verify in this process {rates['theirs']:7.0f}/s   "
            f"ratio {rates['ours'] / rates['theirs']:.2f}   right {right['ours']} and {right['theirs']} of {len(batch)}"
        )


if __name__ == "__main__":
    main()
