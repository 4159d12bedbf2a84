"""What every framework's function is given: rewards in groups, as plain Python numbers, read as float32."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

NAN = float("nan")

HEALTHY: dict[str, list[list[float]]] = {
    "binary, one group of 8": [[1, 0, 0, 1, 0, 0, 0, 1]],
    "one right in 8": [[0, 0, 0, 1, 0, 0, 0, 0]],
    "pairs": [[0, 1], [1, 0], [0.25, 0.5]],
    "threes": [[1, 2, 3], [0, 0, 1], [-1.5, 0.25, 4]],
    "floats, eight a group": [
        [0.1, 0.9, 0.4, 0.35, 0.7, 0.55, 0.2, 0.6],
        [-1.25, 3.5, 0.0, 2.75, -0.5, 1.0, 4.25, -3.0],
        [10.5, 11.0, 9.25, 10.0, 12.5, 8.75, 10.25, 9.0],
    ],
    "binary, four groups of 4": [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 0, 1]],
    "ragged": [[1, 0], [0.5, 0.25, 1.0], [1, 0, 0, 1, 1], [2.0, -1.0, 0.5, 0.25, 1.5, -0.75, 3.0, 1.25]],
}
"""Groups with a spread far above rounding. Here the frameworks' conventions differ, and nothing is noise."""

SICK: dict[str, list[list[float]]] = {
    "0.1 × 7": [[0.1] * 7],
    "0.7 × 11": [[0.7] * 11],
    "100.1 × 7": [[100.1] * 7],
    "0.9 × 3": [[0.9] * 3],
    "0.9 × 7": [[0.9] * 7],
    "1000.1 × 7": [[1000.1] * 7],
    "two groups of 0.3 × 8": [[0.3] * 8, [0.3] * 8],
    "a group of one": [[5.0]],
    "a group of one beside a pair": [[5.0], [1.0, 0.0]],
    "a NaN among four": [[1.0, NAN, 0.0, 1.0]],
    "0.35 and 0.95 × 7": [[0.35] + [0.95] * 7],
    "a spread of 1e-5 at 1.0": [[1.0, 1.00001, 1.0, 1.00001]],
}
"""Groups on which a trainer may not fail: no spread, one member, a reward that is missing, hardly any spread."""

SIZES = (2, 3, 4, 7, 8, 12, 16)
GROUPS = 1000
LARGEST = 1000.0
NOISE = 1e-3
"""An advantage above this, in a group whose rewards are all equal, counts as noise."""


class Constants(NamedTuple):
    size: int
    values: list[float]


def constants() -> list[Constants]:
    """For each group size the reward that all members of a group share, one for each of `GROUPS` groups."""
    return [
        Constants(
            size,
            np.random.default_rng(size).uniform(-LARGEST, LARGEST, GROUPS).astype(np.float32).tolist(),
        )
        for size in SIZES
    ]
