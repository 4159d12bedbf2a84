"""GRPO in the calls of the Tinker API: sample, forward_backward with advantages, optim_step.

    python examples/tinker_loop.py                          on tinker_stand_in.py, a small local stand-in
    TINKER_API_KEY=… python examples/tinker_loop.py --model Qwen/Qwen3-8B       on the service

The service computes the loss from per-token advantages that the client sends. So all of grouprl that is needed is one
call, `group_advantages`, and the groups that it leaves without signal are not sent.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

import grouprl

Reward = Callable[[str, str], float]


def train(
    api: Any,
    service: Any,
    model: str,
    data: Sequence[tuple[str, str]],
    reward: Reward,
    *,
    steps: int = 10,
    prompts_per_step: int = 8,
    group_size: int = 8,
    max_tokens: int = 16,
    lr: float = 4e-5,
) -> list[float]:
    """Train through `service` on (prompt, answer) pairs; the mean reward of each step.

    Args:
        api: The module `tinker`, or the stand-in: what has `types`.
        service: Its ServiceClient.
    """
    types = api.types
    trainer = service.create_lora_training_client(base_model=model, rank=32)
    tokenizer = trainer.get_tokenizer()
    params = types.SamplingParams(max_tokens=max_tokens, temperature=1.0)
    history = []
    for step in range(steps):
        start = step * prompts_per_step
        batch = [data[i % len(data)] for i in range(start, start + prompts_per_step)]
        prompts = [tokenizer.encode(prompt, add_special_tokens=False) for prompt, _ in batch]

        sampler = trainer.save_weights_and_get_sampling_client(name=f"step{step}")
        asked = [
            sampler.sample(
                prompt=types.ModelInput.from_ints(tokens=prompt),
                num_samples=group_size,
                sampling_params=params,
            )
            for prompt in prompts
        ]
        groups = [future.result().sequences for future in asked]

        rewards = torch.tensor(
            [
                [reward(tokenizer.decode(one.tokens, skip_special_tokens=True), answer) for one in group]
                for group, (_, answer) in zip(groups, batch, strict=True)
            ]
        )
        advantages = grouprl.group_advantages(rewards)
        keep = grouprl.sampling.informative(rewards).keep

        datums = [
            datum_of(types, prompt, one, float(advantages[i, j]))
            for i, (prompt, group) in enumerate(zip(prompts, groups, strict=True))
            for j, one in enumerate(group)
            if keep[i, j]
        ]
        if datums:
            update = trainer.forward_backward(datums, loss_fn="importance_sampling")
            moved = trainer.optim_step(types.AdamParams(learning_rate=lr, beta1=0.9, beta2=0.95, eps=1e-8))
            update.result(), moved.result()
        history.append(rewards.mean().item())
        print(f"step {step + 1:>3}  reward {history[-1]:.3f}  completions sent {len(datums)}", flush=True)
    return history


def datum_of(types: Any, prompt: list[int], sampled: Any, advantage: float) -> Any:
    """One completion with its advantage on each of its own tokens, and 0 on the prompt's."""
    tokens = [*prompt, *sampled.tokens]
    before = len(prompt) - 1
    inputs = {
        "target_tokens": torch.tensor(tokens[1:]),
        "logprobs": torch.tensor([0.0] * before + list(sampled.logprobs)),
        "advantages": torch.tensor([0.0] * before + [advantage] * len(sampled.tokens)),
    }
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens=tokens[:-1]),
        loss_fn_inputs={name: types.TensorData.from_torch(x) for name, x in inputs.items()},
    )


def main() -> None:
    import plain_loop

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a model of the service, or for the stand-in a folder")
    parser.add_argument("--steps", type=int, default=10)
    given = parser.parse_args()
    if os.environ.get("TINKER_API_KEY"):
        import tinker as api
    else:
        import tinker_stand_in as api
    if given.model is None:
        from grouprl.policy.bundled import bundled_model

        given.model = str(bundled_model())
    torch.manual_seed(0)
    service = api.ServiceClient()
    tokenizer = service.create_lora_training_client(base_model=given.model, rank=32).get_tokenizer()
    train(api, service, given.model, plain_loop.sums(tokenizer), plain_loop.right, steps=given.steps)


if __name__ == "__main__":
    main()
