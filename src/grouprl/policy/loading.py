"""Load a policy: the bundled model, a local folder, or a hub id."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

from grouprl.errors import ConfigError, ModelError
from grouprl.policy.bundled import BUNDLED, BUNDLED_FOLDER, bundled_model, cache_folder
from grouprl.policy.layers import use_lean_layers
from grouprl.policy.lora import base_of, check_peft, merge_saved_adapter
from grouprl.policy.model import Policy
from grouprl.policy.probe import probe
from grouprl.policy.quiet import quiet_transformers

BASE_ADVICE = (
    "put it there, or name its place as base_model_name_or_path in the adapter's adapter_config.json"
)


def load_policy(name: str = BUNDLED, *, device: str = "auto", quantize: str = "none") -> Policy:
    """Load a causal LM in float32 with its tokenizer, and check on a few tokens that grouprl can train it.

    Args:
        name: "bundled", a folder that `save_pretrained` wrote, or a hub id. A folder that holds an adapter, as peft or
            a run with [lora] wrote it, gives its base model with the adapter added to the weights.
        device: "auto" (CUDA where there is one), or any torch device.
        quantize: "nf4" keeps the weights of linear layers, but for the head, in 4 bits, by bitsandbytes.

    Raises:
        ModelError: It is not there, is damaged, is not a causal LM, or has a head that grouprl does not know.
        ConfigError: There is no such device here.
        MissingDependency: The bundled model's package, or the adapter's peft, is not installed.
    """
    place = _device(device)
    path, adapter = _base_and_adapter(name)
    where = f"model {name!r}" if adapter is None else f"model {name!r}: its base model {path!r}"
    check_place(where, path, advice=_advice(name) if adapter is None else BASE_ADVICE)
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with quiet_transformers():
        try:
            words = adapter if adapter is not None and (adapter / "tokenizer_config.json").is_file() else path
            tokenizer = AutoTokenizer.from_pretrained(words, trust_remote_code=False)
            model = _load_model(AutoModelForCausalLM, path, place, quantize)
            if adapter is not None:
                merge_saved_adapter(model, adapter)
            use_lean_layers(model)
            policy = Policy(model, tokenizer, name=name)
            policy.prefix_obstacle = probe(policy)
        except ModelError:
            raise
        except pickle.UnpicklingError as error:
            raise ModelError(
                f"model {name!r}: its weights hold pickled code, which is not run; give a model in safetensors"
            ) from error
        except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError) as error:
            raise ModelError(
                f"model {name!r}: cannot be loaded ({_one_line(error)}); {_advice(name)}"
            ) from error
    return policy


def _base_and_adapter(name: str) -> tuple[str, Path | None]:
    """Where the weights are, and the folder of the adapter that belongs on them, or None."""
    folder = Path(name)
    base = base_of(folder) if name != BUNDLED else None
    if base is None:
        return (str(bundled_model()) if name == BUNDLED else name), None
    check_peft()
    if not Path(base).exists() and Path(base).name == BUNDLED_FOLDER:  # trained on another machine
        return str(bundled_model()), folder
    if base_of(Path(base)) is not None:
        raise ModelError(
            f"model {name!r}: its base model {base!r} is an adapter itself; merge that one first"
        )
    return base, folder


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device {name!r}: not to be had here ({_one_line(error)}); give 'auto', 'cpu' or a device of this machine"
        ) from error
    return device


def _load_model(auto: Any, path: str, place: torch.device, quantize: str) -> Any:
    options: dict[str, Any] = {"dtype": torch.float32, "trust_remote_code": False}
    if quantize != "none":
        options |= {"quantization_config": _quantization(quantize), "device_map": {"": place}}
    try:
        model = auto.from_pretrained(path, attn_implementation="sdpa", **options)
    except ValueError as error:  # a family without scaled_dot_product_attention
        if "attention" not in str(error):
            raise
        model = auto.from_pretrained(
            path, attn_implementation="eager", **options
        )  # never what its files name
    if quantize == "none":
        return model.to(place)
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            # Else a forward without gradient packs the weight anew, in bfloat16: the sampler would be another policy.
            module.support_avx512bf16_for_cpu = False
    return model


def _quantization(kind: str) -> Any:
    """4 bits with scales in 8 bits, as QLoRA has them; dequantised into float32, or what autocast says."""
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=kind,
        bnb_4bit_compute_dtype=torch.float32,
        bnb_4bit_use_double_quant=True,
    )


def check_place(where: str, path: str, *, advice: str) -> None:
    """Tell a folder that is not there from a hub id, before transformers asks the hub about either.

    Args:
        where: Begins the message: what it is, and as what it was given.
        path: The folder or hub id that is looked for.
        advice: Ends the message: what to give instead.

    Raises:
        ModelError: There is neither.
    """
    folder = Path(path)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(
                f"{where}: the folder holds no config.json; give a folder that save_pretrained wrote "
                "(of a run, its model/ or checkpoints/step_…/model/)"
            )
    elif folder.is_file():
        raise ModelError(f"{where}: it is a file; give the folder that holds the model")
    elif path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise ModelError(f"{where}: there is no such folder; {advice}")
    else:
        _check_hub(where, path, advice)


def _check_hub(where: str, name: str, advice: str) -> None:
    """Ask the hub once, so that a wrong name or a missing network is said at once, not after a minute of retries."""
    from huggingface_hub import HfApi, constants, try_to_load_from_cache

    try:
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return
        if constants.HF_HUB_OFFLINE:
            raise ModelError(
                f"{where}: neither a folder nor in the hub's cache, and HF_HUB_OFFLINE is set; {advice}"
            )
        HfApi().model_info(name, timeout=10)
    except ModelError:
        raise
    except Exception as error:  # the hub library's HTTP errors share no base class with its other errors
        raise ModelError(
            f"{where}: not a folder, and the hub did not give it ({_one_line(error)}); {advice}"
        ) from error


def _advice(name: str) -> str:
    return (
        "give 'bundled', a folder that save_pretrained wrote, or a hub id such as 'Qwen/Qwen3-0.6B'"
        if name != BUNDLED
        else f"remove the cache at {cache_folder()} and try again"
    )


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 160 else text[:157] + "…"
