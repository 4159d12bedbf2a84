"""The policy's weights on their way to vLLM, by vLLM's own weight-transfer API.

    init_weight_transfer_engine → [start_weight_update → update_weights, in parts → finish_weight_update], each update

Three ways, behind one interface: the tensors themselves (one process), safetensors files in a folder that both see (one
machine; the back end is grouprl's own, `integrations.vllm`), and NCCL (GPUs; the back end is vLLM's).
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from grouprl.errors import RolloutError
from grouprl.policy import Policy
from grouprl.policy.lora import merged_parameters

BACKEND = "grouprl"
"""Under this name `integrations.vllm` registers its back end with vLLM."""
PART_BYTES = 2**30
"""Of a file, about: so much room is needed beside the weights on both sides."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  (a folder of mode 0700 is made in it)


class WeightClient(Protocol):
    """vLLM's `VLLMWeightSyncClient`, with what has to follow a hand-over."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None: ...

    def start_weight_update(self) -> None: ...

    def update_weights(self, update_info: Any) -> None: ...

    def finish_weight_update(self, weight_version: str | None = None) -> None: ...

    def reset_prefix_cache(self) -> None: ...


class HandOver(Protocol):
    """A way for the weights."""

    backend: str

    def open(self, client: WeightClient, policy: Policy, dtype: torch.dtype) -> None:
        """Make the way ready, for an engine that has just started."""
        ...

    def send(self, client: WeightClient, policy: Policy, dtype: torch.dtype) -> None:
        """Give the engine the policy's weights of now."""
        ...

    def close(self) -> None:
        """Let go of what it holds. A second call does nothing."""
        ...


class TensorHandOver:
    """Within one process: the engine copies from the policy's own tensors."""

    backend = BACKEND

    def open(self, client: WeightClient, policy: Policy, dtype: torch.dtype) -> None:
        """See `HandOver.open`."""
        client.init_weight_transfer_engine({})

    def send(self, client: WeightClient, policy: Policy, dtype: torch.dtype) -> None:
        """See `HandOver.send`; the engine rounds to its own type as it copies."""
        client.start_weight_update()
        client.update_weights({"weights": checkpoint_weights(policy)})
        client.finish_weight_update()

    def close(self) -> None:
        """Nothing is held."""


class FileHandOver:
    """On one machine: parts of about `PART_BYTES`, as files of a folder that is the user's alone, in shared memory
    where there is room. Each is removed once it is read."""

    backend = BACKEND

    def __init__(self) -> None:
        self._folder: Path | None = None

    def open(self, client: WeightClient, policy: Policy, dtype: torch.dtype) -> None:
        """See `HandOver.open`."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="grouprl-weights-", dir=_roomy_folder()))
        client.init_weight_transfer_engine({"folder": str(self._folder)})

    def send(self, client: WeightClient, policy: Policy, dtype: torch.dtype) -> None:
        """See `HandOver.send`."""
        from safetensors.torch import save_file

        if self._folder is None:
            raise RolloutError("vllm: weights were to be sent before the way was open; call open first")
        client.start_weight_update()
        for number, part in enumerate(_parts(checkpoint_weights(policy), dtype)):
            file = self._folder / f"part-{number}.safetensors"
            try:
                save_file(part, file)
                client.update_weights({"file": file.name})
            finally:
                file.unlink(missing_ok=True)
        client.finish_weight_update()

    def close(self) -> None:
        """Remove the folder."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


class NcclHandOver:
    """Between GPUs, by vLLM's own NCCL back end: the trainer broadcasts, each of the engine's workers receives.

    The trainer's GPU must be none of the engine's: NCCL does not connect a device with itself.

    Args:
        workers: Of the engine: its tensor-, pipeline- and data-parallel ranks together.
    """

    backend = "nccl"

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._engine: Any = None

    def open(self, client: WeightClient, policy: Policy, dtype: torch.dtype) -> None:
        """See `HandOver.open`. It returns once all workers have joined."""
        from vllm.distributed.weight_transfer import ParamMeta, WeightSource, WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        class Source(WeightSource):
            """The policy's weights, in the engine's type."""

            def metadata(self) -> list[Any]:
                return [ParamMeta(name, dtype, tuple(x.shape)) for name, x in checkpoint_weights(policy)]

            def __iter__(self) -> Iterator[tuple[str, Tensor]]:
                return ((name, x.to(dtype)) for name, x in checkpoint_weights(policy))

        self._engine = WeightTransferTrainerFactory.trainer_init(
            NCCLTrainerInitInfo(
                rank=0,
                master_address="127.0.0.1",
                master_port=free_port(),
                world_size=self.workers + 1,
            ),
            client=client,
            source=Source(),
        )

    def send(self, client: WeightClient, policy: Policy, dtype: torch.dtype) -> None:
        """See `HandOver.send`; vLLM's trainer engine makes the calls of the update itself, and reads the policy that
        the way was opened for."""
        self._engine.send_weights()

    def close(self) -> None:
        """Leave the process group."""
        if self._engine is not None:
            with suppress(Exception):  # the other side may be gone
                self._engine.shutdown()
            self._engine = None


@torch.no_grad()
def checkpoint_weights(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """The weights by the names that a checkpoint has, one at a time, an adapter added to those that it adapts.

    The tensors are the policy's own: to be read, not kept.
    """
    model = policy.model
    own = {n.replace(".base_layer.", "."): p for n, p in model.named_parameters() if ".lora_" not in n}
    pairs = ((name, tensor.detach()) for name, tensor in merged_parameters(model))
    if _named_as_saved(model, own):
        yield from pairs
    else:  # transformers fuses experts, say, as it loads them
        from transformers.core_model_loading import revert_weight_conversion

        yield from revert_weight_conversion(model, dict(pairs)).items()


def _named_as_saved(model: Any, own: Mapping[str, Tensor]) -> bool:
    """Whether the parameters have the names that a checkpoint has. Asked with tensors that have no storage."""
    from transformers.core_model_loading import revert_weight_conversion

    shapes = {name: torch.empty(p.shape, device="meta") for name, p in own.items()}
    try:
        return set(revert_weight_conversion(model, shapes)) == set(own)
    except Exception:  # a conversion that looks at values: then there is one
        return False


def _parts(weights: Iterator[tuple[str, Tensor]], dtype: torch.dtype) -> Iterator[dict[str, Tensor]]:
    """In host memory, in the engine's type, in parts of about `PART_BYTES`."""
    part: dict[str, Tensor] = {}
    size = 0
    for name, tensor in weights:
        kept = tensor.to("cpu", dtype if tensor.is_floating_point() else tensor.dtype).contiguous()
        part[name] = kept
        size += kept.nbytes
        if size >= PART_BYTES:
            yield part
            part, size = {}, 0
    if part:
        yield part


def _roomy_folder() -> str | None:
    """Shared memory where it has room for two parts; else None, the system's temporary folder."""
    try:
        roomy = os.access(SHARED_MEMORY, os.W_OK) and shutil.disk_usage(SHARED_MEMORY).free > 2 * PART_BYTES
    except OSError:
        roomy = False
    return str(SHARED_MEMORY) if roomy else None


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
