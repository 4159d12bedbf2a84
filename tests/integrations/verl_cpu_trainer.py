"""verl's own RayPPOTrainer on a CPU: its fit, data, loss, FSDP engine and optimizer, on a tiny model and one process.

    python verl_cpu_trainer.py FOLDER '{"ours": ["algorithm.adv_estimator=grouprl_grpo"]}'      → FOLDER/ours/run.pt

Each entry is a run of its own, from the same seed. Two parts are not verl's, as verl's need an accelerator: what
samples (`Sampler`, in place of a vLLM server), and the device (`Cpu`, by verl's own registry of platforms). The worker
is called directly, not through Ray.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
import polars as pl
import tiny
import torch
import verl
from hydra import compose, initialize_config_dir
from transformers import AutoTokenizer
from verl import DataProto
from verl.plugin.platform import PlatformRegistry, set_platform
from verl.plugin.platform.platform_cuda import PlatformCUDA

PROMPTS, GROUP, PROMPT_TOKENS, NEW_TOKENS = 2, 4, 64, 6


class Processor(SimpleNamespace):
    """torch.cpu, with nothing to say of its memory."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(torch.cpu, name, lambda *_, **__: 0)


@PlatformRegistry.register(platform="cpu")
class Cpu(PlatformCUDA):
    """A platform of verl's without an accelerator."""

    device_name, vendor_name = "cpu", "none"
    device_module = Processor(
        is_available=lambda: True, mem_get_info=lambda *_: (0, 0), get_device_name=lambda *_: "CPU"
    )

    def current_device(self) -> Any:
        return torch.device("cpu")

    def set_device(self, device_index: int) -> None:
        """There is one."""

    def communication_backend_name(self) -> str:
        return "gloo"


set_platform(Cpu())

from verl.trainer.ppo import ray_trainer  # noqa: E402
from verl.trainer.ppo.utils import Role  # noqa: E402
from verl.workers.engine import EngineRegistry  # noqa: E402
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead  # noqa: E402
from verl.workers.engine_workers import ActorRolloutRefWorker  # noqa: E402

compute_advantage = ray_trainer.compute_advantage
EngineRegistry.register(model_type="language_model", backend=["fsdp2"], device="cpu")(FSDPEngineWithLMHead)


class Sampler:
    """What verl's AgentLoopManager does with vLLM: prompts in, completions with their rewards out.

    The policy is the model that the worker trains, so that there are no weights to send. A completion's reward is the
    share of even tokens in it, and 0.5 for each completion of every other prompt: a group without spread.
    """

    def __init__(self, worker: ActorRolloutRefWorker, tokenizer: Any) -> None:
        self.worker, self.tokenizer = worker, tokenizer

    @torch.no_grad()
    def generate_sequences(self, prompts: DataProto) -> DataProto:
        texts = [
            self.tokenizer.apply_chat_template(list(p), tokenize=False, add_generation_prompt=True)
            for p in prompts.non_tensor_batch["raw_prompt"]
        ]
        self.tokenizer.padding_side = "left"
        given = self.tokenizer(texts, return_tensors="pt", padding="max_length", max_length=PROMPT_TOKENS)
        ids, mask = given["input_ids"], given["attention_mask"]
        model = self.worker.actor.engine.module
        for _ in range(NEW_TOKENS):
            logits = (
                model(input_ids=ids, attention_mask=mask, position_ids=positions(mask)).logits[:, -1].float()
            )
            ids = torch.cat([ids, torch.multinomial(logits.softmax(-1), 1)], 1)
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
        responses = ids[:, PROMPT_TOKENS:]
        rewards = (responses % 2 == 0).float().mean(1)
        odd = np.array([extra["index"] % 2 for extra in prompts.non_tensor_batch["extra_info"]])
        rewards[torch.from_numpy(odd == 1)] = 0.5
        scores = torch.zeros(responses.shape)
        scores[:, -1] = rewards
        return DataProto.from_dict(
            tensors={
                "prompts": ids[:, :PROMPT_TOKENS],
                "responses": responses,
                "response_mask": torch.ones_like(responses),
                "input_ids": ids,
                "attention_mask": mask,
                "position_ids": positions(mask),
                "rm_scores": scores,
            },
            non_tensors={"multi_modal_inputs": np.array([{} for _ in texts], dtype=object)},
            meta_info={"timing": {}, "reward_extra_keys": []},
        )


def positions(mask: torch.Tensor) -> torch.Tensor:
    return (mask.cumsum(1) - 1).clamp(min=0)


class SameWeights:
    """In place of verl's CheckpointEngineManager: the sampler reads the weights that are trained."""

    def update_weights(self, *_: Any, **__: Any) -> None: ...

    def sleep_replicas(self) -> None: ...


class Trainer(ray_trainer.RayPPOTrainer):
    """verl's, with its worker in this process."""

    def init_workers(self) -> None:
        self.actor_rollout_wg = ActorRolloutRefWorker(self.config.actor_rollout_ref, role="actor")
        self.actor_rollout_wg.init_model()
        self.async_rollout_manager = Sampler(self.actor_rollout_wg, self.tokenizer)
        self.checkpoint_manager = SameWeights()


def configuration(folder: Path, *overrides: str) -> Any:
    """verl's own, with what a tiny model on a CPU needs."""
    rows = [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": f"{i}+{i}="}],
            "reward_model": {"style": "rule", "ground_truth": str(2 * i)},
            "extra_info": {"index": i},
        }
        for i in range(8)
    ]
    data, model = folder / "sums.parquet", tiny.save(folder / "model", seed=1)
    pl.DataFrame(rows).write_parquet(data)
    where = str(Path(verl.__file__).parent / "trainer" / "config")
    given = [
        f"data.train_files={data}",
        f"data.val_files={data}",
        f"data.train_batch_size={PROMPTS}",
        f"data.max_prompt_length={PROMPT_TOKENS}",
        f"data.max_response_length={NEW_TOKENS}",
        "data.dataloader_num_workers=0",
        "data.shuffle=False",
        f"actor_rollout_ref.model.path={model}",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "actor_rollout_ref.model.use_remove_padding=False",
        "actor_rollout_ref.actor.strategy=fsdp2",
        "actor_rollout_ref.actor.use_torch_compile=False",
        "actor_rollout_ref.actor.fsdp_config.use_torch_compile=False",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS}",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
        "actor_rollout_ref.actor.optim.lr=0.01",
        "actor_rollout_ref.rollout.name=vllm",
        f"actor_rollout_ref.rollout.n={GROUP}",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
        "trainer.device=cpu",
        "trainer.n_gpus_per_node=1",
        "trainer.nnodes=1",
        "trainer.logger=[console]",
        "trainer.val_before_train=False",
        "trainer.save_freq=-1",
        "trainer.test_freq=-1",
        "trainer.balance_batch=False",
        "trainer.total_training_steps=2",
        f"trainer.default_local_dir={folder / 'checkpoints'}",
        *overrides,
    ]
    with initialize_config_dir(config_dir=where, version_base=None):
        return compose("ppo_trainer", overrides=given)


def run(folder: Path, overrides: list[str]) -> None:
    """Two steps; what was trained on, and the weights before and after, go to run.pt."""
    folder.mkdir()
    torch.manual_seed(0)
    config = configuration(folder, *overrides)
    trainer = Trainer(
        config,
        AutoTokenizer.from_pretrained(config.actor_rollout_ref.model.path),
        {Role.ActorRollout: ActorRolloutRefWorker},
        SimpleNamespace(get_n_gpus=lambda: 1),
    )
    trainer.init_workers()
    steps: list[dict[str, Any]] = []

    def kept(data: DataProto, **keywords: Any) -> DataProto:
        found = compute_advantage(data, **keywords)
        steps.append(
            {
                "rewards": found.batch["token_level_rewards"].sum(-1),
                "uids": found.non_tensor_batch["uid"].tolist(),
                "mask": found.batch["response_mask"],
                "advantages": found.batch["advantages"],
            }
        )
        return found

    ray_trainer.compute_advantage = kept
    before = weights(trainer)
    trainer.fit()
    torch.save({"steps": steps, "before": before, "after": weights(trainer)}, folder / "run.pt")


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    module = trainer.actor_rollout_wg.actor.engine.module
    return {name: p.full_tensor().detach().clone() for name, p in module.named_parameters()}


def main(folder: Path, runs: dict[str, list[str]]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {
        "WORLD_SIZE": "1",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    torch.distributed.init_process_group("gloo")  # verl would name the processor twice
    torch.set_num_threads(1)
    for name, overrides in runs.items():
        run(folder / name, overrides)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
