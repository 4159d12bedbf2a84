"""What tests of whole runs share: comparing two, and stopping one."""

import torch
from safetensors.torch import load_file

from grouprl.training import Listener


def timeless(records):
    """Metrics but for what a clock or the machine decides."""
    return [
        {k: v for k, v in r.items() if not k.startswith(("seconds", "peak")) and not k.endswith("per_s")}
        for r in records
    ]


def weights(folder):
    return load_file(folder / "model.safetensors")


def same_weights(a, b):
    left, right = weights(a), weights(b)
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


class StopAfter(Listener):
    """Raise once a step is recorded, as Ctrl-C between two steps would."""

    def __init__(self, step):
        self.step = step

    def stepped(self, metrics, rows):
        if metrics["step"] == self.step:
            raise KeyboardInterrupt
