"""Prompts to groups of completions."""

from grouprl.rollout.local import generate
from grouprl.rollout.sampling import Sampling

__all__ = ["Sampling", "generate"]
