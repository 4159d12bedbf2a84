"""On a CUDA device: the CPU's bits, and no synchronisation. Without one, tests/properties pretends to have it."""

import pytest
import torch

import grouprl
from grouprl import advantages
from grouprl.sampling import informative, max_variance

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
            kept = max_variance(*on_device, size=4, valid=mask)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert torch.equal(got, again)
        assert torch.equal(got.cpu(), want)
        assert torch.equal(kept.cpu(), max_variance(rewards, ids, size=4, valid=valid))


@pytest.mark.parametrize(
    "name", [n for n in advantages.names() if advantages.get(n).scope in ("group", "batch")]
)
@pytest.mark.parametrize("layout", ["matrix", "flat"])
def test_every_estimator_without_waiting(name, layout):
    """The CPU's bits for a group's own; where the batch is summed over, to rounding."""
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randint(0, 5, (512, 12), generator=generator) / 4
    ids = None
    if layout == "flat":
        rewards, ids = rewards.flatten(), torch.randint(-99, 99, (512 * 12,), generator=generator)
    valid = torch.rand(rewards.shape, generator=generator) > 0.1
    lengths = torch.randint(1, 99, rewards.shape, generator=generator)
    greedy = torch.randint(0, 2, rewards.shape, generator=generator).float()
    estimator = advantages.get(name)
    results = []
    for device in ("cpu", "cuda"):
        x, mask, tokens, base = (t.to(device) for t in (rewards, valid, lengths, greedy))
        groups = None if ids is None else ids.to(device)
        extras = {"lengths": tokens, "greedy_rewards": base, "max_reward": 1.0, "components": [x, base]}
        keywords = {key: value for key, value in extras.items() if key in estimator.needs}
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            results.append(estimator(x, groups, valid=mask, **keywords))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    want, got = results[0], results[1].cpu()
    if estimator.scope == "group":
        assert torch.equal(got, want)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-7)
