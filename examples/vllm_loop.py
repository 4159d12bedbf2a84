"""GRPO with vLLM: the engine samples, PyTorch trains, and the engine takes over the weights after each step.

    python examples/vllm_loop.py --model Qwen/Qwen3-0.6B [--steps 20]         on one GPU

Engine and trainer share the process; weights go through vLLM's weight-transfer API, to the back end of grouprl. vLLM's
log-probs are not quite the trainer's (other kernels); the loss weighs each token by how far they are apart.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from plain_loop import logprobs_of, right, sums
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

import grouprl
from grouprl.objectives import dapo_loss, loss_denominator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()

    parts = load(given.model, gpu_memory_utilization=0.3, max_model_len=1024)
    train(*parts, sums(parts[1]), steps=given.steps)


def load(name: str, *, dtype: torch.dtype = torch.bfloat16, **options: Any) -> tuple[Any, Any, Any]:
    """The model that is trained, its tokenizer, and the engine that samples, with vLLM's own options."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # weights are handed over within the process
    from vllm import LLM

    model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    modes = {"logprobs_mode": "processed_logprobs", "weight_transfer_config": {"backend": "grouprl"}}
    engine = LLM(name, dtype=dtype, seed=0, **modes, **options)  # processed: at the temperature
    engine.init_weight_transfer_engine({"init_info": {}})
    return model, AutoTokenizer.from_pretrained(name), engine


def train(
    model: Any,
    tokenizer: Any,
    engine: Any,
    data: Sequence[tuple[str, str]],
    *,
    steps: int,
    prompts_per_step: int = 16,
    group_size: int = 8,
    max_new_tokens: int = 256,
    lr: float = 1e-6,
    micro_batch: int = 8,
    reward: Callable[[str, str], float] = right,
) -> list[float]:
    """Train on (prompt, answer) pairs; the mean reward of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    history = []
    for step in range(steps):
        batch = [data[(step * prompts_per_step + i) % len(data)] for i in range(prompts_per_step)]
        answers = [answer for _, answer in batch for _ in range(group_size)]
        prompts = [tokenizer.encode(prompt, add_special_tokens=False) for prompt, _ in batch]
        rows = sample(engine, prompts, group_size, max_new_tokens, step)

        texts = tokenizer.batch_decode([tokens for _, tokens, _ in rows], skip_special_tokens=True)
        rewards = torch.tensor([reward(text, answer) for text, answer in zip(texts, answers, strict=True)])
        rewards = rewards.view(-1, group_size)
        advantages = grouprl.grpo_group_advantages(rewards).flatten().to(model.device)
        keep = grouprl.sampling.informative(rewards).keep.flatten().nonzero().flatten().tolist()

        width = max(len(tokens) for _, tokens, _ in rows)
        everything = torch.tensor([[i < len(tokens) for i in range(width)] for _, tokens, _ in rows])
        denominator = loss_denominator(everything, "token_mean")
        optimizer.zero_grad()
        for start in range(0, len(keep), micro_batch):
            part = keep[start : start + micro_batch]
            ids, attention, mask, sampled = (x.to(model.device) for x in padded([rows[i] for i in part]))
            loss, _ = dapo_loss(
                logprobs_of(model, ids, attention, mask.shape[1]),
                None,
                advantages[part],
                mask,
                denominator=denominator,
                sampler_logprobs=sampled,
            )
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        hand_over(model, engine)
        history.append(rewards.mean().item())
        print(f"step {step + 1:>3}  reward {history[-1]:.3f}  completions trained {len(keep)}", flush=True)
    return history


Row = tuple[list[int], list[int], list[float]]
"""Prompt tokens, sampled tokens, and the engine's log-prob of each sampled token."""


def sample(
    engine: Any, prompts: list[list[int]], group_size: int, max_new_tokens: int, seed: int
) -> list[Row]:
    """The completions of a group one after the other."""
    from vllm import SamplingParams

    params = SamplingParams(n=group_size, temperature=1.0, max_tokens=max_new_tokens, logprobs=0, seed=seed)
    asked = engine.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    return [
        (
            list(one.prompt_token_ids),
            list(out.token_ids),
            [at[token].logprob for token, at in zip(out.token_ids, out.logprobs, strict=True)],
        )
        for one in asked
        for out in one.outputs
    ]


def padded(rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens and attention (B, P + T), prompts padded on the left; trained tokens and their log-probs (B, T)."""
    before, after = max(len(p) for p, _, _ in rows), max(len(c) for _, c, _ in rows)
    ids = torch.tensor([[0] * (before - len(p)) + p + c + [0] * (after - len(c)) for p, c, _ in rows])
    place = torch.arange(before + after)
    starts = torch.tensor([before - len(p) for p, _, _ in rows]).unsqueeze(1)
    ends = torch.tensor([before + len(c) for _, c, _ in rows]).unsqueeze(1)
    attention = (place >= starts) & (place < ends)
    logprobs = torch.tensor([list(q) + [0.0] * (after - len(q)) for _, _, q in rows])
    return ids, attention, attention[:, before:], logprobs


def hand_over(model: Any, engine: Any) -> None:
    """Give the engine the trainer's weights, and forget what it cached under the old ones."""
    engine.start_weight_update()
    engine.update_weights(
        {"update_info": {"weights": [(n, p.detach()) for n, p in model.named_parameters()]}}
    )
    engine.finish_weight_update()
    engine.reset_prefix_cache()


if __name__ == "__main__":
    main()
