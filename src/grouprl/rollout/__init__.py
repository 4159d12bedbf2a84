"""Prompts to groups of completions."""

from grouprl.rollout.engine import Engine, LocalEngine
from grouprl.rollout.local import generate
from grouprl.rollout.sampling import Sampling

__all__ = ["Engine", "LocalEngine", "Sampling", "generate"]
