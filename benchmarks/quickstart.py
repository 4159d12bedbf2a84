"""One step of the quickstart, stage by stage, against the plain way of doing the same work.

    rollout    transformers' own model.generate(num_return_sequences=G), same prompts, temperature and token limit,
               in float32 and with bfloat16 weights
    training   padded batches of whole sequences, logits of all positions: the loop that most tutorials write

Both sides in this process, interleaved, on the same completions for training; medians and their range over
`--repeats`. Prints ratios: more than 1 means grouprl is faster. Then the share of the machine: the floating-point
operations that exactness needs (2 a weight and token forward, 4 backward, embeddings not counted, the head on
completion tokens alone) over the time, over the rate of a large matrix product measured in the same run, by the
product that grouprl uses and by torch's own.

    python benchmarks/quickstart.py --repeats 5
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from transformers import AutoModelForCausalLM

from grouprl.policy import Policy, load_policy
from grouprl.policy.bundled import bundled_model
from grouprl.policy.matmul import product
from grouprl.rollout import Sampling, generate
from grouprl.tasks import arithmetic
from grouprl.training import Config
from grouprl.training.machine import describe_machine
from grouprl.training.optimizer import make_optimizer
from grouprl.training.update import update
from grouprl.types import Group

PROMPTS, G, NEW_TOKENS = 8, 8, 16


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    policy = load_policy()
    untouched = plain_policy(policy, torch.float32)
    print(describe_machine(policy.device), "· SmolLM2-135M, float32")
    encoded = policy.encode_prompts(arithmetic().train[:PROMPTS], max_new_tokens=NEW_TOKENS)
    sampling = Sampling(max_new_tokens=NEW_TOKENS)

    def ours(seed: int) -> list[Group]:
        return generate(policy, encoded, group_size=G, sampling=sampling, seed=seed, stream="benchmark")

    def ours_with(sampler: Policy, seed: int) -> int:
        groups = generate(sampler, encoded, group_size=G, sampling=sampling, seed=seed, stream="benchmark")
        return sum(len(c.token_ids) for g in groups for c in g.completions)

    groups = ours(0)
    title = f"rollout, {PROMPTS} prompts × {G}, tokens/s"
    seconds = compare(
        title, lambda k: ours_with(policy, k), lambda k: hugging_face_generate(untouched, encoded, k), repeats
    )
    rounded, untouched_rounded = policy.copy(torch.bfloat16), plain_policy(policy, torch.bfloat16)
    compare(
        f"{title}, bfloat16 weights",
        lambda k: ours_with(rounded, k),
        lambda k: hugging_face_generate(untouched_rounded, encoded, k),
        repeats,
    )
    del rounded, untouched_rounded

    config = Config()
    optimizer = make_optimizer(policy, config.optimizer)
    plain_optimizer = make_optimizer(untouched, config.optimizer)
    advantages = torch.tensor(
        [1.0, -1.0] * (PROMPTS * G // 2)
    )  # no completion without signal: all are trained
    tokens = sum(len(c.token_ids) for g in groups for c in g.completions)

    def grouprl_update(_: int) -> int:
        update(policy, optimizer, groups, advantages, [True] * len(advantages), config)
        return tokens

    def plain(_: int) -> int:
        plain_update(untouched, plain_optimizer, groups, advantages)
        return tokens

    trained = compare("training, all 64 completions, completion tokens/s", grouprl_update, plain, repeats)
    report_shares(policy, groups, tokens / seconds, tokens / trained)


def plain_policy(policy: Policy, dtype: torch.dtype) -> Policy:
    """The same model as transformers loads it, with none of grouprl's layers."""
    model = AutoModelForCausalLM.from_pretrained(bundled_model(), dtype=dtype)
    return Policy(model, policy.tokenizer, dtype=dtype)


def compare(name: str, ours: Callable[[int], int], peer: Callable[[int], int], repeats: int) -> float:
    """Rates of both, interleaved, after one run each to warm up. Returns the median of ours."""
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
        f"{ratio:.2f}x",
        flush=True,
    )
    return medians["ours"]


def report_shares(policy: Policy, groups: list[Group], rollout: float, training: float) -> None:
    """What the needed operations take at the machine's matrix rate, over what they took.

    Args:
        policy: The model.
        groups: What was sampled and trained on.
        rollout: Seconds for sampling as many tokens.
        training: Seconds for one update on them.
    """
    head = policy.head.weight.numel()
    layers = sum(p.numel() for p in policy.model.parameters() if p.ndim == 2) - head
    prompts = sum(len(g.prompt_token_ids) for g in groups)
    lengths = [len(c.token_ids) for g in groups for c in g.completions]
    run = prompts + sum(lengths) - len(lengths)  # the last token of a completion predicts nothing
    needed = {
        "rollout": (2 * (layers * run + head * sum(lengths)), rollout),
        "training": (6 * (layers * run + head * sum(lengths)), training),
    }
    x, weight = torch.randn(1024, 576), torch.randn(1536, 576)
    rates = {"grouprl's product": rate(lambda: product(x, weight)), "torch's": rate(lambda: x @ weight.T)}
    print("matrix rates: " + ", ".join(f"{name} {r / 1e9:.0f} GFLOP/s" for name, r in rates.items()))
    for stage, (operations, seconds) in needed.items():
        shares = ", ".join(f"{operations / seconds / r:.2f} of {name}" for name, r in rates.items())
        print(f"{stage}: {operations / 1e9:.0f} GFLOP in {seconds:.2f} s, {shares}")


def rate(multiply: Callable[[], object]) -> float:
    """Floating-point operations a second of a product of 1024 × 576 by 576 × 1536; the median of nine."""
    multiply()
    rates = []
    for _ in range(9):
        start = time.perf_counter()
        for _ in range(20):
            multiply()
        rates.append(20 * 2 * 1024 * 576 * 1536 / (time.perf_counter() - start))
    return statistics.median(rates)


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
