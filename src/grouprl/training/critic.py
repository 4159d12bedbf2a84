"""PPO's critic, as the measured contrast: a value head, token-level advantages by GAE, and the critic's own loss."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from grouprl import advantages
from grouprl.objectives import value_loss
from grouprl.policy import Policy, Rows
from grouprl.policy.logprobs import predicting_states
from grouprl.policy.value import ValueHead, completion_values
from grouprl.tasks import Scores
from grouprl.training.config import Config
from grouprl.training.minibatches import cut_micro_batches, deal, loss_masks, number_members
from grouprl.training.ranks import Ranks
from grouprl.types import Group

CRITIC_FILE = "critic.safetensors"
WHITENING_EPS = 1e-8


@dataclass(frozen=True)
class Targets:
    """What a batch's tokens are trained on, worked out before its first update.

    Args:
        advantages: (N, T), of each token, 0 where it is not trained; for the policy.
        returns: (N, T), what the values are to become.
        old_values: (N, T), what the critic said.
        mask: (N, T), tokens that are trained, of scored completions.
    """

    advantages: Float[Tensor, "n t"]
    returns: Float[Tensor, "n t"]
    old_values: Float[Tensor, "n t"]
    mask: Bool[Tensor, "n t"]

    def of(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """Advantages, returns and old values of a micro-batch, on its device."""
        width, device = rows.completion_mask.shape[1], rows.completion_mask.device
        tables = (self.advantages, self.returns, self.old_values)
        a, r, v = (table[list(rows.indices), :width].to(device) for table in tables)
        return a, r, v

    @property
    def means(self) -> Float[Tensor, " n"]:
        """A completion's mean advantage over its trained tokens: what the records show."""
        return self.advantages.sum(1) / self.mask.sum(1).clamp(min=1)

    @property
    def first_values(self) -> list[float | None]:
        """What the critic expected of each completion before its first token; None where it was not asked."""
        first = self.mask.int().argmax(1)
        values = self.old_values.gather(1, first[:, None])[:, 0].tolist() if self.mask.shape[1] else []
        return [v if scored else None for v, scored in zip(values, self.mask.any(1).tolist(), strict=False)]


class Critic:
    """A value head on the policy's backbone, or on a backbone of its own.

    On the policy's, values cost next to nothing in memory, and their loss trains the backbone as well. With one of its
    own, as at scale, there is a second model to keep, with its gradient and moments.

    Args:
        policy: Whose tokens it values.
        config: [critic], the objective, and gamma, lam among the estimator's options are read.
    """

    def __init__(self, policy: Policy, config: Config) -> None:
        self.policy, self.config = policy, config
        self.head = ValueHead(policy.head.weight.shape[1]).to(policy.device)
        self.backbone = policy
        self.module = nn.ModuleDict({"head": self.head})
        if config.critic.critic_backbone == "own":
            model = copy.deepcopy(policy.model)
            self.backbone = copy.copy(policy)
            self.backbone.model = model
            self.module["backbone"] = model.base_model

    def parameters(self) -> list[nn.Parameter]:
        """Those that are not the policy's."""
        return [p for p in self.module.parameters() if p.requires_grad]

    @torch.no_grad()
    def targets(self, groups: Sequence[Group], scores: Scores, ranks: Ranks | None = None) -> Targets:
        """Values of all scored completions, and what follows from them and the rewards.

            r_t = R at the last trained token, else 0        A_t, by `advantages.gae` with the run's γ and λ
            returns_t = A_t + V_t                            V after the last token is 0, also where it was cut off

        With `whiten_advantages`, the policy sees (A − mean) / (std + 1e-8) over the batch's trained tokens.

        On several ranks the forwards are dealt out, and all get the targets of the whole batch.
        """
        ranks = ranks or Ranks()
        members = number_members(groups)
        scored = torch.tensor([r is not None for r in scores.rewards], dtype=torch.bool)
        mask = loss_masks(members) & scored[:, None]
        values = torch.zeros(mask.shape)
        chosen = [m for m in members if scored[m[0]] and any(m[2].loss_mask)]

        def act() -> list[tuple[int, Tensor]]:
            found: list[tuple[int, Tensor]] = []
            for micro in cut_micro_batches(self.policy, deal(chosen, ranks.size)[ranks.rank], self.config):
                rows = completion_values(self.head, self.states(micro.rows), micro.rows)
                found += zip(micro.rows.indices, rows.cpu())
            return found

        for of_rank in ranks.each(act):
            for i, row in of_rank:
                values[i, : len(row)] = row
        rewards = torch.zeros(mask.shape)
        for i, reward in enumerate(scores.rewards):
            if reward is not None and mask[i].any():
                rewards[i, int(mask[i].nonzero()[-1])] = reward
        options = self.config.advantage.options
        advantage = advantages.gae(rewards, values, mask=mask, **options).float()
        returns = torch.where(mask, advantage + values, 0.0)
        if self.config.critic.whiten_advantages and mask.any():
            std, mean = torch.std_mean(advantage[mask].double(), correction=0)
            advantage = torch.where(mask, ((advantage - mean) / (std + WHITENING_EPS)).float(), 0.0)
        return Targets(advantage, returns, values, mask)

    def states(self, rows: Rows) -> Float[Tensor, "trained hidden"]:
        """The hidden states that the critic reads."""
        return predicting_states(self.backbone, rows)

    def loss(
        self, rows: Rows, states: Float[Tensor, "trained hidden"], targets: Targets, denominator: int
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
        """The weighted value loss of a micro-batch. See `objectives.value_loss`.

        Args:
            rows: The micro-batch.
            states: The policy's `predicting_states` of it, used where the backbone is shared.
            targets: Of the whole batch.
            denominator: Of the whole mini-batch.
        """
        critic, objective = self.config.critic, self.config.objective
        _, returns, old_values = targets.of(rows)
        own = self.backbone is not self.policy
        values = completion_values(self.head, self.states(rows) if own else states, rows)
        loss, sums = value_loss(
            values,
            old_values,
            returns,
            rows.completion_mask,
            value_clip=critic.value_clip or None,
            aggregation=objective.aggregation,
            max_tokens=self.config.rollout.max_new_tokens,
            denominator=denominator,
        )
        return critic.value_weight * loss, {**sums, "value_loss_sum": loss.detach()}

    def save(self, folder: Path) -> None:
        """Into a checkpoint."""
        from safetensors.torch import save_file

        save_file({k: v.contiguous() for k, v in self.module.state_dict().items()}, folder / CRITIC_FILE)

    def load(self, folder: Path) -> None:
        """From a checkpoint."""
        from safetensors.torch import load_file

        self.module.load_state_dict(load_file(folder / CRITIC_FILE))
