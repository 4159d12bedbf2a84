"""How many groups would have no spread, were each completion right with its prompt's own pass rate."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from grouprl.report.findings.data import RunData


def pass_record(run: RunData) -> pl.DataFrame | None:
    """For each group with two rewards: c of its n, and the record of its prompt in all other steps.

    Returns:
        The groups of two or more scored completions whose prompt was scored in another step too, with c, n,
        others_c, others_n, prompt_key, step, and alike: all right or none; None unless rewards have two values.
    """
    if run.two_rewards is None:
        return None
    counted = run.groups.filter((pl.col("scored") > 1) & pl.col("prompt_key").is_not_null()).with_columns(
        n=pl.col("scored").cast(pl.Int64),
        c=pl.col("right").cast(pl.Int64),
        alike=(pl.col("right") == 0) | (pl.col("right") == pl.col("scored")),
    )
    others = [
        (pl.col(x).sum().over("prompt_key") - pl.col(x).sum().over("prompt_key", "step")).alias(f"others_{x}")
        for x in ("c", "n")
    ]
    return counted.with_columns(others).filter(pl.col("others_n") > 0)


def all_equal(c: NDArray[np.int64], n: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.float64]:
    """The unbiased estimate of p^G + (1 − p)^G from c right of n ≥ G.

        [C(c, G) + C(n − c, G)] / C(n, G)

    the chance that G of the n, drawn without putting back, are equal. The plug-in (c/n)^G + (1 − c/n)^G comes out too
    high, as the function is convex.

    Args:
        c, n: Integers of shape (N,).
        size: G of each, at most n.

    Example:
        >>> all_equal(np.array([2]), np.array([4]), np.array([2])).round(4)  # of 6 pairs 2 are equal
        array([0.3333])

    Source: ours; the U-statistic of Hoeffding (1948), as pass@k is (arXiv 2107.03374, equation 1).
    """
    right, wrong = np.ones(len(c)), np.ones(len(c))
    for j in range(int(size.max(initial=0))):
        inside = j < size
        left = np.where(inside, n - j, 1)
        right *= np.where(inside, np.maximum(c - j, 0) / left, 1.0)
        wrong *= np.where(inside, np.maximum(n - c - j, 0) / left, 1.0)
    return right + wrong


def plugged_in(c: NDArray[np.int64], n: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    """(c/n)^G + (1 − c/n)^G: at least what a group of G would show, as E f(p̂) ≥ f(p) for a convex f."""
    p = c / n
    answer: NDArray[np.float64] = p**size + (1 - p) ** size
    return answer


def size_that_mends(record: pl.DataFrame, size: int, share: float) -> tuple[int, float] | None:
    """The smallest of 2G, 4G and 8G that at least halves the share of dead groups, and the share at most then.

    Args:
        record: What `pass_record` gives.
        size: G.
        share: That of dead groups now.

    Returns:
        None where not even 8G does: then most prompts are never, or always, solved.
    """
    c, n = record["others_c"].to_numpy(), record["others_n"].to_numpy()
    for factor in (2, 4, 8):
        expected = float(plugged_in(c, n, factor * size).mean())
        if expected <= share / 2:
            return factor * size, expected
    return None
