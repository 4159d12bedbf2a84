"""The configuration of a run: dataclasses, read from TOML, checked once, written back in full."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from grouprl.errors import ConfigError
from grouprl.policy.lora import ALL_LINEAR
from grouprl.rollout import Sampling
from grouprl.training import recipes
from grouprl.training.engines import check_engine
from grouprl.training.objective import check_objective
from grouprl.training.sampling import check_sampling
from grouprl.training.staleness import check_staleness
from grouprl.training.vllm_config import VllmConfig
from grouprl.training.weights import check_weights

Count = Annotated[int, Ge(1)]
CountOrOff = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0), Lt(math.inf)]
NonNegative = Annotated[float, Ge(0), Lt(math.inf)]


@dataclass(frozen=True)
class RolloutConfig:
    """What is sampled in a step, and by what."""

    engine: Literal["local", "vllm", "vllm_server"] = "local"
    """What samples: grouprl's own engine, vLLM in this process, or vLLM behind a server (docs/vllm.md)."""
    group_size: Count = 8
    """G, completions sampled for each prompt; 1 where the estimator does not compare within the group."""
    prompts_per_step: Count = 8
    """Prompts, that is groups, in a step."""
    max_new_tokens: Count = 16
    """Most tokens in a completion; one that reaches it is truncated."""
    temperature: Positive = 1.0
    """T in softmax(logits / T), for sampling, training and reference alike."""
    top_p: Annotated[float, Gt(0), Le(1)] = 1.0
    """Sample from the most likely tokens that reach this probability; 1 from all."""
    top_k: CountOrOff = 0
    """Sample from this many most likely tokens; 0 from all."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion."""
    batch_tokens: Count = 16_384
    """Most tokens in the sampler's cache at once: bounds its memory."""
    sampler_dtype: Literal["float32", "bfloat16"] = "float32"
    """Weights of the sampler. bfloat16 is a rounded copy: faster, and what it samples is corrected for in the loss."""
    max_staleness: Annotated[int, Ge(0), Le(1)] = 0
    """1: draw a step's completions while the step before trains, by weights one update old, corrected for; 0: turns."""
    sampler_threads: CountOrOff = 0
    """With max_staleness = 1 on a CPU: threads that sample while the others train; 0 for half of them."""


@dataclass(frozen=True)
class SamplingConfig:
    """Which prompts are drawn, and what of their completions is trained on. The defaults: every prompt, everything."""

    max_sampling_rounds: CountOrOff = 0
    """Dynamic sampling (DAPO): groups without spread in correctness are dropped, and fresh prompts drawn in their
    place, in at most this many rounds a step; 0 or 1 keeps what was drawn."""
    train_group_size: CountOrOff = 0
    """PODS: train on this many of each group's completions, those of largest reward variance; 0 on all."""
    overlong_buffer_tokens: NonNegative = 0.0
    """Soft overlong punishment (DAPO): the last tokens before max_new_tokens, over which the reward falls; below 1, as
    a share of max_new_tokens; 0 for none."""
    overlong_penalty: NonNegative = 1.0
    """What a completion that reaches max_new_tokens loses by it, in units of the reward."""
    skip_epochs: CountOrOff = 0
    """Curriculum: a prompt that was solved, or never, is passed over for this many epochs, then looked at again; 0
    passes over none."""
    skip_solved: Annotated[float, Gt(0), Le(1)] = 0.9
    """Share of right completions, in its latest two groups, from which a prompt counts as solved."""
    skip_unsolved: bool = True
    """Pass over prompts with no right completion, and no spread, in their latest two groups, too."""


@dataclass(frozen=True)
class AdvantageConfig:
    """How rewards become advantages."""

    estimator: str = "grpo"
    """grpo, dr_grpo, rloo, remax, spo, … (grouprl.advantages.names()), or your own: file.py:function or
    module:function."""
    options: dict[str, Any] = field(default_factory=dict)
    """The estimator's keywords, such as {eps = 1e-6, ddof = 1}; on the command line --estimator-option."""


@dataclass(frozen=True)
class ObjectiveConfig:
    """What is minimised (docs/objectives.md). None takes what the surrogate's paper takes."""

    surrogate: Literal["ppo_clip", "gspo", "gspo_token", "cispo", "sapo", "gmpo", "reinforce"] = "ppo_clip"
    """What a token adds to the loss."""
    clip_low: Annotated[float, Ge(0), Le(1e6)] | None = None
    """The ratio is clipped below 1 − clip_low (gmpo: log r below −clip_low). ppo_clip 0.2, gspo 3e-4, cispo 1, gmpo
    0.4."""
    clip_high: Annotated[float, Ge(0), Le(1e6)] | None = None
    """The ratio is clipped above 1 + clip_high (gmpo: log r above clip_high). ppo_clip 0.2 (DAPO: 0.28), gspo 4e-4,
    cispo 4 (TRL's epsilon_high of 5), gmpo 0.4."""
    dual_clip: Annotated[float, Gt(1), Lt(math.inf)] | None = None
    """ppo_clip: the ratio at which a token with a negative advantage stops counting more (verl: 3); None: none."""
    tau_positive: Positive | None = None
    """sapo: steepness of the gate for positive advantages, 1.0."""
    tau_negative: Positive | None = None
    """sapo: for negative ones, 1.05."""
    aggregation: Literal["sequence_mean", "token_mean", "constant", "sequence_sum_mean"] = "sequence_mean"
    """Mean over completions of their token means (GRPO); mean over all tokens (DAPO); sum over all tokens by
    completions times max_new_tokens (Dr. GRPO); mean over completions of their token sums (REINFORCE)."""
    denominator: Literal["all", "informative"] = "all"
    """What that mean is over: all scored completions, or those of groups with an advantage other than 0."""
    beta: NonNegative = 0.0
    """Weight of the KL to the starting model; 0 keeps no reference model."""
    kl: Literal["k1", "k2", "k3"] | None = None
    """Its estimator; None is k3 in the loss, k1 in the reward."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Add the KL to the loss of each token, or subtract its sum over a completion from the completion's reward."""
    kl_weighted: bool = False
    """Multiply a token's KL in the loss by its ratio (DeepSeek-V3.2)."""
    entropy_weight: NonNegative = 0.0
    """Weight of the entropy bonus in the loss."""
    correction: Literal["auto", "off", "truncated", "masked"] = "auto"
    """Weight a token's loss by π_trainer / π_sampler, held below correction_high or left out beyond the bounds. auto
    truncates where the two differ: bfloat16, vLLM, max_staleness, reinforce with several updates."""
    correction_level: Literal["token", "sequence"] = "token"
    """Weigh each token by its own ratio, or by the product over its completion."""
    correction_low: NonNegative = 0.0
    """masked: weights below are left out."""
    correction_high: Positive = 2.0
    """Weights above are truncated, or left out."""
    overlong_filter: bool = False
    """Take completions that were cut off out of the loss; their rewards stay in their group's mean and spread."""
    mini_batches: Count = 1
    """Cut each batch of completions into this many, of whole groups, with an optimizer step each."""
    updates_per_rollout: Count = 1
    """Passes over each batch of completions, of mini_batches optimizer steps."""


@dataclass(frozen=True)
class CriticConfig:
    """PPO's critic, for estimator "gae" alone: what it learns from, and how fast."""

    critic_backbone: Literal["shared", "own"] = "shared"
    """A value head on the policy's own hidden states, or on a second copy of the model (more memory and time)."""
    critic_lr: NonNegative = 1e-3
    """Peak learning rate of what is the critic's alone: the value head, and a backbone of its own."""
    value_weight: NonNegative = 0.1
    """Weight of the critic's loss beside the policy's."""
    value_clip: NonNegative = 0.2
    """How far a value may move from what it was before the first update on a batch, in the reward's unit; 0 for
    without bound."""
    whiten_advantages: bool = True
    """Give the token advantages mean 0 and standard deviation 1 over the batch."""


@dataclass(frozen=True)
class LoraConfig:
    """A low-rank adapter on a frozen model, by peft, in place of training all weights."""

    lora_rank: CountOrOff = 0
    """Rank of the adapter's matrices; 0 trains all weights."""
    lora_alpha: Positive = 32.0
    """The adapter is scaled by lora_alpha / lora_rank."""
    lora_targets: tuple[str, ...] = (ALL_LINEAR,)
    """Linear layers to adapt, by the end of their names (q_proj, …); all-linear: all but the LM head."""
    rslora: bool = False
    """Scale by lora_alpha / √lora_rank, which keeps large ranks stable."""
    lora_dropout: NonNegative = 0.0
    """Must be 0: with dropout the sampler's and the trainer's log-probs would be those of two policies."""
    lora_merge: bool = False
    """Write the final model whole, the adapter added to its weights, with the adapter beside it in model/adapter."""
    quantize: Literal["none", "nf4"] = "none"
    """Keep the frozen weights in 4 bits, by bitsandbytes (QLoRA); LM head and embeddings stay in float32."""


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and its learning rate."""

    optimizer_kind: Literal["adamw", "adamw_8bit"] = "adamw"
    """adamw_8bit keeps the two moments in 8 bits, by bitsandbytes: 2 bytes a trained weight in place of 8."""
    lr: NonNegative = 1e-5
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What the learning rate does after the warm-up: stay, or fall to 0 at the last step."""
    warmup_steps: CountOrOff = 0
    """Steps in which the learning rate rises from 0."""
    weight_decay: NonNegative = 0.0
    """AdamW's, on matrices only."""
    max_grad_norm: NonNegative = 1.0
    """The gradient is scaled down to this norm; 0 leaves it as it is."""
    adam_beta1: Annotated[float, Ge(0), Lt(1)] = 0.9
    adam_beta2: Annotated[float, Ge(0), Lt(1)] = 0.999
    adam_eps: Positive = 1e-8


@dataclass(frozen=True)
class EvaluationConfig:
    """Held-out accuracy: before, after, and in between."""

    eval_every: CountOrOff = 0
    """Steps between evaluations; 0 evaluates before the first step and after the last."""
    eval_prompts: CountOrOff = 100
    """Held-out prompts to use, at most; 0 evaluates nothing."""
    eval_samples: Count = 4
    """Completions sampled for each, besides the greedy one."""


@dataclass(frozen=True)
class CheckpointConfig:
    """What a run can be resumed from."""

    checkpoint_every: CountOrOff = 8
    """Steps between checkpoints; 0 writes one at the end only (and on Ctrl-C)."""
    checkpoint_keep: Count = 1
    """How many to keep, newest first."""


@dataclass(frozen=True)
class ScoringConfig:
    """Rewards that are computed by a server (http://…) or by a reward model (model:…)."""

    http_timeout_s: Positive = 60.0
    """Seconds for one request to a reward server, from the connection to the last byte."""
    http_retries: CountOrOff = 4
    """Further tries of a request that failed in passing; the pauses between them double."""
    http_batch_size: Count = 64
    """Most completions in a request."""
    http_concurrency: Count = 4
    """Most requests at a time."""
    http_token_env: str = ""
    """The environment variable that holds the server's token, sent as Authorization: Bearer; none where empty."""
    reward_model_dtype: Literal["float32", "bfloat16"] = "float32"
    """What a reward model computes in."""
    reward_model_batch_tokens: Count = 16_384
    """Most tokens in a forward of a reward model."""


@dataclass(frozen=True)
class DistributedConfig:
    """How several processes that torchrun started train one model (docs/distributed.md). On one it says nothing."""

    strategy: Literal["ddp", "fsdp"] = "ddp"
    """ddp keeps the whole model, its gradient and its moments on every rank; fsdp a share of each."""
    distributed_timeout_s: Positive = 1800.0
    """Seconds that a rank waits for the others before it gives them up for lost."""


@dataclass(frozen=True)
class Config:
    """A GRPO run. The defaults are the quickstart: two-number sums on the bundled model."""

    model: str = "bundled"
    """'bundled' (SmolLM2-135M-Instruct), a folder that save_pretrained wrote, or a hub id."""
    task: str = "arithmetic"
    """A task's name, reasoning-gym:FAMILY, a .jsonl, .parquet or .csv file of prompts, or owner/name of the hub;
    math:FILE for GSM8K's or MATH's columns, with the reward math."""
    task_options: dict[str, Any] = field(default_factory=dict)
    """The task's own options, such as {size = 500}; on the command line --task-option."""
    reward: tuple[str, ...] = ()
    """Rewards: built-in names (last_number, math, tags:think,answer, …), file.py:function or module:function, a
    server's http://… or a reward model, model:FOLDER. The task's own where none is given; 'task' among others stands
    for them."""
    reward_weights: tuple[float, ...] = ()
    """One weight a reward (that of 'task' by the task's own); all 1 where none is given."""
    on_reward_error: Literal["raise", "abstain"] = "raise"
    """A reward function that raises stops the run, or leaves the completion unscored."""
    success_reward: Annotated[float, Gt(-math.inf), Lt(math.inf)] | None = None
    """A completion with at least this reward counts as right in the evaluation; the task's own (1) unless told."""
    heldout_path: str | None = None
    """A file of held-out prompts, for a task that is a file."""
    heldout_fraction: Annotated[float, Ge(0), Lt(1)] | None = None
    """Share of the prompts to hold out, for a task that is a file without heldout_path (0.1 unless told)."""
    system_prompt: str | None = None
    """Put before each prompt of the task: as a message, or as the first paragraph of plain text; '' for none."""
    steps: Count = 16
    """Training steps."""
    seed: CountOrOff = 0
    """Decides the order of the prompts and every completion's randomness."""
    output_dir: str | None = None
    """Where the run goes; by default the next free runs/<task>-<n>."""
    device: str = "auto"
    """'auto', 'cpu', 'cuda', …"""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What training computes in. bfloat16 is autocast: weights, gradients, optimizer and LM head stay in float32."""
    gradient_checkpointing: bool = False
    """Keep only each layer's input for backward: less memory, about a third more time."""
    micro_batch_tokens: CountOrOff = 0
    """Most tokens in one forward and backward (completion tokens, where one group has a long prompt): bounds the
    memory, does not change the gradient. 0 takes what fits the free memory."""
    record_tokens: bool = False
    """Write token ids, sampler log-probs and loss masks into the rollout files."""
    tracking: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Where metrics go besides metrics.jsonl."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    vllm: VllmConfig = field(default_factory=VllmConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    scoring: ScoringConfig = field(default_factory=ScoringConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)
    chat_template: dict[str, Any] = field(default_factory=dict)
    """Keywords for the chat template, such as enable_thinking (TOML only)."""


def sampling_of(config: Config) -> Sampling:
    """How a run samples, in training and evaluation alike."""
    rollout = config.rollout
    return Sampling(
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        max_new_tokens=rollout.max_new_tokens,
        stop=rollout.stop,
    )


def read_config(path: str | Path, *, recipe: str | None = None) -> Config:
    """A configuration from a TOML file; what it does not name keeps the recipe's value, or its default.

    Args:
        path: The file. It may name a recipe itself: `recipe = "dapo"` at the top.
        recipe: The name of one, in place of the file's.

    Raises:
        ConfigError: No such file, not TOML, an unknown key, a value of the wrong type or out of range.
    """
    path = Path(path)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"config {str(path)!r}: cannot be read ({error.strerror}); give a TOML file"
        ) from error
    except ValueError as error:  # no TOML, no UTF-8, a number of thousands of digits
        raise ConfigError(f"config {str(path)!r}: not TOML ({error}); correct the file") from error
    if recipe is not None:
        table["recipe"] = recipe
    return config_from_dict(table, where=f"config {str(path)!r}")


def config_from_dict(table: Mapping[str, Any], *, where: str = "config") -> Config:
    """A checked configuration from nested dictionaries. See `read_config`.

    The key `recipe` names one of `training.recipes`, over which the others stand.
    """
    from pydantic import ValidationError

    if table.get("recipe") is not None:
        table = recipes.over(recipes.read(str(table["recipe"])), table)
    table = {key: value for key, value in table.items() if key != "recipe"}
    table = _name_the_estimator(table, where)
    _refuse_unknown_keys(table, Config, where, "")
    if isinstance(table.get("reward"), str):
        table = {**table, "reward": [table["reward"]]}
    _check_options(table.get("advantage", {}).get("options", {}), where, "advantage.options")
    for name in ("task_options", "chat_template"):
        _check_options(table.get(name, {}), where, name)
    try:
        # Through JSON, where pydantic's strict mode still takes a list for a tuple, but no text for a number.
        config: Config = _adapter().validate_json(json.dumps(table, default=str), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:
            raise ConfigError(
                f"{where}: holds text that is not UTF-8; rename the file that it names"
            ) from error
        key = ".".join(str(part) for part in first["loc"])
        expected = first["msg"].removeprefix("Input should be ")
        raise ConfigError(f"{where}: {key} is {first['input']!r}, expected {expected}") from error
    if not all(config.rollout.stop):
        raise ConfigError(
            f"{where}: rollout.stop holds an empty string, which would end every completion; remove it"
        )
    check_sampling(config, where)
    check_objective(config, where)
    check_staleness(config, where)
    check_weights(config, where)
    check_engine(config, where)
    return config


def check_config(config: Config, *, where: str = "config") -> Config:
    """The same configuration, every value checked. See `read_config`."""
    return config_from_dict(dataclasses.asdict(config), where=where)


def config_to_toml(config: Config) -> str:
    """The whole configuration as TOML; `config_from_dict` of it gives the same configuration."""
    import tomli_w

    return tomli_w.dumps(_without_none(dataclasses.asdict(config)))


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    """What is None is left out: TOML has no word for it, and it is the default."""
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in table.items()
        if value is not None
    }


OLD_ADVANTAGE_KEYS = frozenset({"scale", "eps", "ddof"})
"""What [advantage] held before estimators could be named. Such a table still reads."""


def _name_the_estimator(table: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """A configuration whose [advantage] has the old keys alone, with the estimator and the options that they are."""
    old = table.get("advantage")
    if not isinstance(old, Mapping) or not old or set(old) - OLD_ADVANTAGE_KEYS:
        return table
    scale = old.get("scale", "std")
    if scale not in ("std", "none"):
        raise ConfigError(
            f"{where}: advantage.scale is {scale!r}, expected 'std' or 'none'; name an estimator instead"
        )
    options = {name: value for name, value in old.items() if name != "scale"}
    named = {"estimator": "grpo", "options": options} if scale == "std" else {"estimator": "dr_grpo"}
    return {**table, "advantage": named}


def _check_options(value: Any, where: str, name: str) -> None:
    """Refuse what TOML cannot hold as it is, and JSON would turn into text, at any depth."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_options(item, where, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check_options(item, where, f"{name}[{index}]")
    elif not isinstance(value, bool | int | float | str) or value != value:  # NaN is not even itself
        raise ConfigError(
            f"{where}: {name} is {value!r}, expected a number, a text, true or false, a list or a table; leave it "
            "out to keep its default"
        )


@cache
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Config)


def _refuse_unknown_keys(table: Mapping[str, Any], cls: type, where: str, prefix: str) -> None:
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for key, value in table.items():
        if key not in fields:
            raise ConfigError(f"{where}: unknown key {prefix + str(key)!r}; {_nearest(str(key), cls)}")
        section = SECTIONS.get(key) if cls is Config else None
        if section is not None:
            if not isinstance(value, Mapping):
                raise ConfigError(f"{where}: {key} is {value!r}, expected a table [{key}]")
            _refuse_unknown_keys(value, section, where, f"{key}.")


SECTIONS: dict[str, type] = {
    "rollout": RolloutConfig,
    "vllm": VllmConfig,
    "sampling": SamplingConfig,
    "advantage": AdvantageConfig,
    "objective": ObjectiveConfig,
    "critic": CriticConfig,
    "lora": LoraConfig,
    "optimizer": OptimizerConfig,
    "evaluation": EvaluationConfig,
    "checkpoint": CheckpointConfig,
    "scoring": ScoringConfig,
    "distributed": DistributedConfig,
}


def _nearest(key: str, cls: type) -> str:
    """Where a key that is not known here belongs, or which known one looks like it."""
    if cls is AdvantageConfig and key in OLD_ADVANTAGE_KEYS:
        return (
            "beside estimator or options it is one of the options: put it into the table [advantage.options]"
            if key != "scale"
            else "beside estimator it has no meaning; estimator = 'dr_grpo' is scale = 'none'"
        )
    homes = {f.name: "" for f in dataclasses.fields(Config)}
    for section, kind in SECTIONS.items():
        homes.update({f.name: section for f in dataclasses.fields(kind)})
    if key in homes:
        home = f"in the table [{homes[key]}]" if homes[key] else "at the top, before the first table"
        return f"it belongs {home}"
    close = difflib.get_close_matches(key, homes, n=1)
    if close:
        home = homes[close[0]]
        return f"did you mean {f'{home}.' if home else ''}{close[0]}?"
    return f"known here: {', '.join(f.name for f in dataclasses.fields(cls))}"
