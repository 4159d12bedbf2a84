"""The receiving end of the hand-over of weights, in vLLM's workers. Imported by vLLM alone: see `integrations.vllm`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload


@dataclass
class InitInfo(WeightTransferInitInfo):
    """What the trainer says once.

    Args:
        folder: Where it will write files; "" where it hands over tensors.
    """

    folder: str = ""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """A part of the weights: one of the two.

    Args:
        file: The name of a safetensors file in the folder.
        weights: Tensors by the names of a checkpoint, in the same process.
    """

    file: str = ""
    weights: list[tuple[str, Tensor]] | None = None


class GrouprlWeightTransferEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Loads what it is given as a checkpoint's weights, by vLLM's layer-wise reload."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    folder: Path | None = None

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Note where files come from."""
        self.folder = Path(init_info.folder) if init_info.folder else None

    def start_weight_update(self) -> None:
        """Take the layers back to the form in which they are loaded."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load a part. On a CPU there is nothing to wait for, and torch refuses to."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Load a part.

        Raises:
            ValueError: It is neither tensors nor a file of the folder.
        """
        if update_info.weights is not None:
            self.model.load_weights(iter(update_info.weights))
            return
        name = update_info.file
        if self.folder is None or not name or Path(name).name != name:
            raise ValueError(f"grouprl: {name!r} is no file of the folder {self.folder}")
        self.model.load_weights(_tensors_of(self.folder / name))

    def finish_weight_update(self) -> None:
        """Bring the layers into the form in which they compute."""
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Nothing is held."""


def _tensors_of(path: Path) -> Iterator[tuple[str, Tensor]]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118  (no mapping)
            yield name, file.get_tensor(name)
