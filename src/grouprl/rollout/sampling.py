"""From logits to one token a row: temperature, top-k, top-p, and randomness that belongs to the sample."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

BLOCK = 256
"""Tokens of the vocabulary that are summed up together before one of them is looked for."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are drawn.

    Args:
        temperature: T in softmax(logits / T); 0 is greedy.
        top_p: Keep the smallest set of most likely tokens whose probability reaches this; 1 keeps all.
        top_k: Keep this many of the most likely tokens; 0 keeps all.
        max_new_tokens: Most tokens in a completion.
        stop: Strings that end a completion. The text is cut before the first one.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()


def uniforms(
    *, seed: int, stream: str, key: str | tuple[str, int], sample_index: int, count: int
) -> np.ndarray:
    """The uniform numbers that one completion uses, one for each of its tokens.

    They depend on the arguments alone: not on the batch a completion is decoded in, nor on the rank that
    decodes it. A counter-based generator (Philox) is keyed by a hash of them.

    Args:
        seed: The run's seed.
        stream: What the completion is for, such as "train/12" or "evaluation/0".
        key: The prompt's id; with a number where the same prompt is drawn again in one step.
        sample_index: Its place in its group.
        count: How many numbers, in [0, 1).

    >>> a = uniforms(seed=0, stream="train/1", key="p", sample_index=0, count=4)
    >>> b = uniforms(seed=0, stream="train/1", key="p", sample_index=0, count=2)
    >>> bool((a[:2] == b).all())
    True
    """
    digest = hashlib.blake2b(repr((seed, stream, key, sample_index)).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little"))).random(count)


def prompt_keys(prompt_ids: Sequence[str]) -> list[str | tuple[str, int]]:
    """What each group's randomness hangs on: its prompt's id, and its number where one is drawn again in a stream.

    >>> prompt_keys(["a", "b", "a"])
    ['a', 'b', ('a', 1)]
    """
    seen: Counter[str] = Counter()
    keys: list[str | tuple[str, int]] = []
    for name in prompt_ids:
        keys.append((name, seen[name]) if seen[name] else name)
        seen[name] += 1
    return keys


def draw(
    logits: Float[Tensor, "rows vocab"], uniform: Float[Tensor, " rows"], sampling: Sampling
) -> tuple[Int[Tensor, " rows"], Float[Tensor, " rows"]]:
    """Draw one token a row by inverting its cumulative distribution.

    Args:
        logits: Before the temperature.
        uniform: float64 in [0, 1), one a row. Not used when greedy.
        sampling: Temperature, top-k and top-p, applied in this order.

    Returns:
        The tokens, and their log-probs in nats under softmax(logits / T) over the full vocabulary: the
        policy's own, before top-k and top-p. Greedy draws report T = 1.
    """
    logits = logits.float()
    if sampling.temperature == 0:
        tokens = logits.argmax(-1)
        return tokens, logits.gather(-1, tokens[:, None])[:, 0] - logits.logsumexp(-1)
    logits = logits / sampling.temperature if sampling.temperature != 1 else logits
    kept = _keep(logits, sampling)
    tokens, normaliser = _invert(kept, uniform)
    if kept is not logits:
        normaliser = logits.logsumexp(-1)
    return tokens, logits.gather(-1, tokens[:, None])[:, 0] - normaliser


def _keep(logits: Float[Tensor, "rows vocab"], sampling: Sampling) -> Float[Tensor, "rows vocab"]:
    """−inf for the tokens that top-k and top-p rule out; the most likely one always stays."""
    if 0 < sampling.top_k < logits.shape[-1]:
        least = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if sampling.top_p < 1.0:
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        probabilities = ordered.softmax(-1, dtype=torch.float64)
        before = probabilities.cumsum(-1) - probabilities
        ruled_out = (before >= sampling.top_p).scatter(-1, order, before >= sampling.top_p)
        ruled_out.scatter_(-1, order[:, :1], False)
        logits = logits.masked_fill(ruled_out, -torch.inf)
    return logits


def _invert(
    logits: Float[Tensor, "rows vocab"], uniform: Float[Tensor, " rows"]
) -> tuple[Int[Tensor, " rows"], Float[Tensor, " rows"]]:
    """The first token whose cumulative probability exceeds u, and log Σ exp(logits). A token of probability 0 is
    never drawn.

    Searched in two steps, first for the block that holds it and then in the block: the vocabulary is passed over
    twice, in float32, and only sums and one block a row are accumulated, in float64.
    """
    highest = logits.amax(-1, keepdim=True)
    weights = (logits - highest).exp_()
    if rest := -weights.shape[-1] % BLOCK:
        weights = pad(weights, (0, rest))
    blocks = weights.unflatten(-1, (-1, BLOCK))
    until = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    total = until[:, -1:]
    block, before = _find(until, uniform[:, None].clamp(max=1 - 2**-53) * total)
    inside = blocks.gather(1, block[:, :, None].expand(-1, 1, BLOCK))[:, 0].double().cumsum(-1)
    threshold = (uniform[:, None] * total - before).minimum(inside[:, -1:] * (1 - 2**-53))
    place, _ = _find(inside, threshold)
    return (block * BLOCK + place)[:, 0], (total.log().float() + highest)[:, 0]


def _find(
    cumulative: Float[Tensor, "rows n"], threshold: Float[Tensor, "rows 1"]
) -> tuple[Int[Tensor, "rows 1"], Float[Tensor, "rows 1"]]:
    """Where a cumulative sum first exceeds a threshold below its last value, and what it is before that."""
    place = torch.searchsorted(cumulative, threshold, right=True).clamp_(max=cumulative.shape[-1] - 1)
    before = cumulative.gather(-1, (place - 1).clamp(min=0)).masked_fill_(place == 0, 0.0)
    return place, before
