"""Batches that span ranks, on two and three gloo processes: the bits of one process, and errors shared by all."""

import dataclasses
import inspect
from itertools import pairwise

import numpy as np
import pytest
import torch
import worlds
from worlds import Case

import grouprl
from grouprl import advantages
from grouprl.errors import InputError

SPLITS = [(16, 7), (0, 23), (9, 0, 14), (5, 11, 7)]
N = 23
RNG = np.random.default_rng(0)
REWARDS = torch.from_numpy(RNG.random(N).round(2)).float()
REWARDS[3] = torch.nan
IDS = torch.from_numpy(RNG.integers(0, 5, N))  # interleaved: every group spans the ranks
NAMES = [f"prompt-{i}" for i in IDS.tolist()]
VALID = torch.from_numpy(RNG.random(N) < 0.8)
LENGTHS = torch.from_numpy(RNG.integers(1, 50, N))
PARTS = {"right": (REWARDS > 0.5).float(), "short": REWARDS * 3}
STEPS = torch.from_numpy(RNG.random((N, 6))).float()

EXTRAS = {
    "lengths": {"lengths": LENGTHS},
    "greedy_rewards": {"greedy_rewards": REWARDS.flip(0)},
    "components": {"components": PARTS},
    "max_reward": {},
}


def estimator_inputs(name):
    """An estimator's arguments, those per completion and the others."""
    needs = advantages.get(name).needs
    if name == "gae":
        return {"rewards": STEPS, "values": STEPS.flip(1), "mask": STEPS > 0.1}, {"gamma": 0.9}
    inputs = {"rewards": REWARDS, "group_ids": NAMES, "valid": VALID}
    for need in needs:
        inputs |= EXTRAS[need]
    if name == "gigpo":
        inputs |= {"episode_ids": LENGTHS % 3, "state_ids": [i % 4 for i in range(N)]}
    return inputs, {"max_reward": 1.0} if "max_reward" in needs else {}


WHOLE = {
    "int ids": ("group_advantages", {"rewards": REWARDS, "group_ids": IDS}, {}),
    "string ids": ("group_advantages", {"rewards": REWARDS, "group_ids": NAMES}, {"eps": 1e-4, "ddof": 1}),
    "tuple ids": ("group_advantages", {"rewards": REWARDS, "group_ids": [(n, 1) for n in NAMES]}, {}),
    "array of names": ("group_advantages", {"rewards": REWARDS, "group_ids": np.array(NAMES)}, {}),
    "0-d ids": ("group_advantages", {"rewards": REWARDS, "group_ids": list(IDS)}, {}),
    "narrow": ("group_advantages", {"rewards": REWARDS.bfloat16(), "group_ids": IDS.to(torch.uint8)}, {}),
    "double": ("group_advantages", {"rewards": REWARDS.double() * 1e300, "group_ids": IDS}, {}),
    "whole": ("group_advantages", {"rewards": LENGTHS, "group_ids": IDS}, {}),
    "strided": ("group_advantages", {"rewards": STEPS[:, 2], "group_ids": STEPS[:, 1] > 0.5}, {}),
    "array": ("group_advantages", {"rewards": REWARDS.numpy(), "group_ids": IDS.numpy()}, {}),
    "masked array": (
        "group_advantages",
        {"rewards": np.ma.masked_array(REWARDS.numpy(), ~VALID.numpy()), "group_ids": IDS.numpy()},
        {},
    ),
    "list": ("group_advantages", {"rewards": [0.5, None, 1] * 7 + [0, 0.1], "group_ids": IDS.tolist()}, {}),
    "one group": ("group_advantages", {"rewards": REWARDS}, {"scale": "none"}),
    "valid": ("group_advantages", {"rewards": REWARDS, "group_ids": IDS, "valid": VALID}, {}),
    "lengths": (
        "group_advantages",
        {"rewards": REWARDS, "group_ids": NAMES, "lengths": LENGTHS.tolist()},
        {"baseline": "length_weighted", "scale": "none"},
    ),
    "requires grad": ("group_advantages", {"rewards": STEPS[:, 0].clone().requires_grad_(), "group_ids": IDS}, {}),
    "matrix": ("group_advantages", {"rewards": STEPS}, {"scale": "batch_std"}),
    "rows of a list": ("group_advantages", {"rewards": STEPS.tolist()}, {}),
    "greedy rows": ("remax", {"rewards": STEPS, "greedy_rewards": STEPS[:, :1]}, {}),
    "components in order": ("gdpo", {"rewards": STEPS, "components": [STEPS, STEPS > 0.5]}, {"weights": [1, 2]}),
    "stacked components": ("gdpo", {"rewards": STEPS, "components": torch.stack([STEPS, STEPS.flip(1)])}, {}),
    "stats": ("group_stats", {"rewards": REWARDS, "group_ids": NAMES, "valid": VALID}, {"ddof": 1}),
    "stats of arrays": ("group_stats", {"rewards": REWARDS.numpy(), "group_ids": IDS.numpy()}, {}),
    "trackers": ("trackers", {"rewards": REWARDS, "group_ids": NAMES, "valid": VALID}, {}),
    **{f"estimator {name}": (name, *estimator_inputs(name)) for name in advantages.names()},
}  # fmt: skip


def cut(x, start, stop):
    """Some of the completions of an input."""
    if isinstance(x, dict):
        return {key: part[start:stop] for key, part in x.items()}
    if isinstance(x, list) and isinstance(x[0], torch.Tensor) and len(x) != N:
        return [part[start:stop] for part in x]
    if isinstance(x, torch.Tensor) and len(x) != N:
        return x[:, start:stop]
    return x[start:stop]


def shares(inputs, sizes):
    ends = np.cumsum([0, *sizes])
    return [{key: cut(x, a, b) for key, x in inputs.items()} for a, b in pairwise(ends)]


@pytest.fixture(scope="module")
def results():
    """Of every case, for each way to share it out."""
    found = {}
    for world in (2, 3):
        splits = [sizes for sizes in SPLITS if len(sizes) == world]
        cases = {
            **{(name, s): Case(c, shares(i, s), o) for name, (c, i, o) in WHOLE.items() for s in splits},
            **{(name, world): case for name, case in OTHERS.items() if len(case.shares) == world},
        }
        found |= dict(zip(cases, worlds.run(list(cases.values())), strict=True))
    return found


def alike(a, b):
    """The same type, dtype and bits."""
    assert type(a) is type(b), (a, b)
    if isinstance(a, torch.Tensor):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
        assert not a.requires_grad
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    else:
        for field in dataclasses.fields(a):
            alike(getattr(a, field.name), getattr(b, field.name))


def entries(result, a, b):
    if dataclasses.is_dataclass(result):
        return type(result)(*(getattr(result, f.name)[a:b] for f in dataclasses.fields(result)))
    return result[a:b]


@pytest.mark.parametrize("sizes", SPLITS, ids=str)
@pytest.mark.parametrize("name", [name for name in WHOLE if name != "trackers"])
def test_each_rank_gets_its_part_of_what_one_process_gets(results, name, sizes):
    call, inputs, options = WHOLE[name]
    function = getattr(grouprl, call) if hasattr(grouprl, call) else advantages.get(call)
    whole = function(**inputs, **options)
    ends = np.cumsum([0, *sizes])
    for got, (a, b) in zip(results[name, sizes], pairwise(ends), strict=True):
        alike(got, entries(whole, a, b))


@pytest.mark.parametrize("sizes", SPLITS, ids=str)
def test_a_tracker_learns_the_same_on_every_rank(results, sizes):
    _, inputs, _ = WHOLE["trackers"]
    tracker = advantages.spo()
    first, second = tracker(**inputs), tracker(**inputs)
    ends = np.cumsum([0, *sizes])
    for (one, two, state), (a, b) in zip(results["trackers", sizes], pairwise(ends), strict=True):
        alike(one, first[a:b])
        alike(two, second[a:b])
        assert state == tracker.state_dict()


A = {"rewards": torch.tensor([1.0, 0.0]), "group_ids": torch.tensor([0, 1])}
B = {"rewards": torch.tensor([0.0, 0.0, 1.0]), "group_ids": torch.tensor([0, 1, 1])}
HARD = {"hardness": torch.tensor([1.0, 2.0])}

OTHERS = {
    # A rank without completions has no say in kinds.
    "empty list": Case("group_advantages", [A, {"rewards": [], "group_ids": []}, B]),
    "empty double": Case("group_advantages", [{"rewards": torch.empty(0).double()}, A, B]),
    "all empty": Case("group_advantages", [{"rewards": [], "group_ids": []}] * 2),
    "empty rows": Case("group_advantages", [{"rewards": torch.empty(0, 2)}, {"rewards": torch.eye(2)}]),
    "rows of nothing": Case("group_advantages", [{"rewards": torch.empty(2, 0)}] * 2),
    "subgroup": Case("subgroup", [A, A, B]),
    # What cannot be gathered: the call, and what the message says.
    "wrong count": Case("group_advantages", [A | {"group_ids": [0, 1, 1]}, B | {"group_ids": [0, 1]}]),
    "other dtype": Case("group_advantages", [A, A, B | {"rewards": B["rewards"].double()}]),
    "other kind": Case("group_advantages", [A, B | {"rewards": B["rewards"].numpy()}]),
    "other array": Case("group_advantages", [{"rewards": np.ones(2)}, {"rewards": np.ones(2, np.float32)}]),
    "other rows": Case("group_advantages", [{"rewards": torch.eye(2)}, {"rewards": torch.eye(3)}]),
    "other option": Case("group_advantages", [A | {"eps": 1e-4}, B | {"eps": 1e-6}]),
    "no ids": Case("rloo", [A, {"rewards": B["rewards"]}]),
    "no rewards": Case("rloo", [A, {"rewards": None}, B]),
    "a number": Case("rloo", [A, {"rewards": torch.tensor(1.0)}]),
    "text": Case("rloo", [A, {"rewards": "ab"}]),
    "sparse": Case("rloo", [{"rewards": torch.eye(2).to_sparse()}, {"rewards": torch.eye(2)}]),
    "lambdas as ids": Case("lambdas as ids", [{}, {}]),
    "bad lengths": Case("opo", [A | {"lengths": [1, 2]}, B | {"lengths": [1, -1, 1]}]),
    "bad everywhere": Case("group_advantages", [A, B], {"eps": -1.0}),
    "no group": Case("no group", [{}, {}]),
    "own": Case("own", [A | HARD, A | HARD], {"per_completion": ["hardness"], "factor": 2.0}),
    "own, undeclared": Case("own", [A | HARD, A | {"hardness": torch.tensor([3.0, 4.0])}]),
    "own, too short": Case("own", [A | HARD, A | HARD], {"factor": 0.5}),
    "after all": Case("group_advantages", [A, B]),
}


def test_a_rank_without_completions_has_no_say(results):
    whole = grouprl.group_advantages(*(torch.cat([A[key], B[key]]) for key in ("rewards", "group_ids")))
    for name in ("empty list", "empty double"):
        got = results[name, 3]
        alike(torch.cat(got), whole)
        assert sorted(map(len, got)) == [0, 2, 3]
    assert [tuple(x.shape) for x in results["empty rows", 2]] == [(0, 2), (2, 2)]
    alike(results["empty rows", 2][1], grouprl.group_advantages(torch.eye(2)))


def test_no_completions_at_all(results):
    for got in results["all empty", 2]:
        alike(got, torch.empty(0))
    for got in results["rows of nothing", 2]:
        alike(got, torch.empty(2, 0))


def test_a_group_of_some_processes(results):
    outside, *inside = results["subgroup", 3]
    assert isinstance(outside, InputError)
    assert "without this process" in str(outside)
    whole = grouprl.group_advantages(*(torch.cat([A[key], B[key]]) for key in ("rewards", "group_ids")))
    alike(torch.cat(inside), whole)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong count", "group_advantages: on rank 0 group_ids has 3 entries, expected 2"),
        ("other dtype", "rewards is a tensor of float32 on cpu on rank 0 and a tensor of float64 on cpu on rank 2"),
        ("other kind", "a tensor of float32 on cpu on rank 0 and an array of float32 on rank 1"),
        ("other array", "an array of float64 on rank 0 and an array of float32 on rank 1"),
        ("other rows", r"shape \(2,\) on cpu on rank 0 and .* shape \(3,\) on cpu on rank 1"),
        ("other option", "eps is 0.0001 on rank 0 and 1e-06 on rank 1"),
        ("no ids", "rloo: group_ids is a tensor of int64 on cpu on rank 0 and missing on rank 1"),
        ("no rewards", "on rank 1 rewards is None"),
        ("a number", "on rank 1 rewards is a single number"),
        ("text", "on rank 1 rewards is a str"),
        ("sparse", "on rank 0 rewards is not a dense tensor"),
        ("lambdas as ids", "on rank 1 inputs cannot be sent"),
        ("bad lengths", "opo: lengths holds a negative"),
        ("bad everywhere", r"group_advantages: eps is -1\.0"),
        ("no group", "process_group is a str"),
        ("own, undeclared", r"own: hardness is .* on rank 0 and .*per_completion"),
    ],
)  # fmt: skip
def test_an_error_on_one_rank_is_raised_on_all(results, name, message):
    (case,) = [got for (case, _), got in results.items() if case == name]
    assert all(type(error) is InputError for error in case), case
    assert len(set(map(str, case))) == 1
    with pytest.raises(InputError, match=message):
        raise case[0]
    assert "\n" not in str(case[0])


def test_ranks_stay_in_step_after_errors(results):
    whole = grouprl.group_advantages(*(torch.cat([A[key], B[key]]) for key in ("rewards", "group_ids")))
    alike(torch.cat(results["after all", 2]), whole)


def test_ones_own_estimator(results):
    first, second = results["own", 2]
    assert first.tolist() + second.tolist() == [2.0, 2.0, 4.0, 4.0]
    # The same on both ranks, hence an option: it does not fit the whole batch.
    assert all(isinstance(error, RuntimeError) for error in results["own, too short", 2]), results[
        "own, too short", 2
    ]


def test_without_an_initialised_world():
    with pytest.raises(InputError, match="init_process_group"):
        grouprl.group_advantages([1.0, 0.0], process_group="any")


def test_every_public_function_shows_the_keyword():
    for name in advantages.names():
        function = advantages.get(name).function
        function = function.__call__ if inspect.isclass(function) else function
        assert inspect.signature(function).parameters["process_group"].default is None
        assert "process_group" in function.__doc__
        assert advantages.get(name).accepts("process_group")
