"""Real trainers of TRL's, and of ours on top of it, on a tiny random model; and the same on several processes.

    results = on_ranks(2, "convention", folder)        results[rank]

As a script this is one rank.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import tiny
import torch
from datasets import Dataset
from trl import GRPOConfig
from trl import GRPOTrainer as Plain

from grouprl.integrations.trl import GRPOTrainer as Ours

TIMEOUT_S = 300
PROMPTS = [f"{i}+{i}=" for i in range(12)]


def thirds(completions, completion_ids, **_):
    """A random model's completions differ in it; one in five is not scored."""
    return [None if sum(ids) % 5 == 0 else float(sum(ids) % 3) for ids in completion_ids]


def spread_where_odd(prompts, completion_ids, **_):
    """Groups of even prompts have no spread."""
    return [
        float(i % 2) if int(prompt.split("+")[0]) % 2 else 0.5
        for i, (prompt, _) in enumerate(zip(prompts, completion_ids, strict=True))
    ]


def constant(completions, **_):
    return [1000.1] * len(completions)


def config(folder: Path, **options: Any) -> GRPOConfig:
    """Two optimizer steps of one generation batch each, in two micro-batches."""
    return GRPOConfig(
        output_dir=str(folder),
        **{
            "max_steps": 2,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "num_generations": 4,
            "max_completion_length": 8,
            "learning_rate": 1e-2,
            "gradient_checkpointing": False,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": [],
            "use_cpu": True,
            "disable_tqdm": True,
            "seed": 3,
            **options,
        },
    )


def trainer(
    cls: type,
    folder: Path,
    *,
    rewards: Any = thirds,
    prompts: Any = PROMPTS,
    ours: Any = None,
    **options: Any,
) -> Any:
    """A trainer on fresh weights that are the same each time, which keeps each generation batch in `.batches`."""

    class Kept(cls):  # type: ignore[misc, valid-type]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            output = super()._generate_and_score_completions(inputs)
            self.batches.append({k: v.clone() for k, v in output.items() if isinstance(v, torch.Tensor)})
            return output

    made = Kept(
        model=tiny.policy(seed=1).model,
        reward_funcs=rewards,
        args=config(folder, **options),
        train_dataset=Dataset.from_dict({"prompt": list(prompts)}),
        processing_class=tiny.tokenizer(),
        **(ours or {}),
    )
    made.batches = []
    return made


def trained(folder: Path, **options: Any) -> list[Any]:
    """TRL's trainer and ours after training, one after the other, so that both find the same random numbers."""
    found = []
    for cls in (Plain, Ours):
        made = trainer(cls, folder / cls.__name__ / cls.__module__, **options)
        made.train()
        found.append(made)
    return found


def weights(made: Any) -> dict[str, torch.Tensor]:
    model = made.accelerator.unwrap_model(made.model)
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def gradients(made: Any, inputs: dict[str, Any]) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss of one micro-batch, and its gradient."""
    made.model.train()
    made.model.zero_grad()
    made.current_gradient_accumulation_steps = made.args.gradient_accumulation_steps  # set by train()
    loss = made.compute_loss(made.model, inputs)
    loss.backward()
    model = made.accelerator.unwrap_model(made.model)
    return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


# ---- on several processes ----


def on_ranks(world: int, case: str, folder: Path) -> list[Any]:
    """What a case gave on each rank."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = os.environ | {
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, case, str(folder)],
            env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        said = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert not any(process.returncode for process in processes), "\n".join(said)
    return [pickle.loads((folder / f"result{rank}").read_bytes()) for rank in range(world)]


def convention(folder: Path) -> dict[str, Any]:
    """TRL and ours from the same seed; each group lies on both ranks."""
    found = {}
    for name, cls in {"plain": Plain, "ours": Ours}.items():
        made = trainer(cls, folder / name, per_device_train_batch_size=2)
        made.train()
        found[name] = {"batches": made.batches, "weights": weights(made), "log": made.state.log_history}
    return found


def refilled(folder: Path) -> dict[str, Any]:
    """Three groups of four on two ranks of six, of which the middle one lies on both."""
    made = trainer(
        Ours,
        folder / "refilled",
        rewards=spread_where_odd,
        per_device_train_batch_size=6,
        gradient_accumulation_steps=1,
        ours={"max_sampling_rounds": 12, "record": True},
    )
    made.train()
    texts = [
        [
            made.processing_class.decode(ids[mask.bool()])
            for ids, mask in zip(b["prompt_ids"], b["prompt_mask"], strict=True)
        ]
        for b in made.batches
    ]
    return {
        "batches": made.batches,
        "prompts": texts,
        "stream": made._stream.state(),
        "log": made.state.log_history,
        "table": list(made._logs["prompt"]),
        "weights": weights(made),
    }


def left_out(folder: Path) -> dict[str, Any]:
    """One rank has two completions with an advantage, the other none."""
    made = trainer(Ours, folder / "left_out")
    made.model.train()
    inputs = made._prepare_inputs([{"prompt": p} for p in PROMPTS[:2] for _ in range(4)])
    inputs["advantages"] = torch.tensor([1.0, 0.0, -2.0, 0.0]) * (made.accelerator.process_index == 0)
    every, some = [], []
    for leaving_out, found in ((False, every), (True, some)):
        made._leaving_out = leaving_out
        made._metrics["train"].clear()
        found += [*gradients(made, inputs), dict(made._metrics["train"])]
    return {"every": every, "some": some}


if __name__ == "__main__":
    case, where = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    result = {"convention": convention, "refilled": refilled, "left_out": left_out}[case](where)
    (where / f"result{os.environ['RANK']}").write_bytes(pickle.dumps(result))
