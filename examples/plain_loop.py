"""GRPO in plain PyTorch: prompts, sampling, rewards, advantages, loss, optimizer. Read it from top to bottom.

    python examples/plain_loop.py [--model FOLDER] [--steps 20]

What differs from most such loops: groups in which every reward is the same are never run through the model again,
their advantages are exactly 0 whatever the reward is, and a reward that could not be computed (None) takes no part.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

import grouprl
from grouprl.objectives import grpo_loss

Reward = Callable[[str, str], float | None]
"""(completion, answer) → a number, or None where there is none."""


def train(
    model,
    tokenizer,
    data: Sequence[tuple[str, str]],
    reward: Reward,
    *,
    steps: int = 20,
    prompts_per_step: int = 8,
    group_size: int = 8,
    max_new_tokens: int = 16,
    lr: float = 2e-6,
    micro_batch: int = 16,
) -> list[float]:
    """Train `model` in place on (prompt, answer) pairs; the mean reward of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    history = []
    for step in range(steps):
        start = step * prompts_per_step
        batch = [data[i % len(data)] for i in range(start, start + prompts_per_step)]
        repeated = [pair for pair in batch for _ in range(group_size)]

        ids, attention, mask = sample(model, tokenizer, [prompt for prompt, _ in repeated], max_new_tokens)
        texts = tokenizer.batch_decode(ids[:, -mask.shape[1] :], skip_special_tokens=True)
        scores = [reward(text, answer) for text, (_, answer) in zip(texts, repeated, strict=True)]
        rewards = torch.tensor([math.nan if s is None else s for s in scores]).view(-1, group_size)

        advantages = grouprl.grpo_group_advantages(rewards).flatten().to(ids.device)
        groups = grouprl.sampling.informative(rewards)
        rows = groups.keep.flatten().nonzero().flatten().to(ids.device)

        optimizer.zero_grad()
        for part in rows.split(micro_batch) if len(rows) else ():  # the rest has no gradient: it is not run
            loss, _ = grpo_loss(
                logprobs_of(model, ids[part], attention[part], mask.shape[1]),
                None,  # one update on fresh samples: every ratio is 1
                advantages[part],
                mask[part],
                denominator=len(repeated),  # of the whole batch, whatever was left out
            )
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

        history.append(rewards.nanmean().item())
        print(
            f"step {step + 1:>3}  reward {history[-1]:.3f}  groups that teach {int(groups.informative)}/{len(batch)}",
            flush=True,
        )
    return history


@torch.no_grad()
def sample(model, tokenizer, prompts: Sequence[str], max_new_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (B, P + T), which of them are there (B, P + T), and which of the last T are trained (B, T)."""
    encoded = tokenizer(
        list(prompts), return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False
    ).to(model.device)
    model.eval()
    ids = model.generate(
        **encoded,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,  # the log-probs below are those of the whole softmax
        max_new_tokens=max_new_tokens,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.train()
    completion = ids[:, encoded["input_ids"].shape[1] :]
    ends = (completion == tokenizer.eos_token_id).long()
    mask = ends.cumsum(dim=1) - ends == 0  # up to the first end token, which is trained too
    return ids, torch.cat([encoded["attention_mask"].bool(), mask], dim=1), mask


def logprobs_of(model, ids: Tensor, attention: Tensor, tokens: int) -> Tensor:
    """log π of each row's last `tokens` tokens, (B, T), with gradient."""
    positions = (attention.long().cumsum(dim=1) - 1).clamp_min(0)
    logits = model(
        ids, attention_mask=attention, position_ids=positions, logits_to_keep=tokens + 1, use_cache=False
    ).logits[:, -tokens - 1 : -1]
    chosen = ids[:, -tokens:].unsqueeze(-1)
    return logits.float().log_softmax(dim=-1).gather(-1, chosen).squeeze(-1)


def sums(tokenizer, count: int = 512, seed: int = 0) -> list[tuple[str, str]]:
    """Sums of two numbers below 20 as chat prompts, with their answers."""
    numbers = torch.randint(2, 20, (count, 2), generator=torch.Generator().manual_seed(seed)).tolist()
    asked = [[{"role": "user", "content": f"Compute {a} + {b}. Give only the number."}] for a, b in numbers]
    prompts = [tokenizer.apply_chat_template(m, tokenize=False, add_generation_prompt=True) for m in asked]
    return list(zip(prompts, [str(a + b) for a, b in numbers], strict=True))


def right(completion: str, answer: str) -> float:
    """1 where the completion's last number is the answer."""
    found = re.findall(r"-?\d+", completion)
    return float(bool(found) and found[-1] == answer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a folder or hub id; the bundled model if not given")
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    if given.model is None:
        from grouprl.policy.bundled import bundled_model

        given.model = bundled_model()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32).to(device)
    train(model, tokenizer, sums(tokenizer), right, steps=given.steps)


if __name__ == "__main__":
    main()
