"""Checkpoints: the weights, the optimizer and the position, written whole or not at all, and checked on reading."""

from __future__ import annotations

import errno
import json
import pickle
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grouprl.errors import RunError
from grouprl.policy import Policy
from grouprl.records import RunFolder, atomic_dir
from grouprl.training.critic import Critic
from grouprl.training.ranks import Ranks
from grouprl.training.sampled import Sampled

STATE_VERSION = 1
STEP_FILE = "grouprl.json"
OPTIMIZER_FILE = "optimizer.pt"
MOMENTS_FOLDER = "optimizer"
ADAPTER_FOLDER = "adapter"
ESTIMATOR_FILE = "estimator.json"
CURRICULUM_FILE = "curriculum.json"


@dataclass(frozen=True)
class TrainingState:
    """Where a run stands between two steps. Randomness needs no state: it is a function of seed and step.

    Args:
        step: Steps done.
        position: Prompts visited so far: drawn, or passed over by the curriculum.
        task_fingerprint: Of the prompts that `position` counts in.
        steps_without_spread: Steps in a row in which every advantage was 0.
    """

    step: int = 0
    position: int = 0
    task_fingerprint: str = ""
    steps_without_spread: int = 0


def save_checkpoint(
    folder: RunFolder,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    state: TrainingState,
    *,
    estimator_state: str | None = None,
    curriculum_state: str | None = None,
    critic: Critic | None = None,
    batch: Sampled | None = None,
    keep: int,
    ranks: Ranks | None = None,
) -> Path:
    """Write `checkpoints/step_…`, then remove all but the newest `keep`. The further states are JSON; `batch` is the
    next step's, where it is drawn already.

    The folder appears under its name only when everything in it is on disk, so a kill at any moment leaves
    the earlier checkpoints as they were.

    Rank 0 writes, but for the moments of sharded weights: there each rank writes its own, side by side.
    """
    ranks = ranks or Ranks()
    path = folder.checkpoint_path(state.step)
    weights = policy.whole_state(keep=ranks.first)

    def fill(work: Path) -> None:
        with _errors_as_os(path):
            policy.save(work / "model", weights)
            if not policy.sharded:
                torch.save(optimizer.state_dict(), work / OPTIMIZER_FILE)
            if critic is not None:
                critic.save(work)
            if batch is not None:
                batch.save(work)
        for name, text in ((ESTIMATOR_FILE, estimator_state), (CURRICULUM_FILE, curriculum_state)):
            if text is not None:
                (work / name).write_text(text, encoding="utf-8")
        files = sorted(p for p in work.rglob("*") if p.is_file())
        record = {
            "version": STATE_VERSION,
            "torch": torch.__version__,
            "state": asdict(state),
            "files": {p.relative_to(work).as_posix(): _checksum(p) for p in files},
        }
        record["checksum"] = _checksum_of(record)
        (work / "state.json").write_text(json.dumps(record, indent=1), encoding="utf-8")

    with ExitStack() as stack:
        work = ranks.from_first(lambda: stack.enter_context(atomic_dir(path, replace=True)))
        if policy.sharded:
            from grouprl.training.moments import save_moments  # slow to import

            ranks.own(lambda: (work / MOMENTS_FOLDER).mkdir(exist_ok=True))  # no rank but sees it
            save_moments(work / MOMENTS_FOLDER, policy, optimizer)
        ranks.from_first(lambda: fill(work))
        ranks.from_first(stack.pop_all().close)
    ranks.from_first(lambda: _remove_all_but(folder, keep))
    return path


def _remove_all_but(folder: RunFolder, keep: int) -> None:
    """Leave the newest `keep` checkpoints."""
    for step in folder.checkpoints()[:-keep]:
        folder.remove_checkpoint(step)


def save_final_model(
    folder: RunFolder,
    policy: Policy,
    *,
    step: int,
    weights: Mapping[str, Tensor] | None = None,
    merged: Mapping[str, Tensor] | None = None,
) -> None:
    """Write `model/`, with the step it is of, whole or not at all; with the `weights` of a sharded policy; with a
    `merged` state a policy with an adapter as a whole model, and the adapter in `model/adapter/`."""
    with _errors_as_os(folder.model_dir), atomic_dir(folder.model_dir, replace=True) as work:
        if merged is None:
            policy.save(work, weights)
        else:
            policy.save(work, merged, merged=True)
            policy.save(work / ADAPTER_FOLDER, weights)
        (work / STEP_FILE).write_text(json.dumps({"step": step}), encoding="utf-8")


def final_model_step(folder: RunFolder) -> int | None:
    """The step that `model/` is of, or None where there is none."""
    try:
        return int(json.loads((folder.model_dir / STEP_FILE).read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


class DamagedCheckpoint(RunError):  # noqa: N818  (reads better where it is caught)
    """A checkpoint that is incomplete, or not as it was written."""


def read_state(path: Path) -> TrainingState:
    """The state of a checkpoint, after checking that every file in it is as it was written.

    Raises:
        DamagedCheckpoint: It is incomplete or damaged; an earlier one may serve.
        RunError: It is of another version of grouprl.
    """
    try:
        record: dict[str, Any] = json.loads((path / "state.json").read_text(encoding="utf-8"))
        checksum = record.pop("checksum")
        if checksum != _checksum_of(record):
            raise DamagedCheckpoint(f"{path}: state.json is damaged (its checksum differs)")
        if record["version"] != STATE_VERSION:
            raise RunError(
                f"{path}: a checkpoint of version {record['version']}, expected {STATE_VERSION}; "
                "resume it with the grouprl that wrote it"
            )
        inside = path.resolve()
        for name, checksum in record["files"].items():
            file = (path / name).resolve()
            if not (file.is_relative_to(inside) and file.is_file()):
                raise DamagedCheckpoint(f"{path}: {name} is no file of this checkpoint")
            if _checksum(file) != checksum:
                raise DamagedCheckpoint(f"{path}: {name} is damaged (its checksum differs)")
        return TrainingState(**record["state"])
    except PermissionError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedCheckpoint(f"{path}: not a complete checkpoint ({error})") from error


def load_optimizer(path: Path, policy: Policy, optimizer: torch.optim.Optimizer) -> None:
    """The optimizer's moments from a checkpoint; its settings stay those it was made with. Whether they were saved
    whole or in slices, and are wanted so, is all the same, as is the number of ranks.

    Pickled code in the file is never run.

    Raises:
        RunError: It holds something else than the moments of these parameters.
    """
    from grouprl.training.moments import load_moments, sliced_moments  # slow to import

    file, slices = path / OPTIMIZER_FILE, path / MOMENTS_FOLDER
    try:
        if slices.exists():
            load_moments(slices, policy, optimizer)
            return
        saved = torch.load(file, map_location="cpu", weights_only=True)
        optimizer.load_state_dict(
            {
                "state": sliced_moments(saved["state"], optimizer),
                "param_groups": optimizer.state_dict()["param_groups"],
            }
        )
    except (
        pickle.UnpicklingError,
        RuntimeError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        AssertionError,
        EOFError,
    ) as error:
        raise RunError(
            f"{slices if slices.exists() else file}: holds no optimizer's moments ({type(error).__name__}), expected "
            "those that grouprl wrote; remove this checkpoint to go on from the one before it"
        ) from error


def read_estimator_state(path: Path) -> str | None:
    """The estimator's state of a checkpoint that `read_state` has checked; None where it has none."""
    return _read_if_there(path / ESTIMATOR_FILE)


def read_curriculum_state(path: Path) -> str | None:
    """What was known of the prompts at a checkpoint that `read_state` has checked; None without a curriculum."""
    return _read_if_there(path / CURRICULUM_FILE)


def _read_if_there(file: Path) -> str | None:
    return file.read_text(encoding="utf-8") if file.exists() else None


def _checksum_of(record: dict[str, Any]) -> int:
    """CRC-32 of a record's canonical JSON."""
    return zlib.crc32(json.dumps(record, sort_keys=True).encode())


@contextmanager
def _errors_as_os(path: Path) -> Iterator[None]:
    """A full disk as an OSError, whoever met it: torch and safetensors raise errors of their own."""
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise OSError(errno.EIO, f"cannot be written ({reason}); is the disk full?", str(path)) from error


def _checksum(path: Path) -> list[int]:
    """Size and CRC-32."""
    size, crc = 0, 0
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            size += len(block)
            crc = zlib.crc32(block, crc)
    return [size, crc]
