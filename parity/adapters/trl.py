"""TRL: the advantages and losses of a real `GRPOTrainer` (and `RLOOTrainer`) step, over fixed rewards and log-probs.

TRL computes them inside the method that generates and scores. So a trainer is built on a tiny random model, the
function that samples is replaced by one that answers every prompt with one token, the rewards come from a list, and
the method itself is called. The same for losses: `_compute_loss` runs on log-probs that are given to it.
"""

from __future__ import annotations

import logging
import math
import tempfile

import torch
from datasets import Dataset
from losses import MAX_TOKENS, Loss, Tensors
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from adapters.interface import Function, Groups, same_size, split

DISTRIBUTION = "trl"
METHOD = "_generate_and_score_completions"


def functions() -> dict[str, Function]:
    logging.disable(logging.WARNING)  # it warns of every reward that is None
    return {
        "grpo": Function(f"trl.GRPOTrainer.{METHOD}", _caller(GRPOTrainer, GRPOConfig), noise=True),
        "grpo, scale_rewards=none": Function(
            f"trl.GRPOTrainer.{METHOD}", _caller(GRPOTrainer, GRPOConfig, scale_rewards="none")
        ),
        "grpo, scale_rewards=batch": Function(
            f"trl.GRPOTrainer.{METHOD}", _caller(GRPOTrainer, GRPOConfig, scale_rewards="batch")
        ),
        "rloo": Function(f"trl.RLOOTrainer.{METHOD}", _caller(RLOOTrainer, RLOOConfig), noise=True),
    }


def _caller(trainer_class, config_class, **options):
    rewards: list[float] = []
    refusal = _refusal(config_class)  # first: a new configuration resets what a trainer's accelerator holds
    trainer = _trainer(trainer_class, config_class, rewards, options)

    def call(groups: Groups) -> list[list[float]]:
        size = same_size(groups)
        if size == 1 and refusal is not None:
            raise refusal
        trainer.num_generations = size
        rewards[:] = [reward for group in groups for reward in group]
        output = getattr(trainer, METHOD)([{"prompt": "a"} for _ in rewards])
        return split(output["advantages"].tolist(), groups)

    return call


def _refusal(config_class) -> ValueError | None:
    """What the configuration says to groups of one, if it says no."""
    try:
        config_class(output_dir=tempfile.mkdtemp(), num_generations=1, use_cpu=True)
    except ValueError as error:
        return error
    return None


def _trainer(trainer_class, config_class, rewards, options):
    def reward(completions, **_):
        return [None if math.isnan(value) else value for value in rewards[: len(completions)]]

    torch.manual_seed(0)
    tokenizer = _tokenizer()
    trainer = trainer_class(
        model=LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=8,
                intermediate_size=8,
                num_hidden_layers=1,
                num_attention_heads=1,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        ),
        reward_funcs=reward,
        args=config_class(
            output_dir=tempfile.mkdtemp(),
            num_generations=2,
            per_device_train_batch_size=2,
            max_completion_length=4,
            beta=0.0,
            use_cpu=True,
            report_to=[],
            **options,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["a"] * 4}),
        processing_class=tokenizer,
    )
    answer = [tokenizer.convert_tokens_to_ids("b"), tokenizer.eos_token_id]

    def generate(prompt_ids, *_):
        completions = [answer for _ in prompt_ids]
        return (completions, None) if trainer_class is GRPOTrainer else completions

    # What samples is replaced; what scores, centres and scales is the trainer's.
    trainer._generate_single_turn = generate
    trainer.args.per_device_train_batch_size = 4096  # RLOO's log-probs, which nothing here reads, in one go
    trainer.model.train()
    return trainer


def _tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "a": 2, "b": 3}, unk_token="<pad>"))  # noqa: S106
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")  # noqa: S106


def losses() -> dict[str, Loss]:
    return {
        "grpo": _loss(loss_type="grpo"),
        "grpo, delta": _loss(loss_type="grpo", delta=1.3),
        "grpo, beta": _loss(loss_type="grpo", beta=0.1, use_bias_correction_kl=False),
        "grpo, beta weighted by the ratio": _loss(loss_type="grpo", beta=0.1, use_bias_correction_kl=True),
        "bnpo": _loss(loss_type="bnpo", epsilon_high=0.28),
        "dapo": _loss(loss_type="dapo", epsilon_high=0.28),
        "dr_grpo": _loss(loss_type="dr_grpo"),
        "cispo": _loss(loss_type="cispo", epsilon_high=5.0),
        "cispo, low": _loss(loss_type="cispo", epsilon_high=1.2),
        "sapo": _loss(loss_type="sapo"),
        "gspo": _loss(
            loss_type="grpo", importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4
        ),
        "gspo, wide": _loss(loss_type="grpo", importance_sampling_level="sequence", epsilon=0.1),
        "luspo": _loss(loss_type="luspo", importance_sampling_level="sequence", epsilon=0.1),
    }


def _loss(beta: float = 0.0, **options) -> Loss:
    trainer = _trainer(GRPOTrainer, GRPOConfig, [], options)
    trainer.beta = beta  # given to the configuration, it would load a reference model
    trainer.max_completion_length = MAX_TOKENS
    trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation = 1

    def call(given: Tensors) -> torch.Tensor:
        mask = given.completion_mask.double()
        # What the model computes is replaced; the loss is the trainer's.
        trainer._get_per_token_logps_and_entropies = lambda *_, **__: (
            given.logprobs,
            torch.zeros_like(mask),
            None,
        )
        return trainer._compute_loss(
            trainer.model,
            {
                "prompt_ids": torch.zeros(4, 1, dtype=torch.long),
                "prompt_mask": torch.ones(4, 1, dtype=torch.long),
                "completion_ids": torch.zeros(mask.shape, dtype=torch.long),
                "completion_mask": mask,
                "advantages": given.advantages,
                "old_per_token_logps": given.old_logprobs,
                "ref_per_token_logps": given.ref_logprobs,
                "num_items_in_batch": mask.sum(),
            },
        )

    return Loss("trl.GRPOTrainer._compute_loss", call, options | ({"beta": beta} if beta else {}))
