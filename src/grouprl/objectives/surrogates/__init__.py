"""Surrogates: what one token adds to the loss. One function each, looked up by name in `SURROGATES`.

interface.py     Tokens in, SurrogateTerms out; what options may be
per_token.py     ppo_clip, cispo, sapo, reinforce
per_sequence.py  gspo, gspo_token, gmpo
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from grouprl.objectives.surrogates.interface import Option, Surrogate, SurrogateTerms, Tokens, choose_options
from grouprl.objectives.surrogates.per_sequence import gmpo, gspo, gspo_token
from grouprl.objectives.surrogates.per_token import cispo, ppo_clip, reinforce, sapo

_GSPO = {"clip_low": Option(3e-4, high=1.0), "clip_high": Option(4e-4)}

SURROGATES: Mapping[str, Surrogate] = MappingProxyType(
    {
        "ppo_clip": Surrogate(
            ppo_clip,
            {
                "clip_low": Option(0.2, high=1.0),
                "clip_high": Option(0.2),
                "dual_clip": Option(None, above=1.0),
            },
        ),
        "gspo": Surrogate(gspo, _GSPO, per_sequence=True),
        "gspo_token": Surrogate(gspo_token, _GSPO, per_sequence=True),
        "cispo": Surrogate(
            cispo, {"clip_low": Option(1.0, high=1.0), "clip_high": Option(4.0)}, of_logprobs=True
        ),
        "sapo": Surrogate(
            sapo,
            {
                "tau_positive": Option(1.0, above=0.0, finite=True),
                "tau_negative": Option(1.05, above=0.0, finite=True),
            },
        ),
        "gmpo": Surrogate(gmpo, {"clip_low": Option(0.4), "clip_high": Option(0.4)}, per_sequence=True),
        "reinforce": Surrogate(reinforce, {}, of_logprobs=True),
    }
)
"""Name → function, options with their published values."""

__all__ = [
    "SURROGATES",
    "Surrogate",
    "SurrogateTerms",
    "Tokens",
    "choose_options",
    "cispo",
    "gmpo",
    "gspo",
    "gspo_token",
    "ppo_clip",
    "reinforce",
    "sapo",
]
