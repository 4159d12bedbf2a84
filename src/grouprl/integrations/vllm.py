"""vLLM: a back end of its weight transfer that takes the policy's weights from the machine it runs on.

    vllm serve MODEL --weight-transfer-config '{"backend": "grouprl"}'

vLLM's own back ends need CUDA (NCCL, CUDA IPC). This one takes tensors where trainer and engine are one process, and
safetensors files of a folder that both see otherwise, and hands them to the model as vLLM hands over a checkpoint that
it loads anew: layer by layer, packed and quantised as at the start.

Nothing has to be imported: each of vLLM's processes looks for installed plugins and calls `register`.
"""

from __future__ import annotations

BACKEND = "grouprl"


def register() -> None:
    """Make the back end known to vLLM by its name. A second call does nothing."""
    from contextlib import suppress

    from vllm.distributed.weight_transfer import WeightTransferEngineFactory

    with suppress(ValueError):  # registered already
        WeightTransferEngineFactory.register_engine(
            BACKEND, "grouprl.integrations.vllm_weights", "GrouprlWeightTransferEngine"
        )
