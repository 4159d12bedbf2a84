"""Every error grouprl raises on purpose.

    GrouprlError
    ├── InputError         (ValueError)    a tensor, array or argument of the wrong shape, type or range
    ├── ConfigError        (ValueError)    a configuration key or value
    ├── TaskError          (ValueError)    a prompt file, a prompt, an answer
    ├── ModelError         (ValueError)    a model that cannot be loaded, a prompt that does not fit it
    ├── RunError           (RuntimeError)  a run folder or checkpoint that cannot be used
    │   └── LostRank                         another process of the run died
    ├── RewardError        (RuntimeError)  a reward function that raised or returned the wrong thing
    │   └── RewardUnavailable                what scores completions could not be reached
    ├── EstimatorError     (RuntimeError)  an advantage estimator that did so during a run
    ├── RolloutError       (RuntimeError)  what completions are drawn from did not start, or does not answer
    └── MissingDependency  (ImportError)   an extra that is not installed

A message reads `where: what was given, what was expected; what to do`, on one line. Each class is
also the built-in error named beside it, so callers need not import grouprl to catch it.
"""

from __future__ import annotations


class GrouprlError(Exception):
    """Base of every error that grouprl raises on purpose. Its message is one line, whatever it quotes.

    Attributes:
        of_rank: The rank of a distributed run whose error this is, where it is not this process's own.
    """

    of_rank: int | None = None

    def __str__(self) -> str:
        return " ".join(super().__str__().splitlines())


class InputError(GrouprlError, ValueError):
    """A tensor, array or argument has the wrong shape, type or range."""


class ConfigError(GrouprlError, ValueError):
    """A configuration key is unknown, or its value is not usable."""


class TaskError(GrouprlError, ValueError):
    """A task, prompt file, prompt or answer is not usable."""


class ModelError(GrouprlError, ValueError):
    """A model cannot be loaded, or a prompt does not fit it."""


class RunError(GrouprlError, RuntimeError):
    """A run folder or a checkpoint cannot be used."""


class LostRank(RunError):  # noqa: N818  (reads better where it is caught)
    """The connection to another rank of the run broke: it died, or did not answer in time."""


class RewardError(GrouprlError, RuntimeError):
    """A reward function raised, or returned the wrong count or type."""


class RewardUnavailable(RewardError):  # noqa: N818  (reads better where it is caught)
    """What scores completions could not be reached: no completion is to blame.

    Args:
        message: One line.
        scores: One for each completion of the batch, None where there was no answer.
        failed: How many had none.
    """

    def __init__(self, message: str, *, scores: list[float | None], failed: int) -> None:
        super().__init__(message)
        self.scores, self.failed = scores, failed


class EstimatorError(GrouprlError, RuntimeError):
    """An advantage estimator raised during a run, or returned what are no advantages."""


class RolloutError(GrouprlError, RuntimeError):
    """What completions are drawn from could not be started, does not answer, or answers with something else."""


class MissingDependency(GrouprlError, ImportError):  # noqa: N818  (reads better where it is caught)
    """An optional dependency is not installed."""
