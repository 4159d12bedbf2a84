"""On a CUDA device: the CPU's bits, and no synchronisation. Without one, tests/properties pretends to have it."""

import pytest
import torch

import grouprl
from grouprl.sampling import informative

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("layout", ["matrix", "flat"])
def test_the_cpus_bits_without_waiting(dtype, layout):
    generator = torch.Generator().manual_seed(0)
    rewards = (torch.randn(512, 12, generator=generator) * 10).to(dtype)
    ids = None
    if layout == "flat":
        rewards, ids = rewards.flatten(), torch.randint(-99, 99, (512 * 12,), generator=generator)
    valid = torch.rand(rewards.shape, generator=generator) > 0.1
    on_device = rewards.cuda(), None if ids is None else ids.cuda()
    mask = valid.cuda()
    for scale in ("std", "none"):
        want = grouprl.group_advantages(rewards, ids, scale=scale, valid=valid)
        torch.cuda.set_sync_debug_mode("error")
        try:
            got = grouprl.group_advantages(*on_device, scale=scale, valid=mask)
            again = grouprl.group_advantages(*on_device, scale=scale, valid=mask)
            grouprl.group_stats(*on_device, valid=mask)
            informative(*on_device, valid=mask)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert torch.equal(got, again)
        assert torch.equal(got.cpu(), want)
