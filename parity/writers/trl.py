"""TRL: the files that a `GRPOTrainer` with `log_completions` writes in a run of a tiny random model.

A reward function logs the number of the data set's row beside each completion: two rows hold the same prompt, and the
number tells their groups apart.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

DISTRIBUTION = "trl"
WORDS = ["<pad>", "<eos>", *"abcdefgh"]
PROMPTS = ["a b", "a b", "c", "d e f", "g", "h", "a b", "c"]
TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


def write(folder: Path) -> dict[str, str]:
    _train(folder / "text", PROMPTS)
    _train(folder / "messages", [[{"role": "user", "content": prompt}] for prompt in PROMPTS])
    return dict.fromkeys(("text", "messages"), "trl.GRPOTrainer.train, log_completions=True")


def _train(folder: Path, prompts: list) -> None:
    torch.manual_seed(0)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_words(),
        pad_token="<pad>",  # noqa: S106
        eos_token="<eos>",  # noqa: S106
        chat_template=TEMPLATE,
    )
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(WORDS),
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[letters_a, length],
        args=GRPOConfig(
            output_dir=mkdtemp(),
            num_generations=4,
            per_device_train_batch_size=16,
            max_completion_length=4,
            max_steps=2,
            logging_steps=1,
            log_completions=True,
            num_completions_to_print=0,
            shuffle_dataset=False,
            save_strategy="no",
            use_cpu=True,
            beta=0.0,
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"prompt": prompts, "row": list(range(len(prompts)))}),
        processing_class=tokenizer,
    )
    trainer.train()
    (Path(trainer.args.output_dir) / "completions").rename(folder)


def letters_a(completions, **_) -> list[float]:
    return [float(_content(one).count("a")) for one in completions]


def length(completions, row, log_extra, **_) -> list[float | None]:
    """None, which stands for no score, for row 2."""
    log_extra("row", list(row))
    return [None if r == 2 else 0.1 * len(_content(one).split()) for one, r in zip(completions, row)]


def _content(completion) -> str:
    return completion if isinstance(completion, str) else completion[-1]["content"]


def _words() -> Tokenizer:
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))  # noqa: S106
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return words
