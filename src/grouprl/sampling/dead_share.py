"""How many groups will have no spread, from how often each prompt is solved."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from grouprl.advantages.inputs import ArrayLike
from grouprl.errors import InputError


def expected_dead_share(pass_rates: ArrayLike, group_size: int) -> float:
    """The expected share of groups without spread, with rewards of two values.

        E[dead] = mean over prompts of p^G + (1 − p)^G

    Not the same at the mean of p: the function is convex, so that comes out too low wherever prompts differ.

    Args:
        pass_rates: p of each prompt, in [0, 1]: a sequence, an array or a tensor of any shape.
        group_size: G, at least 1.

    Returns:
        A share in [0, 1], computed in float64. Reading a tensor waits for its device.

    Raises:
        InputError: No pass rates, one that is not in [0, 1], a group size below 1.

    Edges: with G = 1 every group is dead. Estimates c / n in place of p come out too high: a prompt that was solved 0
    of 8 times counts as one that never is.

    Example:
        >>> import grouprl
        >>> grouprl.sampling.expected_dead_share([0.0, 0.5, 1.0], 2)
        0.8333333333333334

    Source: ours; DAPO, https://arxiv.org/abs/2503.14476, section 3.2, measures the share over a run.
    """
    where = "expected_dead_share"
    if isinstance(group_size, bool) or not isinstance(group_size, int) or group_size < 1:
        raise InputError(
            f"{where}: group_size is {group_size!r}, expected a whole number of 1 or more; give G of the run"
        )
    try:
        given = pass_rates.detach().double().cpu() if isinstance(pass_rates, Tensor) else pass_rates
        rates = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{where}: pass_rates cannot be read ({error}), expected numbers in [0, 1]; give one a prompt"
        ) from error
    if rates.size == 0:
        raise InputError(f"{where}: no pass_rates, expected one or more; give one a prompt")
    outside = ~((rates >= 0) & (rates <= 1))
    if outside.any():
        raise InputError(
            f"{where}: a pass rate is {rates[outside].flat[0]:g}, expected numbers in [0, 1]; leave out prompts "
            "of which nothing is known"
        )
    return float(np.mean(rates**group_size + (1.0 - rates) ** group_size))
