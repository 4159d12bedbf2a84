"""What was drawn for a step, and its files in a checkpoint, where it was drawn by weights that are no more."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grouprl.errors import GrouprlError, RunError
from grouprl.policy import EncodedPrompt
from grouprl.tasks import Scores
from grouprl.training.collected import Collected
from grouprl.types import Completion, Group

BATCH_FILE = "in_flight.json"
TOKENS_FILE = "in_flight.safetensors"


@dataclass(frozen=True)
class Sampled:
    """What was sampled and scored for a step.

    Args:
        step: The step that trains on it.
        weights_step: Steps that the weights which drew it had behind them.
        collected: Its groups and scores.
        greedy: The scores of a greedy completion for each group that is trained on, where the estimator needs them.
        seconds: By stage.
    """

    step: int
    weights_step: int
    collected: Collected
    greedy: Scores | None
    seconds: Mapping[str, float]

    @property
    def staleness(self) -> int:
        """Steps by which the weights that drew it are behind those that train on it."""
        return self.step - 1 - self.weights_step

    def save(self, folder: Path) -> None:
        """Into a checkpoint: numbers to the bit, a prompt by its id."""
        from safetensors.torch import save_file

        collected = self.collected
        completions = [c for group in collected.groups for c in group.completions]
        save_file(
            {
                "token_ids": torch.tensor([i for c in completions for i in c.token_ids], dtype=torch.int64),
                "logprobs": torch.tensor([x for c in completions for x in c.logprobs], dtype=torch.float64),
                "loss_mask": torch.tensor([m for c in completions for m in c.loss_mask], dtype=torch.bool),
            },
            folder / TOKENS_FILE,
        )
        record = {
            "step": self.step,
            "weights_step": self.weights_step,
            "seconds": dict(self.seconds),
            "groups": [_group_record(group) for group in collected.groups],
            "scores": asdict(collected.scores),
            "correctness": collected.correctness,
            "dropped": collected.dropped,
            "rounds": collected.rounds,
            "position": collected.position,
            "skipped": dict(collected.skipped),
            "resampling_s": collected.resampling_s,
            "greedy": None if self.greedy is None else asdict(self.greedy),
        }
        (folder / BATCH_FILE).write_text(json.dumps(record), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, prompts: Sequence[EncodedPrompt]) -> Sampled | None:
        """From a checkpoint that `read_state` has checked; None where it holds none.

        Args:
            folder: The checkpoint.
            prompts: Those that the run trains on, encoded.

        Raises:
            RunError: It is not what `save` writes, or of other prompts.
        """
        file = folder / BATCH_FILE
        if not file.exists():
            return None
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            record = json.loads(file.read_text(encoding="utf-8"))
            tokens = load_file(folder / TOKENS_FILE)
            return cls(
                step=int(record["step"]),
                weights_step=int(record["weights_step"]),
                collected=Collected(
                    groups=list(_groups(record["groups"], tokens, prompts)),
                    scores=_scores(record["scores"]),
                    correctness=record["correctness"],
                    dropped=record["dropped"],
                    rounds=record["rounds"],
                    position=record["position"],
                    skipped=Counter(record["skipped"]),
                    resampling_s=record["resampling_s"],
                ),
                greedy=None if record["greedy"] is None else _scores(record["greedy"]),
                seconds=record["seconds"],
            )
        except (OSError, SafetensorError, GrouprlError, ValueError, KeyError, TypeError) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise RunError(
                f"{file}: holds no batch of this run's prompts ({reason}), expected the one that grouprl wrote; remove "
                "this checkpoint to go on from the one before it"
            ) from error


def _group_record(group: Group) -> dict[str, Any]:
    return {
        "group_id": group.group_id,
        "prompt_id": group.prompt.prompt_id,
        "completions": [
            {"tokens": len(c.token_ids), "text": c.text, "finish_reason": c.finish_reason}
            for c in group.completions
        ],
    }


def _groups(
    records: Sequence[Mapping[str, Any]], tokens: Mapping[str, Tensor], prompts: Sequence[EncodedPrompt]
) -> Iterator[Group]:
    by_id = {encoded.prompt.prompt_id: encoded for encoded in prompts}
    columns = [tokens[name].tolist() for name in ("token_ids", "logprobs", "loss_mask")]
    first = 0
    for record in records:
        completions = []
        for part in record["completions"]:
            ids, logprobs, mask = (tuple(column[first : first + part["tokens"]]) for column in columns)
            first += part["tokens"]
            completions.append(Completion(ids, logprobs, mask, part["text"], part["finish_reason"]))
        encoded = by_id[record["prompt_id"]]
        yield Group(record["group_id"], encoded.prompt, encoded.text, encoded.token_ids, tuple(completions))


def _scores(record: Mapping[str, Any]) -> Scores:
    possible = {name: tuple(outcomes) for name, outcomes in record["possible_outcomes"].items()}
    return Scores(**{**record, "possible_outcomes": possible})
