"""The local engine: each prompt runs once for its group, and all completions decode together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import numpy as np
import torch
from torch import Tensor

from grouprl.policy.model import EncodedPrompt, Policy
from grouprl.rollout.cache import make_cache, only_attention
from grouprl.rollout.plain import RepeatedPrompts
from grouprl.rollout.sampling import Sampling, draw, prompt_keys, uniforms
from grouprl.rollout.shared import SharedPrompts
from grouprl.types import Completion, FinishReason, Group

COMPACT_BELOW = 0.75
"""Finished rows are dropped once fewer than this share of the batch is still going: each drop copies the cache."""

PACK_FROM = 64
"""Most new tokens from which the sampler packs the weights: before that the copy is hardly worth its memory."""


def generate(
    policy: Policy,
    prompts: Sequence[EncodedPrompt],
    *,
    group_size: int,
    sampling: Sampling,
    seed: int,
    stream: str,
    earlier: Sequence[EncodedPrompt] = (),
    batch_tokens: int = 16_384,
    progress: Callable[[int, int], None] | None = None,
) -> list[Group]:
    """Sample a group of completions for each prompt.

    Log-probs are those of softmax(logits / T) over the full vocabulary. A completion's randomness
    depends on (seed, stream, prompt id, sample index) alone; and where a prompt comes again in a stream, on how
    often it came before.

    Args:
        policy: The model.
        prompts: Encoded, and known to fit the context (`Policy.encode_prompts` checks).
        group_size: G, completions for each prompt.
        sampling: Temperature, top-p, top-k, token limit, stop strings.
        seed: The run's seed.
        stream: What these completions are for, such as "train/12".
        earlier: Prompts that were sampled for in this stream before, where it is drawn in several calls: groups are
            numbered on from them, and one of them that comes again gets other random numbers. The completions
            are those of one call with all of them.
        batch_tokens: Bound on the cache of one decode batch, in tokens. Whole groups go together; a group
            larger than this goes alone.
        progress: Called with (completions finished, completions in all), after each token of a batch.

    Returns:
        Groups in the order of `prompts`. Empty for no prompts.
    """
    keys = prompt_keys([p.prompt.prompt_id for p in (*earlier, *prompts)])[len(earlier) :]

    groups: dict[int, Group] = {}
    finished, total = 0, len(prompts) * group_size
    with torch.inference_mode(), _packed(policy, total, sampling.max_new_tokens):
        for batch in _batches(policy, prompts, group_size, sampling.max_new_tokens, batch_tokens):
            draws = np.stack(
                [
                    uniforms(
                        seed=seed, stream=stream, key=keys[i], sample_index=j, count=sampling.max_new_tokens
                    )
                    for i in batch
                    for j in range(group_size)
                ]
            )
            tokens, logprobs, reasons, texts = _Decoder(
                policy, [prompts[i].token_ids for i in batch], group_size, sampling, draws
            ).run(None if progress is None else partial(_report, progress, finished, total))
            for k, i in enumerate(batch):
                rows = range(k * group_size, (k + 1) * group_size)
                completions = tuple(
                    Completion(
                        token_ids=tuple(tokens[r]),
                        logprobs=tuple(logprobs[r]),
                        loss_mask=(True,) * len(tokens[r]),
                        text=texts[r],
                        finish_reason=reasons[r],
                    )
                    for r in rows
                )
                groups[i] = Group(
                    f"{stream}/{len(earlier) + i}",
                    prompts[i].prompt,
                    prompts[i].text,
                    prompts[i].token_ids,
                    completions,
                )
            finished += len(batch) * group_size
            if progress is not None:
                progress(finished, total)
    return [groups[i] for i in range(len(prompts))]


def _report(progress: Callable[[int, int], None], before: int, total: int, ended: int) -> None:
    """With what ended in this batch so far."""
    progress(before + ended, total)


def _packed(policy: Policy, completions: int, max_new_tokens: int) -> AbstractContextManager[None]:
    """Packed weights, where enough tokens follow to make up for the packing."""
    if not completions or max_new_tokens < PACK_FROM:
        return nullcontext()
    return policy.packed(min(completions, 64))


def _batches(
    policy: Policy, prompts: Sequence[EncodedPrompt], group_size: int, max_new_tokens: int, batch_tokens: int
) -> Iterator[list[int]]:
    """Prompts of like length together; of equal length where a layer would see the padding."""
    equal_only = not only_attention(make_cache(policy.config, room=0))
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i].token_ids))
    batch: list[int] = []
    for i in order:
        length = len(prompts[i].token_ids)
        tokens = (len(batch) + 1) * group_size * (length + max_new_tokens)
        uneven = equal_only and batch and len(prompts[batch[0]].token_ids) != length
        if batch and (tokens > batch_tokens or uneven):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


class _Decoder:
    """One batch of groups, decoded to the end."""

    def __init__(
        self,
        policy: Policy,
        prompts: Sequence[tuple[int, ...]],
        group_size: int,
        sampling: Sampling,
        draws: np.ndarray,
    ) -> None:
        self.policy, self.sampling = policy, sampling
        longest = max(map(len, prompts)) + sampling.max_new_tokens
        state = SharedPrompts if policy.can_share(longest) else RepeatedPrompts
        self.state = state(policy, prompts, group_size, sampling.max_new_tokens)
        self.uniform = torch.from_numpy(draws).to(policy.device)
        rows, limit = draws.shape
        self.tokens = torch.zeros(rows, limit, dtype=torch.long, device=policy.device)
        self.logprobs = torch.zeros(rows, limit, device=policy.device)
        self.length = torch.full((rows,), limit, device=policy.device)
        self.stopped = torch.zeros(rows, dtype=torch.bool, device=policy.device)
        self.stop_ids = torch.tensor(policy.stop_ids, dtype=torch.long, device=policy.device)
        # A token holds at least one byte of text, so no stop string reaches further back than this.
        self.stop_reach = max((len(s.encode()) for s in sampling.stop), default=0) + 4

    def run(
        self, progress: Callable[[int], None] | None = None
    ) -> tuple[list[list[int]], list[list[float]], list[FinishReason], list[str]]:
        """Tokens, log-probs, reasons to end and texts; `progress` is told after each token how many have ended."""
        hidden = self.state.start()
        active = torch.arange(len(self.tokens), device=self.policy.device)
        limit = self.sampling.max_new_tokens
        for t in range(limit):
            token, logprob = draw(self.policy.logits(hidden), self.uniform[active, t], self.sampling)
            self.tokens[active, t] = token
            self.logprobs[active, t] = logprob
            going = self._going(active, t)
            left = int(going.sum())
            if progress is not None:
                progress(len(self.tokens) - left)
            if left == 0 or t + 1 == limit:
                break
            if self.state.can_drop and left < COMPACT_BELOW * len(active):
                kept = going.nonzero()[:, 0]
                self.state.keep(kept)
                active, token = active[kept], token[kept]
            hidden = self.state.next(token)
        return self._collect()

    def _going(self, rows: Tensor, t: int) -> Tensor:
        """Note which rows the token at `t` ends, and say which are still going. Ended rows may stay in the batch
        for a while; what they draw then lies beyond their length."""
        ended = torch.isin(self.tokens[rows, t], self.stop_ids)
        if self.sampling.stop:
            tails = self.tokens[rows, max(0, t + 1 - self.stop_reach) : t + 1].tolist()
            texts = self.policy.tokenizer.batch_decode(tails, skip_special_tokens=True)
            found = [stop_at(text, self.sampling.stop) is not None for text in texts]
            ended |= torch.tensor(found, dtype=torch.bool, device=ended.device)
        before = self.stopped[rows]
        self.length[rows] = torch.where(ended & ~before, t + 1, self.length[rows])
        self.stopped[rows] = before | ended
        return ~self.stopped[rows]

    def _collect(self) -> tuple[list[list[int]], list[list[float]], list[FinishReason], list[str]]:
        lengths = self.length.tolist()
        tokens = [row[:n] for row, n in zip(self.tokens.tolist(), lengths)]
        logprobs = [row[:n] for row, n in zip(self.logprobs.tolist(), lengths)]
        reasons: list[FinishReason] = ["stop" if s else "length" for s in self.stopped.tolist()]
        texts = self.policy.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        for r, text in enumerate(texts):
            cut = stop_at(text, self.sampling.stop)
            if cut is not None:
                texts[r] = text[:cut]
        return tokens, logprobs, reasons, texts


def stop_at(text: str, stop: Sequence[str]) -> int | None:
    """Where the first stop string begins, or None."""
    found = [at for s in stop if (at := text.find(s)) >= 0]
    return min(found, default=None)
