"""Small real models and a small real tokenizer, made on the spot: no hub, no download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from grouprl.policy import Policy
from grouprl.policy.layers import use_lean_layers
from grouprl.policy.probe import probe
from grouprl.types import Completion, Group, Prompt

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is defined and enable_thinking %}"
    "<think>{% endif %}{% endif %}"
)
SPECIALS = ["<|im_start|>", "<|im_end|>", "<bos>"]

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "mistral": {"sliding_window": 12},
    "phi": {},
    "phi3": {"pad_token_id": 1},
    "granite": {"logits_scaling": 2.0},
    "olmo2": {},
    "cohere": {"logit_scale": 0.25},
    "gemma2": {"head_dim": 8, "query_pre_attn_scalar": 8, "final_logit_softcapping": 5.0},
    "gemma3_text": {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 8},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "bloom": {"n_layer": 2, "n_head": 4},
    "mamba": {"state_size": 4},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
}
"""Options beside the common ones. The last three cannot share a prompt: ALiBi, and states that run along a row."""


def tokenizer(*, adds_bos: bool = False, template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """Bytes as tokens, three special tokens, pad = EOS = <|im_end|>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {t: i for i, t in enumerate([*SPECIALS, *alphabet])}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    if adds_bos:
        core.post_processor = processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", vocab["<bos>"])]
        )
    made = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<bos>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = template
    return made


def policy(family: str = "llama", *, seed: int = 0, **overrides: Any) -> Policy:
    """A random model of a family, two layers wide 32, its weights large enough to be far from uniform."""
    tok = tokenizer()
    options: dict[str, Any] = {
        "vocab_size": len(tok),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "pad_token_id": 1,
        **FAMILIES.get(family, {}),
        **overrides,
    }
    config = AutoConfig.for_model(family, **options)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.3)
    model.generation_config.eos_token_id = 1
    model.generation_config.pad_token_id = 1
    use_lean_layers(model)
    made = Policy(model, tok, name=f"tiny {family}")
    made.prefix_obstacle = probe(made)
    return made


def save(folder: Path, **options: Any) -> Path:
    """A tiny model on disk, as a user's local folder."""
    made = policy(**options)
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    return folder


def group(
    prompt: list[int],
    completions: list[list[int]],
    *,
    group_id: str = "g",
    mask: list[list[bool]] | None = None,
) -> Group:
    """A group of given tokens."""
    made = tuple(
        Completion(
            token_ids=tuple(ids),
            logprobs=(-1.0,) * len(ids),
            loss_mask=tuple(mask[i]) if mask else (True,) * len(ids),
            text=f"{ids}",
            finish_reason="stop",
        )
        for i, ids in enumerate(completions)
    )
    return Group(group_id, Prompt(group_id, "p"), "p", tuple(prompt), made)


def served(folder: Path, **overrides: Any) -> Policy:
    """A tiny model that vLLM takes, too, on disk and as a policy: its heads are 32 wide."""
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2, "num_key_value_heads": 1}
    made = policy(**shape, **overrides)
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    return made
