"""The stages of a step on one core, for models and batches of different shapes: what the cost model is fitted to.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE taskset -c 0 python benchmarks/scaling_measure.py

Each point is grouprl's own code: `generate` with completions of one length, then `update` with advantages that
alternate, in float32. Four stages: prefill (`generate` of one token), decode (of all tokens, less that), training
(forward and backward of all completions) and optimizer (AdamW's step). Seconds are processor time of one thread, the
least of `--repeats`, so that other work on the machine counts little. Written to docs/measured/scaling.json as they are
measured; points that are there are not measured again (--again measures them). At the end the cost model's rates are
fitted to them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import torch
from cost_model import SMOLLM2, Batch, ModelShape
from scaling_fit import fit
from scaling_points import POINTS, SHAPES
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from grouprl.policy import EncodedPrompt, Policy, load_policy
from grouprl.policy.bundled import bundled_model
from grouprl.records import atomic_write
from grouprl.rollout import Sampling, generate
from grouprl.training import Config
from grouprl.training.machine import describe_machine
from grouprl.training.optimizer import make_optimizer
from grouprl.training.update import update
from grouprl.types import Group, Prompt

MEASURED = Path(__file__).parent.parent / "docs" / "measured" / "scaling.json"


class Endless(Policy):
    """A policy without a stop token: every completion has the same length."""

    stop_ids = ()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=2, help="the least of them counts")
    parser.add_argument("--again", action="store_true", help="measure also what has been measured")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = json.loads(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else {"points": []}
    machine = f"{describe_machine(torch.device('cpu'))}; float32, one thread, processor time"
    loaded: tuple[str, Policy] | None = None
    for name, batch, fitted in POINTS:
        known = {(p["model"], tuple(sorted(p["batch"].items()))): p for p in found["points"]}
        key = (name, tuple(sorted(asdict(batch).items())))
        if key in known and not arguments.again:
            continue
        if loaded is None or loaded[0] != name:
            loaded = name, policy_of(SHAPES[name])
        seconds = measure(loaded[1], batch, arguments.repeats)
        point = {
            "model": name,
            "batch": asdict(batch),
            "fitted": fitted,
            "seconds": seconds,
            "machine": machine,
        }
        found["points"] = [p for p in found["points"] if p is not known.get(key)] + [point]
        write(found)
        print(name, asdict(batch), {stage: round(s, 4) for stage, s in seconds.items()}, flush=True)
    write({"rates": fit(found["points"], SHAPES), "points": found["points"]})


def write(found: dict[str, object]) -> None:
    MEASURED.parent.mkdir(exist_ok=True)
    atomic_write(MEASURED, (json.dumps(found, indent=1) + "\n").encode())


def policy_of(shape: ModelShape) -> Policy:
    """The bundled model, or one of random weights of that shape, as `load_policy` makes it; without a stop token."""
    if shape is SMOLLM2:
        policy = load_policy(device="cpu")
    else:
        with tempfile.TemporaryDirectory() as folder:
            random_model(shape).save_pretrained(folder)
            AutoTokenizer.from_pretrained(bundled_model()).save_pretrained(folder)
            policy = load_policy(folder, device="cpu")
    policy.__class__ = Endless
    return policy


def random_model(shape: ModelShape) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=shape.vocabulary,
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            tie_word_embeddings=shape.tied,
            max_position_embeddings=4096,
            bos_token_id=1,
            eos_token_id=2,
        )
    )


def measure(policy: Policy, batch: Batch, repeats: int) -> dict[str, float]:
    """Seconds of each stage: of each the least of `repeats`."""
    optimizer = make_optimizer(policy, Config().optimizer)
    advantages = torch.tensor([1.0, -1.0] * (int(batch.completions) // 2))
    runs = []
    for seed in range(repeats):
        groups, seconds = sampling_stages(policy, batch, seed)
        start = time.process_time()
        marks: list[float] = []
        update(
            policy,
            optimizer,
            groups,
            advantages,
            [True] * int(batch.completions),
            Config(),
            before_step=lambda: marks.append(time.process_time()),  # noqa: B023  (called within the loop)
        )
        runs.append({**seconds, "training": marks[0] - start, "optimizer": time.process_time() - marks[0]})
    return {stage: round(min(run[stage] for run in runs), 5) for stage in runs[0]}


def sampling_stages(policy: Policy, batch: Batch, seed: int) -> tuple[list[Group], dict[str, float]]:
    """A batch of groups, and the seconds of prefill and decode."""
    prompts = random_prompts(policy, batch, seed)

    def sample(tokens: int) -> tuple[list[Group], float]:
        start = time.process_time()
        groups = generate(
            policy,
            prompts,
            group_size=batch.G,
            sampling=Sampling(max_new_tokens=tokens),
            seed=seed,
            stream="measure",
        )
        return groups, time.process_time() - start

    _, first = sample(1)
    groups, whole = sample(batch.completion_tokens)
    return groups, {"prefill": first, "decode": whole - first}


def random_prompts(policy: Policy, batch: Batch, seed: int) -> list[EncodedPrompt]:
    draw = torch.Generator().manual_seed(seed)
    return [
        EncodedPrompt(
            Prompt(str(i), "prompt"),
            "prompt",
            tuple(torch.randint(3, policy.vocab_size, (batch.prompt_tokens,), generator=draw).tolist()),
        )
        for i in range(int(batch.prompts))
    ]


if __name__ == "__main__":
    main()
