"""What vLLM is asked, and what its answers are as groups of completions: shared by the engine in this process and the
one behind a server.

A group is one request with n = G, so that its prompt is computed once (prefix caching) or, where it is shorter than a
block of the cache, decoded beside its siblings.

Randomness. vLLM gives sample i of a request the seed `seed + i`. The request's seed is a hash of (seed, stream, prompt
id), so a completion's random numbers depend on (seed, stream, prompt, sample index) alone. They are not the local
engine's numbers. And with the same numbers the same tokens follow only as far as the logits are the same: vLLM's
kernels round differently in another batch, unless it is told to be batch-invariant.

Log-probs. Wanted are those of softmax(logits / T) over the full vocabulary. vLLM has two kinds: "raw", of
softmax(logits), and "processed", of what is left of softmax(logits / T) after top-k and top-p. The first is right where
T = 1, the second where nothing is cut off; where both differ from what is wanted the configuration is refused. A greedy
draw has the log-probs of T = 1 in either.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from grouprl.errors import ConfigError, RolloutError
from grouprl.policy import EncodedPrompt, Policy
from grouprl.rollout.local import stop_at
from grouprl.rollout.sampling import Sampling, prompt_keys
from grouprl.types import Completion, FinishReason, Group

RAW, PROCESSED = "raw_logprobs", "processed_logprobs"


@dataclass(frozen=True, slots=True)
class Sampled:
    """One completion as vLLM gives it: tokens and their log-probs."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt, and how its completions are drawn.

    Args:
        token_ids: Of the prompt.
        parameters: Those of vLLM's `SamplingParams`, which its server takes under the same names.
    """

    token_ids: tuple[int, ...]
    parameters: dict[str, Any]


def logprobs_mode(sampling: Sampling) -> str:
    """The kind of vLLM's log-probs that are those of softmax(logits / T) over the full vocabulary.

    Raises:
        ConfigError: Neither is.

    >>> logprobs_mode(Sampling(temperature=1.0, top_p=0.9)), logprobs_mode(Sampling(temperature=0.7))
    ('raw_logprobs', 'processed_logprobs')
    """
    if sampling.temperature in (0, 1):
        return RAW
    if sampling.top_p < 1 or sampling.top_k:
        cut = f"top_p = {sampling.top_p:g}" if sampling.top_p < 1 else f"top_k = {sampling.top_k}"
        raise ConfigError(
            f"rollout: temperature = {sampling.temperature:g} with {cut} and engine vllm, expected temperature = 1 or "
            "no top_p and top_k: vLLM's log-probs are of T = 1, or of the tokens that are left, and every ratio would "
            "be wrong; leave one of them out, or take engine = 'local'"
        )
    return PROCESSED


def group_seed(*, seed: int, stream: str, key: str | tuple[str, int]) -> int:
    """The seed of a group's first completion; that of sample i is i more.

    Args:
        seed, stream, key: As for `sampling.uniforms`.

    Returns:
        At least 0 and below 2^62. torch's generator on a CPU uses the lower 32 bits.

    >>> group_seed(seed=0, stream="train/1", key="p") == group_seed(seed=0, stream="train/2", key="p")
    False
    """
    digest = hashlib.blake2b(repr((seed, stream, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2


def sample_groups(
    policy: Policy,
    prompts: Sequence[EncodedPrompt],
    sample: Callable[[Sequence[Request], Callable[[int], None]], list[list[Sampled]]],
    *,
    group_size: int,
    sampling: Sampling,
    seed: int,
    stream: str,
    earlier: Sequence[EncodedPrompt] = (),
    progress: Callable[[int, int], None] | None = None,
) -> list[Group]:
    """A group for each prompt; see `rollout.generate`.

    Args:
        sample: Called with the requests, and with what is to be told how many of them are done; gives what was sampled
            for each, in their order.
        policy, prompts, group_size, sampling, seed, stream, earlier, progress: As for `rollout.generate`.

    Raises:
        RolloutError: See `make_groups`; and what `sample` raises.
    """
    requests = make_requests(
        prompts,
        group_size=group_size,
        sampling=sampling,
        seed=seed,
        stream=stream,
        stop_ids=policy.stop_ids,
        earlier=earlier,
    )

    def report(done: int) -> None:
        if progress is not None:
            progress(done * group_size, len(requests) * group_size)

    return make_groups(
        policy,
        prompts,
        sample(requests, report),
        group_size=group_size,
        sampling=sampling,
        stream=stream,
        first=len(earlier),
    )


def make_requests(
    prompts: Sequence[EncodedPrompt],
    *,
    group_size: int,
    sampling: Sampling,
    seed: int,
    stream: str,
    stop_ids: Sequence[int],
    earlier: Sequence[EncodedPrompt] = (),
) -> list[Request]:
    """One request for each prompt; see `rollout.generate`. Greedy completions are all the same, so one is asked for.

    Every parameter is named: what is left out would be taken from the model's generation config.
    """
    ids = [p.prompt.prompt_id for p in (*earlier, *prompts)]
    keys = prompt_keys(ids)[len(earlier) :]
    greedy = sampling.temperature == 0
    return [
        Request(
            prompt.token_ids,
            {
                "n": 1 if greedy else group_size,
                "seed": group_seed(seed=seed, stream=stream, key=key),
                "temperature": sampling.temperature,
                "top_p": 1.0 if greedy else sampling.top_p,
                "top_k": 0 if greedy else sampling.top_k,
                "min_p": 0.0,
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
                "repetition_penalty": 1.0,
                "max_tokens": sampling.max_new_tokens,
                "stop": list(sampling.stop),
                "stop_token_ids": list(stop_ids),
                "ignore_eos": True,  # what ends a completion is in stop_token_ids, and nothing else is
                "skip_special_tokens": True,  # in the text in which stop strings are looked for
                "logprobs": 0,  # of the sampled token alone
            },
        )
        for prompt, key in zip(prompts, keys)
    ]


def make_groups(
    policy: Policy,
    prompts: Sequence[EncodedPrompt],
    sampled: Sequence[Sequence[Sampled]],
    *,
    group_size: int,
    sampling: Sampling,
    stream: str,
    first: int = 0,
) -> list[Group]:
    """The groups of `prompts`, from what was sampled for each.

    Args:
        policy: Its tokenizer makes the texts; its stop tokens say how a completion ended.
        prompts: What was sampled for.
        sampled: For each prompt, its completions in the order of their sample index; one for all where greedy.
        group_size, sampling, stream: As asked for.
        first: The number of the first group in its stream.

    Raises:
        RolloutError: A completion has no tokens, or a log-prob that is none.
    """
    groups = []
    for number, (prompt, several) in enumerate(zip(prompts, sampled, strict=True), first):
        if sampling.temperature == 0:
            several = list(several) * group_size
        if len(several) != group_size:
            raise RolloutError(
                f"vllm: {len(several)} completions for prompt {prompt.prompt.prompt_id!r}, expected {group_size}; "
                "see whether the server is vLLM, of a version that grouprl knows"
            )
        completions = tuple(_completions(policy, several, sampling, prompt.prompt.prompt_id))
        groups.append(Group(f"{stream}/{number}", prompt.prompt, prompt.text, prompt.token_ids, completions))
    return groups


def _completions(
    policy: Policy, several: Sequence[Sampled], sampling: Sampling, prompt_id: str
) -> Iterable[Completion]:
    texts = policy.tokenizer.batch_decode([list(s.token_ids) for s in several], skip_special_tokens=True)
    for one, text in zip(several, texts):
        if not one.token_ids or not all(map(math.isfinite, one.logprobs)):
            raise RolloutError(
                f"vllm: a completion for prompt {prompt_id!r} has "
                f"{'no tokens' if not one.token_ids else 'log-probs that are not finite'}, expected tokens with a "
                "finite log-prob each; see whether the weights are"
            )
        cut = stop_at(text, sampling.stop)
        ended = cut is not None or one.token_ids[-1] in policy.stop_ids
        reason: FinishReason = "stop" if ended else "length"
        yield Completion(
            token_ids=tuple(one.token_ids),
            logprobs=tuple(one.logprobs),
            loss_mask=(True,) * len(one.token_ids),
            text=text if cut is None else text[:cut],
            finish_reason=reason,
        )
