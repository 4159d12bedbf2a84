"""Low-rank adapters (LoRA) on a frozen model, put in place by peft and saved in its form.

    y = W x + b + s · B (A x)        A: (rank, inputs), B: (outputs, rank); B = 0 at first, so y is the model's own

    s = alpha / rank, or alpha / √rank where the scaling is stabilised for large ranks (rsLoRA)

The model stays the object that it was: its linear layers are wrapped in place, and W and b are frozen. With the
adapter off it is the base model to the bit, so a KL reference needs no second copy.

Source: Hu et al. 2021 (arXiv 2106.09685); Kalajdzievski 2023 (arXiv 2312.03732) for rsLoRA.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from grouprl.errors import ConfigError, MissingDependency, ModelError
from grouprl.policy.layers import packable, packed_weights, use_lean_layers
from grouprl.policy.quiet import quiet_transformers
from grouprl.policy.sharding import whole

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ALL_LINEAR = "all-linear"
"""As a target: every linear layer but the LM head."""
PEFT_PREFIX = "base_model.model."
"""What peft's files put before the names of a model's own parameters."""


def check_peft() -> None:
    """Nothing, where peft is installed.

    Raises:
        MissingDependency: It is not.
    """
    if find_spec("peft") is None:
        raise MissingDependency("lora: peft is not installed; pip install 'grouprl[lora]'")


def attach_adapter(
    model: nn.Module,
    *,
    rank: int,
    alpha: float,
    targets: Sequence[str] = (ALL_LINEAR,),
    rslora: bool = False,
    seed: int = 0,
    base: str | None = None,
) -> None:
    """Freeze a model and put a new adapter on its linear layers, in place. It computes what it computed before.

    Args:
        model: A transformers causal LM without an adapter.
        rank: Columns of A, at least 1.
        alpha: Numerator of the scaling.
        targets: Names of layers, by the end of their path (`q_proj`, `mlp.down_proj`), or "all-linear".
        rslora: Whether to divide alpha by √rank in place of rank.
        seed: Of A. torch's own generators stay as they were.
        base: Name or folder of the base model, for the saved adapter; the model's own `name_or_path` unless given.

    Raises:
        MissingDependency: peft is not installed.
        ConfigError: A target names no linear layer, or the LM head.
        ModelError: peft refuses the model.
    """
    check_peft()
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=0.0,
        target_modules=_target_names(model, targets),
        use_rslora=rslora,
        bias="none",
        task_type="CAUSAL_LM",
        fan_in_fan_out=_is_conv1d_model(model),
        base_model_name_or_path=_whole_path(base or getattr(model, "name_or_path", "")),
    )
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    with quiet_transformers(), torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(config, model)
        except (ValueError, TypeError, NotImplementedError) as error:
            raise ModelError(
                f"lora: peft cannot adapt {type(model).__name__} ({' '.join(str(error).split())}); name other "
                "lora_targets, or take another model"
            ) from error
    for layer in _adapted_layers(model):
        layer.cast_input_dtype_enabled = False  # autocast casts; a float32 copy would be kept for backward
    use_lean_layers(model)
    model.eval()


def is_adapted(model: nn.Module) -> bool:
    """Whether a model carries an adapter."""
    return hasattr(model, "peft_config")


@contextmanager
def adapter_off(model: nn.Module) -> Iterator[None]:
    """Within it the model is its base model, to the bit. Run it without gradient."""
    layers = _adapted_layers(model)
    try:
        for layer in layers:
            layer.enable_adapters(False)
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


@contextmanager
def merged_packed(model: nn.Module, rows: int) -> Iterator[None]:
    """`layers.packed_weights` with W + s B A packed in place of W, so that a product is one and not three.

    Within it nothing of the model may be run with gradient, or under autocast. The weights stay as they are.
    """
    lean = set(packable(model))
    layers = {layer.base_layer: layer for layer in _adapted_layers(model) if layer.base_layer in lean}

    @torch.no_grad()
    def merged(linear: nn.Linear) -> Tensor:
        layer = layers.get(linear)
        return linear.weight if layer is None else linear.weight + _delta(layer)

    with packed_weights(model, rows, weight_of=merged):
        try:
            for layer in layers.values():
                layer.enable_adapters(False)  # what peft would add is in the packed weight
            yield
        finally:
            for layer in layers.values():
                layer.enable_adapters(True)


def save_adapter(model: nn.Module, folder: Path, state: Mapping[str, Tensor] | None = None) -> None:
    """Write adapter_config.json and adapter_model.safetensors as peft does: `PeftModel.from_pretrained` reads them.

    Args:
        model: With an adapter.
        folder: Made if need be.
        state: The adapter's matrices by the model's names, where the model's own are shared out over ranks.
    """
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    # Embeddings are never adapted; asked, peft would look the base model up on the hub.
    named = get_peft_model_state_dict(
        model, state_dict=None if state is None else dict(state), save_embedding_layers=False
    )
    tensors = {f"{PEFT_PREFIX}{name}": x.detach().cpu().contiguous() for name, x in named.items()}
    save_file(tensors, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    config = copy.copy(_config_of(model))
    config.inference_mode = True  # for whoever loads it, as peft writes it
    config.save_pretrained(str(folder))


def load_adapter(model: nn.Module, folder: Path) -> None:
    """Give a model's adapter the weights of a saved one, of the same shape.

    Raises:
        ModelError: It is another adapter's, or not one.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        saved = load_file(folder / ADAPTER_WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"adapter {str(folder)!r}: cannot be read ({error}); save it again") from error
    state = {f"{PEFT_PREFIX}{name}": parameter for name, parameter in _adapter_parameters(model)}
    if {n: x.shape for n, x in saved.items()} != {n: p.shape for n, p in state.items()}:
        raise ModelError(
            f"adapter {str(folder)!r}: {len(saved)} matrices, expected the {len(state)} of this model's adapter; "
            "give the base model, rank and lora_targets that it was trained with"
        )
    with torch.no_grad():
        for name, parameter in state.items():
            parameter.copy_(saved[name])


def merge_saved_adapter(model: nn.Module, folder: Path) -> None:
    """Add a saved LoRA adapter to a model's own weights, in place.

    Raises:
        MissingDependency: peft is not installed.
        ModelError: It cannot be read, is not of this model, or is more than LoRA.
    """
    check_peft()
    from peft import LoraConfig, PeftConfig, inject_adapter_in_model, set_peft_model_state_dict
    from safetensors.torch import load_file

    try:
        config = PeftConfig.from_pretrained(str(folder))
        if not isinstance(config, LoraConfig) or config.modules_to_save:
            raise ValueError("it holds more than a LoRA adapter; merge it with peft")
        weights = load_file(folder / ADAPTER_WEIGHTS)
        inject_adapter_in_model(config, model)
        left = set_peft_model_state_dict(model, weights)
        missing = [name for name in left.missing_keys if ".lora_" in name]
        if missing or left.unexpected_keys:
            raise ValueError(
                f"{len(missing)} matrices missing, {len(left.unexpected_keys)} not of this model"
            )
        merge_adapter(model)
        model.requires_grad_(True)
    except Exception as error:  # peft, safetensors and torch each raise what they like
        raise ModelError(
            f"adapter {str(folder)!r}: cannot be merged into its base model ({' '.join(str(error).split())[:160]}); "
            "save it again, or name another model"
        ) from error


@torch.no_grad()
def merge_adapter(model: nn.Module) -> None:
    """Add the adapter to the weights and take it off, in place: W + s B A."""
    for name, layer in list(model.named_modules()):
        if is_adapted_layer(layer):
            layer.merge()
            model.set_submodule(name, layer.get_base_layer())
    del model.peft_config


@torch.no_grad()
def merged_parameters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters of the model without its adapter, by their names in it and in its order, those that it adapts as
    W + s B A; one at a time. Those that are shared out over ranks are put together, and all ranks call it."""
    layers = {f"{name}.base_layer.weight": m for name, m in model.named_modules() if is_adapted_layer(m)}
    adapter = {id(p) for _, p in _adapter_parameters(model)}
    for name, parameter in model.named_parameters():
        if id(parameter) in adapter:
            continue
        layer, together = layers.get(name), whole(parameter)
        yield name.replace(".base_layer.", "."), together if layer is None else together + _delta(layer)


def merged_state(model: nn.Module, *, keep: bool) -> dict[str, Tensor]:
    """The state dict of the model without its adapter, with `merged_parameters`, on the CPU; empty where this process
    is not to `keep` it."""
    parameters = {name: merged.cpu() for name, merged in merged_parameters(model) if keep}
    buffers = {
        name: x for name, x in model.state_dict(keep_vars=True).items() if not isinstance(x, nn.Parameter)
    }
    return {**parameters, **buffers} if keep else {}


def base_of(folder: Path) -> str | None:
    """The base model that a folder's adapter was trained on; None where the folder holds no adapter, or a whole model
    too.

    Raises:
        ModelError: Its adapter_config.json is damaged, or names no base model.
    """
    file = folder / ADAPTER_CONFIG
    if not file.is_file() or (folder / "config.json").is_file():
        return None
    try:
        base = json.loads(file.read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"model {str(folder)!r}: its {ADAPTER_CONFIG} is damaged ({error}); save it again"
        ) from error
    if not isinstance(base, str) or not base:
        raise ModelError(
            f"model {str(folder)!r}: its {ADAPTER_CONFIG} names no base model; set base_model_name_or_path in it"
        )
    return base


def is_adapted_layer(module: nn.Module) -> bool:
    """Whether a module is a layer that peft has wrapped."""
    return hasattr(module, "base_layer") and hasattr(module, "lora_A")


def _adapted_layers(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if is_adapted_layer(module)]


def _delta(layer: Any) -> Tensor:
    """s B A, as the layer's weight lies."""
    (name,) = layer.active_adapters
    a, b = (whole(part[name].weight) for part in (layer.lora_A, layer.lora_B))
    delta: Tensor = (b @ a) * layer.scaling[name]
    return delta.T if layer.fan_in_fan_out else delta


def _adapter_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """By the names that peft's files have, but for the prefix."""
    for name, module in model.named_modules():
        if is_adapted_layer(module):
            for part in ("lora_A", "lora_B"):
                for matrix in getattr(module, part).values():
                    yield f"{name}.{part}.weight", matrix.weight


def _config_of(model: Any) -> Any:
    (config,) = model.peft_config.values()
    return config


def _target_names(model: Any, targets: Sequence[str]) -> list[str]:
    """The targets, "all-linear" as the names that it stands for.

    Raises:
        ConfigError: As `attach_adapter` says.
    """
    head = model.get_output_embeddings()
    linear = {name: module for name, module in model.named_modules() if _is_linear(module)}
    body = [name for name, module in linear.items() if module is not head]
    known = sorted({name.rpartition(".")[2] for name in body})
    names: set[str] = set()
    for target in targets:
        if target == ALL_LINEAR:
            names.update(known)
        elif any(name == target or name.endswith(f".{target}") for name in body):
            names.add(target)
        else:
            why = (
                "is the LM head, whose products are fused with the log-probs"
                if any(name == target or name.endswith(f".{target}") for name in linear)
                else "is no linear layer of this model"
            )
            raise ConfigError(
                f"lora.lora_targets: {target!r} {why}; expected {ALL_LINEAR!r} or some of {', '.join(known)}"
            )
    return sorted(names)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _is_conv1d_model(model: nn.Module) -> bool:
    """Whether weights lie transposed (GPT-2)."""
    return any(type(module).__name__ == "Conv1D" for module in model.modules())


def _whole_path(name: Any) -> str:
    """A folder by its whole path: an adapter is loaded from elsewhere."""
    name = str(name or "")
    return str(Path(name).resolve()) if name and Path(name).is_dir() else name
