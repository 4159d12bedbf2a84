"""One step of the quickstart, stage by stage, against the plain way of doing the same work.

    rollout    transformers' own model.generate(num_return_sequences=G), same prompts, temperature and token limit
    training   one padded batch of whole sequences, logits of all positions: the loop that most tutorials write

Both sides in this process, interleaved, on the same completions for training; medians and their range over
`--repeats`. Prints ratios: more than 1 means grouprl is faster.

    python benchmarks/quickstart.py --repeats 5
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from grouprl.policy import Policy, load_policy
from grouprl.rollout import Sampling, generate
from grouprl.tasks import arithmetic
from grouprl.training import Config
from grouprl.training.machine import describe_machine
from grouprl.training.update import make_optimizer, update
from grouprl.types import Group

PROMPTS, G, NEW_TOKENS = 8, 8, 16


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    policy = load_policy()
    print(describe_machine(policy.device), "· SmolLM2-135M, float32")
    encoded = policy.encode_prompts(arithmetic().train[:PROMPTS], max_new_tokens=NEW_TOKENS)
    sampling = Sampling(max_new_tokens=NEW_TOKENS)

    def ours(seed: int) -> list[Group]:
        return generate(policy, encoded, group_size=G, sampling=sampling, seed=seed, stream="benchmark")

    groups = ours(0)
    compare(
        f"rollout, {PROMPTS} prompts × {G}, tokens/s",
        lambda k: sum(len(c.token_ids) for g in ours(k) for c in g.completions),
        lambda k: hugging_face_generate(policy, encoded, k),
        repeats,
    )

    config = Config()
    optimizer = make_optimizer(policy, config.optimizer)
    advantages = torch.tensor(
        [1.0, -1.0] * (PROMPTS * G // 2)
    )  # no completion without signal: all are trained
    tokens = sum(len(c.token_ids) for g in groups for c in g.completions)

    def grouprl_update(_: int) -> int:
        update(policy, optimizer, groups, advantages, [True] * len(advantages), config)
        return tokens

    def plain(_: int) -> int:
        plain_update(policy, optimizer, groups, advantages)
        return tokens

    compare("training, all 64 completions, completion tokens/s", grouprl_update, plain, repeats)


def compare(name: str, ours: Callable[[int], int], peer: Callable[[int], int], repeats: int) -> None:
    """Rates of both, interleaved, after one run each to warm up."""
    ours(0), peer(0)
    rates: dict[str, list[float]] = {"ours": [], "peer": []}
    for k in range(repeats):
        for who, work in (("ours", ours), ("peer", peer)):
            start = time.perf_counter()
            done = work(k + 1)
            rates[who].append(done / (time.perf_counter() - start))
    medians = {who: statistics.median(values) for who, values in rates.items()}
    spread = {who: f"{min(values):.0f}–{max(values):.0f}" for who, values in rates.items()}
    ratio = medians["ours"] / medians["peer"]
    print(
        f"{name}: {medians['ours']:.0f} ({spread['ours']}) against {medians['peer']:.0f} ({spread['peer']}): "
        f"{ratio:.2f}x"
    )


def hugging_face_generate(policy: Policy, encoded: list, seed: int) -> int:  # type: ignore[type-arg]
    torch.manual_seed(seed)
    width = max(len(e.token_ids) for e in encoded)
    ids = torch.full((len(encoded), width), policy.pad_id)
    mask = torch.zeros_like(ids)
    for row, e in enumerate(encoded):
        ids[row, width - len(e.token_ids) :] = torch.tensor(e.token_ids)
        mask[row, width - len(e.token_ids) :] = 1
    out = policy.model.generate(
        ids,
        attention_mask=mask,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        num_return_sequences=G,
        max_new_tokens=NEW_TOKENS,
    )[:, width:]
    ended = (out == policy.stop_ids[0]).int().cumsum(-1)
    return int((ended - (out == policy.stop_ids[0]).int() == 0).sum())


def plain_update(
    policy: Policy, optimizer: torch.optim.Optimizer, groups: list[Group], advantages: torch.Tensor
) -> None:
    """All sequences padded to one length, eight at a time to bound memory, the whole vocabulary at every position."""
    rows = [(g.prompt_token_ids, c.token_ids) for g in groups for c in g.completions]
    optimizer.zero_grad()
    for start in range(0, len(rows), 8):
        part = rows[start : start + 8]
        width = max(len(p) + len(c) for p, c in part)
        ids = torch.full((len(part), width), policy.pad_id)
        mask, trained = torch.zeros_like(ids), torch.zeros(len(part), width, dtype=torch.bool)
        for r, (p, c) in enumerate(part):
            ids[r, : len(p) + len(c)] = torch.tensor([*p, *c])
            mask[r, : len(p) + len(c)] = 1
            trained[r, len(p) : len(p) + len(c)] = True
        logits = policy.model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
        logprobs = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        means = (logprobs * trained[:, 1:]).sum(-1) / trained.sum(-1)
        (-(advantages[start : start + 8] * means).sum() / len(rows)).backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()


if __name__ == "__main__":
    main()
