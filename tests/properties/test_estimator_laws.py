"""Every estimator by its own declaration: its laws, and what all of them hold.

Laws are checked on groups that hypothesis draws; forms (matrix, flat, arrays, dtypes, devices) on random batches.
"""

import contextlib
import math

import numpy as np
import pytest
import torch
from devices import DTYPES, NothingComesBack, device_path, out_dtype
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from grouprl import advantages, group_advantages
from grouprl.advantages.algebra import BASELINES, SCALES
from grouprl.advantages.law_batches import batch_of
from grouprl.advantages.laws import LAWS, Subject, check_law

NAMES = advantages.names()
PAIRS = [(name, law) for name in NAMES for law in LAWS if law in advantages.get(name).laws]
GROUPWISE = [name for name in NAMES if advantages.get(name).scope in ("group", "batch")]

REWARD = st.one_of(
    st.sampled_from([0.0, 1.0]),
    st.integers(0, 10).map(lambda tenths: tenths / 10),
    st.integers(0, 9).map(lambda k: 1.0 - k * 1e-5),
    st.floats(0.0, 1.0, width=32),
)
SICK = [
    [0.35] + [0.95] * 7,
    [1.0 - 1e-5] + [1.0] * 7,
    [1.0] + [0.0] * 63,
    [0.0] + [1.0] * 63,
    [1.0, 1.0 - 2.0**-20],
    [0.1] * 7,
    [0.5],
    [0.0, 1e-30],
    [0.7, 0.70001, 0.3],
]
ROWS = st.lists(
    st.one_of(st.lists(REWARD, min_size=1, max_size=9), st.sampled_from(SICK)), min_size=1, max_size=5
)


@pytest.mark.parametrize(("name", "law"), PAIRS)
@settings(max_examples=60)
@given(ROWS, st.integers(0, 2**32), st.sampled_from([torch.float32, torch.float64]))
def test_the_declared_laws_hold(name, law, rows, seed, dtype):
    rng = np.random.default_rng(seed)
    check_law(Subject(advantages.get(name)), law, batch_of(rows, rng, dtype), rng)


@pytest.mark.parametrize("name", NAMES)
def test_check_laws_agrees(name):
    advantages.check_laws(name, cases=10, seed=1)


@pytest.mark.parametrize("baseline", [name for name in BASELINES if name != "none"])
@pytest.mark.parametrize("scale", SCALES)
@settings(max_examples=40)
@given(ROWS, st.integers(0, 2**32), st.sampled_from([torch.float32, torch.float64]))
def test_no_baseline_over_any_scale_explodes(baseline, scale, rows, seed, dtype):
    """Without any eps to lean on: a deviation is at most n/(n−1) ranges, a scale at least a 32nd or Nth of one."""
    batch = batch_of(rows, np.random.default_rng(seed), dtype)
    result = group_advantages(
        batch.rewards, batch.group_ids, baseline=baseline, scale=scale, eps=0.0, lengths=batch.lengths
    )
    assert result.isfinite().all()
    assert result.abs().max().item() <= 2.0 * max(32.0, len(batch.rewards))
    for group in batch.groups():
        rewards = batch.rewards[group]
        if bool((rewards == rewards[0]).all()):
            assert not result[group].any()


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=9), st.sampled_from([0.0, 1e-6]))
def test_the_median_keeps_to_32_or_to_the_range(rewards, eps):
    result = advantages.median(rewards, eps=eps)
    assert result.abs().max().item() <= max(32.0, max(rewards) - min(rewards)) * (1 + 1e-6)


LIMITS = {
    "dr_grpo": lambda group, batch: span(group),
    "rloo": lambda group, batch: span(group),
    "opo": lambda group, batch: span(group),
    "gpg": lambda group, batch: span(group) * len(batch) / max(1, sum(span(row) > 0 for row in batch)),
    "median": lambda group, batch: max(32.0, span(group)),
    "jspo": lambda group, batch: span([reward for row in batch for reward in row]),
    "remax": lambda group, batch: span([*group, 0.0, 1.0]),
    "gigpo": lambda group, batch: math.sqrt(max(len(group) - 1, 0)),
}
"""The largest |A| of those without a bound in the number of completions alone, as docs/estimators.md has it."""


def span(rewards):
    return max(rewards) - min(rewards)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "gae"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_sick_group_explodes(name, dtype):
    """Each alone, and all in one batch, with no eps to lean on: within the declared bound, or the documented limit."""
    estimator = advantages.get(name)
    assert (estimator.bound is None) == (name in LIMITS)
    keywords = {"eps": 0.0} if estimator.accepts("eps") else {}
    for rows in [*([row] for row in SICK), SICK]:
        batch = batch_of(rows, np.random.default_rng(0), dtype)
        result = Subject(estimator, keywords)(batch)
        read = [batch.rewards[group].tolist() for group in batch.groups()]
        for row, group in zip(read, batch.groups()):
            n = Subject(estimator).size(batch, group)
            limit = estimator.bound(n) if estimator.bound else LIMITS[name](row, read)
            assert result[group].abs().max().item() <= limit * (1 + 1e-4), row


def test_core_laws_are_declared_where_the_contract_asks_for_them():
    for name in NAMES:
        laws = advantages.get(name).laws
        if name != "gae":
            assert {"finite", "unscored_absent"} <= laws
        if advantages.get(name).scope == "group" and name not in ("remax", "ngrpo"):
            assert {"equal_is_zero", "single_is_zero", "batch_independent"} <= laws


# ---- forms ----------------------------------------------------------------------------------------------


def extras(name, rewards, generator):
    """What the estimator needs, of the rewards' shape."""
    some = {
        "lengths": torch.randint(0, 9, rewards.shape, generator=generator),
        "greedy_rewards": torch.randint(0, 2, rewards.shape, generator=generator),
        "max_reward": 1.0,
        "components": [rewards, torch.randint(0, 3, rewards.shape, generator=generator)],
    }
    return {key: value for key, value in some.items() if key in advantages.get(name).needs}


def rearranged(keywords, change):
    return {
        key: change(value)
        if isinstance(value, torch.Tensor)
        else [change(x) for x in value]
        if isinstance(value, list)
        else value
        for key, value in keywords.items()
    }


def matrix(dtype, generator, rows=40, size=6):
    whole = torch.randint(0, 3, (rows, size), generator=generator)
    whole[::5] = 1
    if dtype == torch.bool or not dtype.is_floating_point:
        return (whole > 0).to(dtype)
    return (whole / 2 + torch.rand(rows, size, generator=generator).round(decimals=1) * (whole > 1)).to(dtype)


@pytest.mark.parametrize("name", GROUPWISE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_result_in_every_form(name, dtype):
    """Matrix, flat, shuffled and as on a device: the same bits where groups stand alone, else to rounding."""
    generator = torch.Generator().manual_seed(3)
    estimator = advantages.get(name)
    rewards = matrix(dtype, generator)
    valid = torch.rand(rewards.shape, generator=generator) < 0.9
    keywords = extras(name, rewards, generator)
    want = estimator(rewards, valid=valid, **keywords)
    assert want.dtype == out_dtype(dtype)
    assert want.shape == rewards.shape
    assert want.isfinite().all()
    assert not want[~valid].any()
    ids = torch.arange(len(rewards)).repeat_interleave(rewards.shape[1]) * 7 - 50
    order = torch.randperm(rewards.numel(), generator=generator)
    flat = rearranged(keywords, lambda x: x.flatten()[order])
    for on_device in (False, True):
        with device_path() if on_device else contextlib.nullcontext():
            got = estimator(rewards.flatten()[order], ids[order], valid=valid.flatten()[order], **flat)
        if estimator.scope == "group":
            assert torch.equal(got, want.flatten()[order])
        torch.testing.assert_close(got, want.flatten()[order], rtol=1e-6, atol=1e-7)
    if dtype != torch.bfloat16:
        array = estimator(rewards.numpy(), valid=valid.numpy(), **rearranged(keywords, lambda x: x.numpy()))
        assert isinstance(array, np.ndarray)
        np.testing.assert_allclose(array, want.numpy(), rtol=1e-6, atol=1e-7)
        names = [f"prompt {i}" for i in ids[order].tolist()]
        listed = estimator(
            rewards.flatten()[order].tolist(),
            names,
            valid=valid.flatten()[order].tolist(),
            **rearranged(flat, lambda x: x.tolist()),
        )
        assert isinstance(listed, torch.Tensor)
        torch.testing.assert_close(listed.double(), got.double(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", [*GROUPWISE, "gigpo"])
@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0)])
def test_no_rewards_give_an_empty_result(name, shape):
    rewards = torch.zeros(shape)
    generator = torch.Generator()
    keywords = extras(name, rewards, generator)
    assert advantages.get(name)(rewards, **keywords).shape == shape


@pytest.mark.parametrize("name", GROUPWISE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_magnitude_stays_finite(name, dtype):
    largest, tiny = torch.finfo(dtype).max, torch.finfo(dtype).tiny
    rewards = torch.tensor(
        [
            [largest, 0.0, largest / 2],
            [tiny, 0.0, 2 * tiny],
            [1.0, 1.0, 1.0],
            [0.0, 0.0, largest],
            [largest] * 3,
            [math.nan, math.inf, -math.inf],
        ],
        dtype=dtype,
    )
    for signed in (rewards, torch.where(rewards > 1.0, -rewards, rewards)):
        if name == "maxrl" and bool((signed[signed.isfinite()] < 0).any()):
            continue
        keywords = extras(name, signed, torch.Generator().manual_seed(0))
        result = advantages.get(name)(signed, **keywords)
        assert result.isfinite().all()
        assert not result[-1].any()


# ---- nothing waits for the device -----------------------------------------------------------------------


@pytest.mark.parametrize("name", [*GROUPWISE, "gigpo"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("layout", ["matrix", "flat"])
@pytest.mark.parametrize("masked", [False, True])
def test_no_operation_depends_on_values_on_a_device(name, dtype, layout, masked):
    with FakeTensorMode(), NothingComesBack():
        rewards = torch.zeros((6, 4) if layout == "matrix" else 24, dtype=dtype, device="cuda")
        ids = torch.zeros(24, dtype=torch.int64, device="cuda") if layout == "flat" else None
        valid = torch.zeros(rewards.shape, dtype=torch.bool, device="cuda") if masked else None
        some = torch.zeros(rewards.shape, dtype=torch.int64, device="cuda")
        needs = {"lengths": some, "greedy_rewards": some, "max_reward": 1.0, "components": [rewards, some]}
        estimator = advantages.get(name)
        keywords = {key: value for key, value in needs.items() if key in estimator.needs}
        if name == "gigpo" and layout == "flat":
            keywords |= {"episode_ids": some, "state_ids": some}
        result = estimator(rewards, ids, valid=valid, **keywords)
        assert result.device.type == "cuda"
        assert result.shape == rewards.shape


def test_gae_waits_for_nothing():
    with FakeTensorMode(), NothingComesBack():
        x = torch.zeros(3, 8, device="cuda")
        assert advantages.gae(x, x, mask=x > 0).device.type == "cuda"


@pytest.mark.parametrize("name", GROUPWISE)
@pytest.mark.parametrize("layout", ["matrix", "flat"])
def test_the_number_of_operations_does_not_grow_with_the_groups(name, layout):
    counts = []
    for n in (6, 1000):
        rewards = torch.arange(n * 4).remainder(7).to(torch.float32)
        ids = torch.arange(n).repeat(4) if layout == "flat" else None
        shaped = rewards if layout == "flat" else rewards.view(n, 4)
        keywords = extras(name, shaped, torch.Generator().manual_seed(0))
        with NothingComesBack() as mode:
            advantages.get(name)(shaped, ids, **keywords)
        counts.append(mode.count)
    assert counts[0] == counts[1]
