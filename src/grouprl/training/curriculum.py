"""Which prompts are passed over for a while: those that the policy solves nearly always, or never."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from grouprl.training.config import SamplingConfig

REMEMBERED = 2
"""Groups of a prompt that its pass rate is taken from, the latest: older ones are of another policy."""


@dataclass(frozen=True)
class Seen:
    """What is known of a prompt.

    Args:
        epoch: In which it was last sampled, from 0.
        groups: (right, scored, spread) of its latest groups, oldest first.
    """

    epoch: int
    groups: tuple[tuple[int, int, bool], ...]

    @property
    def pass_rate(self) -> float:
        """Right ones among the scored completions of the latest groups."""
        return sum(right for right, _, _ in self.groups) / sum(scored for _, scored, _ in self.groups)

    @property
    def has_spread(self) -> bool:
        """Whether the rewards of one of the latest groups differed, if only in what a wrong answer gets."""
        return any(spread for _, _, spread in self.groups)


class Curriculum:
    """Pass rates of prompts, and which prompts to pass over.

        pass rate = right / scored, over the latest `REMEMBERED` groups of the prompt
        passed over: pass rate ≥ skip_solved, or = 0;  for skip_epochs epochs, then sampled again

    A prompt that is never right is passed over only where none of its latest groups had spread: with rewards in degrees
    its groups may teach before one of them is right.

    What a step saw counts from the next draw on, and is kept once the step is recorded (`commit`): a step that fails
    half-way leaves the state as it was.

    Args:
        config: skip_epochs 0 passes over nothing, and remembers nothing.
    """

    def __init__(self, config: SamplingConfig) -> None:
        self.config = config
        self._kept: dict[str, Seen] = {}
        self._new: dict[str, Seen] = {}

    @property
    def on(self) -> bool:
        """Whether prompts may be passed over."""
        return self.config.skip_epochs > 0

    def skips(self, prompt_id: str, epoch: int) -> str | None:
        """Why a prompt is passed over in an epoch, "solved" or "unsolved"; None where it is to be sampled."""
        seen = self._new.get(prompt_id) or self._kept.get(prompt_id)
        if not self.on or seen is None or epoch - seen.epoch > self.config.skip_epochs:
            return None
        if seen.pass_rate >= self.config.skip_solved:
            return "solved"
        never = seen.pass_rate == 0 and not seen.has_spread
        return "unsolved" if never and self.config.skip_unsolved else None

    def saw(self, prompt_id: str, epoch: int, *, right: int, scored: int, spread: bool) -> None:
        """A group was sampled. One in which nothing was scored says nothing."""
        if not self.on or not scored:
            return
        seen = self._new.get(prompt_id) or self._kept.get(prompt_id) or Seen(epoch, ())
        latest = (*seen.groups, (right, scored, spread))[-REMEMBERED:]
        self._new[prompt_id] = replace(seen, epoch=epoch, groups=latest)

    def commit(self) -> None:
        """The step is done and recorded."""
        self._kept.update(self._new)
        self._new.clear()

    @property
    def state(self) -> str | None:
        """After the last whole step, as JSON; None where it is off."""
        if not self.on:
            return None
        return json.dumps({name: [seen.epoch, seen.groups] for name, seen in self._kept.items()})

    def load_state(self, text: str) -> None:
        """Take over a state that `state` gave."""
        self._kept = {
            name: Seen(epoch, tuple((right, scored, spread) for right, scored, spread in groups))
            for name, (epoch, groups) in json.loads(text).items()
        }
        self._new.clear()
