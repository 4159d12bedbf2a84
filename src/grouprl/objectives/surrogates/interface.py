"""What a surrogate is given and gives, and what its options may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor

from grouprl.errors import InputError
from grouprl.objectives._checks import check_number


class Tokens(NamedTuple):
    """What a surrogate sees. Masked positions hold log-ratio 0, advantage 0 and log-prob 0."""

    log_ratio: Float[Tensor, "b t"]
    """log π − log π_old, clamped (`ratio.log_ratio`); carries the gradient."""
    advantages: Float[Tensor, "b t"]
    completion_mask: Bool[Tensor, "b t"]
    logprobs: Float[Tensor, "b t"]
    """log π, bounded below (`ratio.bounded_logprobs`); carries the gradient."""


class SurrogateTerms(NamedTuple):
    """What a surrogate gives."""

    loss: Float[Tensor, "b t"]
    clipped_low: Bool[Tensor, "b t"]
    """Where the lower clip held the token: took its gradient away, or in cispo limited its weight."""
    clipped_high: Bool[Tensor, "b t"]
    """Where the upper clip did."""
    clipped_dual: Bool[Tensor, "b t"] | None = None
    """Where the dual clip took the gradient away, if there is one."""


class Option(NamedTuple):
    """A number that a surrogate takes: its published value, and the range it may come from."""

    default: float | None
    above: float | None = None
    """Lower limit, itself left out; None: 0, itself allowed."""
    high: float = math.inf
    finite: bool = False


class Surrogate(NamedTuple):
    """An entry of `SURROGATES`."""

    terms: Callable[..., SurrogateTerms]
    """(tokens, **options) → terms."""
    options: Mapping[str, Option]
    per_sequence: bool = False
    """Whether a ratio belongs to a completion, and so every token counts by its completion's length."""
    of_logprobs: bool = False
    """Whether the loss holds log π itself."""


def choose_options(
    where: str, name: str, surrogate: Surrogate, given: Mapping[str, float | None]
) -> dict[str, float | None]:
    """The surrogate's own values where None was given; an option that it does not know is refused."""
    for option, value in given.items():
        if value is None:
            continue
        if option not in surrogate.options:
            takes = ", ".join(surrogate.options) or "none"
            raise InputError(
                f"{where}: {option}={value!r} with surrogate={name!r}, expected only options it takes "
                f"({takes}); leave {option} out"
            )
        allowed = surrogate.options[option]
        check_number(where, option, value, above=allowed.above, high=allowed.high, finite=allowed.finite)
    return {
        option: allowed.default if given.get(option) is None else given[option]
        for option, allowed in surrogate.options.items()
    }
