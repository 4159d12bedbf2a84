"""Prompts to groups of completions."""

from grouprl.rollout.engine import Draw, Engine, LocalEngine
from grouprl.rollout.local import generate
from grouprl.rollout.sampling import Sampling

__all__ = ["Draw", "Engine", "LocalEngine", "Sampling", "generate"]
