"""Log-probabilities and advantages → a loss, and metrics that add up over micro-batches and ranks.

loss.py          policy_loss: mask, ratio, surrogate, KL, aggregation, metrics
presets.py       policy_loss with the choices of one paper: grpo_loss
surrogates.py    one function a surrogate, by name: ppo_clip
aggregations.py  tokens → one number, by name: sequence_mean, token_mean; loss_denominator
kl.py            one function a KL estimator, by name: k3
correction.py    the weight of a token that another engine sampled: truncated, masked
ratio.py         the clamped log-ratio on which surrogate and KL stand
metrics.py       sums → means: summarise
"""

from grouprl.objectives.aggregations import loss_denominator
from grouprl.objectives.loss import policy_loss
from grouprl.objectives.metrics import summarise
from grouprl.objectives.presets import grpo_loss

__all__ = ["grpo_loss", "loss_denominator", "policy_loss", "summarise"]
