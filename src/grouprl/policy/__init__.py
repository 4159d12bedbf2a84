"""A causal language model as grouprl sees it: prompts to tokens, tokens to per-token log-probs."""

from grouprl.policy.loading import load_policy
from grouprl.policy.logprobs import completion_logprobs
from grouprl.policy.model import EncodedPrompt, Policy
from grouprl.policy.reward_model import RewardModel, load_reward_model
from grouprl.policy.rows import Rows, build_rows, plan_micro_batches

__all__ = [
    "EncodedPrompt",
    "Policy",
    "RewardModel",
    "Rows",
    "build_rows",
    "completion_logprobs",
    "load_policy",
    "load_reward_model",
    "plan_micro_batches",
]
