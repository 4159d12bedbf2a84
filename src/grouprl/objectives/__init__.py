"""Log-probabilities and advantages → a loss, and metrics that add up over micro-batches and ranks.

loss.py          policy_loss: mask, ratio, surrogate, weight, KL, entropy, aggregation, metrics
presets.py       policy_loss with the choices of one paper: grpo_loss, dapo_loss, …
surrogates/      one function a surrogate, by name: ppo_clip, gspo, cispo, …
aggregations.py  tokens → one number, by name: sequence_mean, token_mean, …; loss_denominator
kl.py            one function a KL estimator, by name: k1, k2, k3; kl_penalty for rewards
overlong.py      completions that were cut off: out of the mask, or less reward
correction.py    the weight of a token that another engine sampled: truncated, masked
ratio.py         the clamped log-ratio on which surrogate and KL stand
metrics.py       sums → means: summarise
value.py         the critic's loss, for PPO
"""

from grouprl.objectives.aggregations import loss_denominator
from grouprl.objectives.kl import kl_penalty
from grouprl.objectives.loss import policy_loss
from grouprl.objectives.metrics import summarise
from grouprl.objectives.overlong import filter_overlong, soft_overlong_penalty
from grouprl.objectives.presets import (
    cispo_loss,
    dapo_loss,
    dr_grpo_loss,
    gmpo_loss,
    grpo_loss,
    gspo_loss,
    reinforce_loss,
    sapo_loss,
)
from grouprl.objectives.value import explained_variance, value_loss

__all__ = [
    "cispo_loss",
    "dapo_loss",
    "dr_grpo_loss",
    "explained_variance",
    "filter_overlong",
    "gmpo_loss",
    "grpo_loss",
    "gspo_loss",
    "kl_penalty",
    "loss_denominator",
    "policy_loss",
    "reinforce_loss",
    "sapo_loss",
    "soft_overlong_penalty",
    "summarise",
    "value_loss",
]
