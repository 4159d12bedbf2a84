"""Which groups carry signal, and which prompts to draw next."""

from grouprl.sampling.informative import Informative, informative

__all__ = ["Informative", "informative"]
