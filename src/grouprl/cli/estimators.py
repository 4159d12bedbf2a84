"""What `grouprl advantages` and `explain` do with an estimator: whether a file can serve it, and what it gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grouprl.advantages import Estimator
from grouprl.advantages.specs import check_options
from grouprl.errors import ConfigError, GrouprlError


def check_estimator(estimator: Estimator, options: Mapping[str, Any]) -> None:
    """Refuse an estimator that a file cannot serve, and options that are none of its.

    Raises:
        ConfigError: With what it lacks, or takes.
    """
    if estimator.scope in ("stateful", "token"):
        missing = "steps and tokens inside a completion" if estimator.scope == "token" else "earlier calls"
        raise ConfigError(
            f"advantages: {estimator.name} needs {missing}, which a row does not hold; "
            "call it from Python, or choose another --estimator"
        )
    check_options(estimator, options)
    if "max_reward" in estimator.needs and "max_reward" not in options:
        raise ConfigError(
            f"advantages: {estimator.name} needs the task's highest reward; add --estimator-option max_reward=1, say"
        )


def rehearse(estimator: Estimator, options: Mapping[str, Any], columns: Mapping[str, Any]) -> None:
    """Try the options on two rewards, so that a wrong one is refused before a long file is read.

    Args:
        estimator: The estimator.
        options: Its options.
        columns: As `data_columns` gives them.

    Raises:
        GrouprlError: As `advantages_of`.
    """
    two = np.array([1.0, 0.0])
    data = {
        keyword: two if isinstance(of, str) else dict.fromkeys(of, two) for keyword, of in columns.items()
    }
    advantages_of(estimator, two, np.zeros(2, np.int64), {**options, **data})


def advantages_of(
    estimator: Estimator, rewards: NDArray[Any], group: NDArray[np.int64], keywords: Mapping[str, Any]
) -> NDArray[Any]:
    """One finite number a reward.

    Raises:
        GrouprlError: The estimator refuses what it is given.
        ConfigError: A user's own raised something else, or gave something else.
    """
    try:
        values = np.asarray(estimator(rewards, group, **keywords))
    except GrouprlError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"estimator {estimator.name!r}: raised {reason}; mend it") from error
    if values.shape != rewards.shape or values.dtype.kind != "f" or not np.isfinite(values).all():
        raise ConfigError(
            f"estimator {estimator.name!r}: gave {values.dtype} of shape {values.shape}, expected one finite float "
            f"for each of {len(rewards)} rewards; mend it"
        )
    return values
