"""Which groups carry signal, which completions to train on, and what share of groups to expect without signal."""

from grouprl.sampling.dead_share import expected_dead_share
from grouprl.sampling.informative import Informative, informative
from grouprl.sampling.max_variance import max_variance

__all__ = ["Informative", "expected_dead_share", "informative", "max_variance"]
