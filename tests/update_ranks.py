"""The same updates on one process and on several: every rank runs every case, and says what came of it.

    alone = [outcome(case, Ranks()) for case in CASES]
    together = on_ranks(2)                                      together[rank]["fsdp"][case]

As a script this is one rank.
"""

from __future__ import annotations

import pickle
import sys
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import tiny
import torch
from torch.distributed.tensor import DTensor
from updates import GROUPS, config
from worlds import TIMEOUT_S, leave, start

from grouprl.policy import Policy
from grouprl.policy.lora import attach_adapter
from grouprl.policy.sharding import whole
from grouprl.tasks import Scores
from grouprl.training import Config
from grouprl.training.critic import Critic
from grouprl.training.launch import joined
from grouprl.training.optimizer import make_optimizer
from grouprl.training.ranks import Ranks
from grouprl.training.reward_kl import penalise
from grouprl.training.update import UpdateResult, update

STRATEGIES = ("ddp", "fsdp")
SPREAD = (1.2, -0.7, -0.5, 0.3, 0.2, -0.5, -1.0, 0.4, 0.6)


@dataclass(frozen=True)
class Case:
    """An update on replayed completions.

    Args:
        name: For messages.
        advantages: Of `updates.GROUPS`' nine completions in their three groups.
        sections: Of the configuration.
        family: Of the model.
        critic: Whether there is one.
        checkpoint_layers: Whether layers run again in backward.
        ddp_only: Whether fsdp refuses it.
        lora_rank: Of the adapter that is trained; 0 is none.
    """

    name: str
    advantages: tuple[float, ...] = SPREAD
    sections: dict[str, Any] = field(default_factory=dict)
    family: str = "llama"
    critic: bool = False
    checkpoint_layers: bool = False
    ddp_only: bool = False
    lora_rank: int = 0


NAN = float("nan")
CASES = [
    Case("plain"),
    Case("clipped", sections={"optimizer": {"max_grad_norm": 0.1}}),
    Case(
        "by tokens, a completion at a time",
        sections={"objective": {"aggregation": "token_mean"}, "micro_batch_tokens": 1},
    ),
    Case(
        "four updates",
        sections={"objective": {"mini_batches": 2, "updates_per_rollout": 2, "correction": "truncated"}},
    ),
    Case("uneven: a dead group", advantages=(1.2, -0.7, -0.5, 0.0, 0.0, 0.0, -1.0, 0.4, 0.6)),
    Case("idle: one completion", advantages=(0.0,) * 4 + (0.9,) + (0.0,) * 4),
    Case("all idle", advantages=(0.0,) * 9),
    Case("not a number", advantages=(NAN, *SPREAD[1:])),
    Case("kl in the loss", sections={"objective": {"beta": 0.1, "entropy_weight": 0.01}}),
    Case("kl in the reward", sections={"objective": {"beta": 0.1, "kl_in": "reward"}}),
    Case("a head with a cap", family="gemma2"),
    Case("layers run again", checkpoint_layers=True, sections={"micro_batch_tokens": 12}),
    Case("prompts are not shared", family="mamba", ddp_only=True),
    Case("an adapter", lora_rank=4),
    Case(
        "an adapter of fewer rows than ranks, its base model the reference",
        lora_rank=1,
        sections={"objective": {"beta": 0.1}},
    ),
    Case(
        "an adapter's layers run again",
        lora_rank=4,
        checkpoint_layers=True,
        sections={"micro_batch_tokens": 12},
    ),
    Case("an adapter on Conv1D", lora_rank=4, family="gpt2"),
    Case("critic", sections={"advantage": {"estimator": "gae"}}, critic=True, ddp_only=True),
]


@dataclass(frozen=True)
class Outcome:
    """What an update did; `kept` are the weights, with their moments, that this rank holds."""

    weights: dict[str, torch.Tensor]
    kept: int
    result: UpdateResult
    penalties: list[float | None]


def outcome(case: Case, ranks: Ranks, strategy: str = "ddp", device: str = "cpu") -> Outcome:
    """The update of a case; on several ranks this one's."""
    policy = tiny.policy(case.family)
    policy.model.to(device)
    settings = config(
        **{**case.sections, "optimizer": {"adam_eps": 1e-3, **case.sections.get("optimizer", {})}}
    )
    if case.lora_rank:
        _adapt(policy, case.lora_rank)
    if case.checkpoint_layers:
        policy.checkpoint_layers()
    reference = _reference(policy) if settings.objective.beta else None
    if strategy == "fsdp":
        policy.shard()
        if reference is not None and not reference.sharded and settings.objective.kl_in == "loss":
            reference.shard()
    advantages = torch.tensor(case.advantages)
    scores = Scores(list(SPREAD), {"r": list(SPREAD)})
    critic = Critic(policy, settings) if case.critic else None
    targets = critic.targets(GROUPS, scores, ranks) if critic else None
    optimizer = make_optimizer(
        policy, settings.optimizer, critic=critic.parameters() if critic else (), critic_lr=1e-2
    )
    penalised = penalise(scores, GROUPS, policy, reference, settings, ranks)
    result = update(
        policy,
        optimizer,
        GROUPS,
        advantages,
        [True] * 9,
        settings,
        reference=reference,
        critic=critic,
        targets=targets,
        ranks=ranks,
    )
    weights = dict(policy.model.named_parameters())
    weights |= dict(critic.module.named_parameters()) if critic else {}
    return Outcome(
        {name: whole(w.detach()).cpu().clone() for name, w in weights.items()},
        sum(_local(state["exp_avg"]).numel() for state in optimizer.state.values()),
        result,
        penalised.columns.get("kl_penalty", []),
    )


def _local(x: torch.Tensor) -> torch.Tensor:
    return x.to_local() if isinstance(x, DTensor) else x


def _adapt(policy: Policy, rank: int) -> None:
    """Put an adapter on that does something: B is 0 only before training."""
    attach_adapter(policy.model, rank=rank, alpha=8.0)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=random))


def _reference(policy: Policy) -> Policy:
    if policy.adapted:
        return policy.without_adapter()
    other = tiny.policy(seed=1)
    other.model.to(policy.device)
    return Policy(other.model.requires_grad_(False), policy.tokenizer, prefix_obstacle=other.prefix_obstacle)


def cases(strategy: str) -> list[Case]:
    """Those that a strategy takes."""
    return [case for case in CASES if strategy == "ddp" or not case.ddp_only]


def on_ranks(size: int, device: str = "cpu") -> list[dict[str, list[Outcome]]]:
    """What each rank of a world found, by strategy, case by case."""
    return start(Path(__file__), size, device)


def main(folder: Path, rank: int, world: int, device: str) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    with joined(Config()) as ranks:
        found = {
            strategy: [outcome(case, ranks, strategy, device) for case in cases(strategy)]
            for strategy in STRATEGIES
        }
    (folder / f"results{rank}").write_bytes(pickle.dumps(found))
    leave()


if __name__ == "__main__":
    import update_ranks  # so that what is pickled is of a module that the reader can import too

    update_ranks.main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
