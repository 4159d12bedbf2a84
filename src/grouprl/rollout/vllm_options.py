"""How vLLM is to run, as the words of its command line: `vllm serve` reads them, and so does the engine within."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grouprl.errors import RolloutError
from grouprl.policy import Policy
from grouprl.policy.bundled import BUNDLED, BUNDLED_FOLDER, bundled_model
from grouprl.policy.lora import base_of
from grouprl.rollout.vllm_weights import BACKEND

DEFAULT_ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
"""Of vLLM's processes, where it is not set: no usage reports, and a log that can be read."""

CPU_WORDS = ("--block-size=32", "--no-enable-chunked-prefill")
"""Short blocks of the prefix cache, so that a group shares a prompt of more than 32 tokens; vLLM's are of 128 on a CPU.
And whole prompts: after a piece of one, vLLM 0.32 winds the request's random generator back, which a CPU's cannot do,
and dies."""


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """What an engine of vLLM's is started with.

    Args:
        model: A folder or a hub id, for architecture, tokenizer and the weights before the first hand-over.
        dtype: Of weights and computation: "float32" or "bfloat16".
        logprobs_mode: Which log-probs it gives: see `vllm_requests.logprobs_mode`.
        longest: Tokens of the longest prompt with the longest completion.
        memory: Share of the device's memory that it may take, weights and cache.
        seed: vLLM's own; completions have theirs.
        backend: Of the hand-over of weights.
        cpu: Whether vLLM runs on a CPU, and is given `CPU_WORDS`.
        extra: Further words, which win over these.
    """

    model: str
    dtype: str
    logprobs_mode: str
    longest: int
    memory: float = 0.3
    seed: int = 0
    backend: str = BACKEND
    cpu: bool = False
    extra: tuple[str, ...] = ()

    def words(self) -> list[str]:
        """For vLLM's parser, the model's left out."""
        return [
            f"--dtype={self.dtype}",
            f"--max-model-len={self.longest}",
            f"--gpu-memory-utilization={self.memory:g}",
            f"--seed={self.seed}",
            f"--logprobs-mode={self.logprobs_mode}",
            "--enable-prefix-caching",
            "--generation-config=vllm",
            f"--weight-transfer-config={json.dumps({'backend': self.backend})}",
            *(CPU_WORDS if self.cpu else ()),
            *self.extra,
        ]


def check_started(
    where: str,
    options: VllmOptions,
    *,
    logprobs_mode: object,
    dtype: object,
    backend: object,
    max_model_len: object,
    device: object,
    chunked_prefill: object,
    advice: str,
) -> None:
    """Refuse an engine whose answers would not be what they are taken for.

    Args:
        where: The engine, for the message.
        options: What is wanted.
        logprobs_mode, dtype, backend, max_model_len, device, chunked_prefill: What it has.
        advice: What to do where something differs.

    Raises:
        RolloutError: Something differs.
    """
    expected: list[tuple[str, object, object]] = [
        ("--logprobs-mode", logprobs_mode, options.logprobs_mode),
        ("--dtype", str(dtype).removeprefix("torch."), options.dtype),
        ("--weight-transfer-config backend", backend, options.backend),
    ]
    if str(device) == "cpu":  # see `CPU_WORDS`
        expected.append(("--enable-chunked-prefill on a CPU", chunked_prefill, False))
    for name, found, wanted in expected:
        if found != wanted:
            raise RolloutError(f"{where}: {name} is {found}, expected {wanted}; {advice}")
    if isinstance(max_model_len, int) and max_model_len < options.longest - 1:
        raise RolloutError(
            f"{where}: --max-model-len is {max_model_len}, expected at least {options.longest - 1}; {advice}"
        )


def longest_of(policy: Policy, lengths: Sequence[int], max_new_tokens: int) -> int:
    """Tokens of the longest sequence there may be, with one to spare where the context has it."""
    longest = max(lengths, default=1) + max_new_tokens + 1
    return min(longest, policy.max_context or longest)


def served_model(name: str) -> str:
    """What vLLM loads for a model of grouprl's: a folder or a hub id; of an adapter its base model."""
    base = None if name == BUNDLED else base_of(Path(name))
    if name == BUNDLED or (base is not None and Path(base).name == BUNDLED_FOLDER):
        return str(bundled_model())
    return base or name


def with_defaults(environment: Mapping[str, str], **others: str) -> dict[str, str]:
    """An environment with `DEFAULT_ENVIRONMENT`, and others, where it says nothing else."""
    return {**DEFAULT_ENVIRONMENT, **others, **environment}


def without_torchrun(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without what torchrun tells a rank, which vLLM would take for its own place among others."""
    told = re.compile(r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|TORCHELASTIC_.*")
    return {name: value for name, value in environment.items() if not told.fullmatch(name)}
