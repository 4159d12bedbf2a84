"""Estimators by name: what they declare, a user's own, and the checks of declared laws."""

import pytest
import torch

from grouprl import advantages
from grouprl.errors import InputError

NAMES = [
    *("grpo", "dr_grpo", "rloo", "remax", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "batch_std"),
    *("opo", "gpg", "maxrl", "mean_abs", "median", "pass_at_k", "gdpo", "jspo", "quantile", "ngrpo", "spo"),
    *("gigpo", "gae"),
]


@pytest.fixture
def own():
    """A name that is forgotten afterwards."""
    yield "my_own"
    if "my_own" in advantages.names():
        advantages.unregister("my_own")


def test_all_are_there_by_name_and_as_attributes():
    assert set(NAMES) == set(advantages.names())
    for name in NAMES:
        estimator = advantages.get(name)
        assert estimator.name == name
        assert estimator.function is getattr(advantages, name)
        assert estimator.summary.endswith(".")
        assert estimator.equation
        assert "arxiv.org" in estimator.source
        assert ("bounded" in estimator.laws) == (estimator.bound is not None)


@pytest.mark.parametrize("name", NAMES)
def test_descriptions_read_well(name):
    text = advantages.describe(name)
    assert text.startswith(f"{name}: ")
    assert max(map(len, text.splitlines())) <= 120
    for part in ("scope", "needs", "bound", "laws", "source"):
        assert f"\n{part} " in text


def test_an_unknown_name_gets_a_hint():
    with pytest.raises(InputError, match="did you mean 'rloo'"):
        advantages.get("rlo")
    with pytest.raises(InputError, match="expected one of grpo"):
        advantages.get("nonsense")
    with pytest.raises(InputError):
        advantages.describe("nonsense")


def test_an_acronym_keeps_its_capitals():
    assert advantages.describe("ngrpo").startswith("ngrpo: GRPO with a virtual")
    assert advantages.describe("grpo").startswith("grpo: each reward")
    with pytest.raises(InputError):
        advantages.get(3)


def test_a_users_own(own):
    @advantages.register(own, laws={"equal_is_zero", "zero_sum", "finite"})
    def estimate(rewards, group_ids=None, *, factor=2.0):
        """Twice Dr. GRPO.

            A_i = 2 (R_i − mean(R))

        Source: ours, https://example.org.
        """
        return factor * advantages.dr_grpo(rewards, group_ids).clamp(-1e30, 1e30)

    estimator = advantages.get(own)
    assert estimator.function is estimate
    assert (estimator.summary, estimator.equation) == ("Twice Dr. GRPO.", "A_i = 2 (R_i − mean(R))")
    assert estimator.source == "ours, https://example.org."
    assert estimator([1.0, 0.0]).tolist() == [1.0, -1.0]
    assert estimator.start(factor=4.0)([1.0, 0.0]).tolist() == [2.0, -2.0]
    assert estimator.accepts("factor")
    assert not estimator.accepts("eps")
    advantages.check_laws(own)
    advantages.check_laws(estimator, factor=3.0, seed=7)


def test_one_without_a_docstring(own):
    advantages.register(own)(lambda rewards, group_ids=None: rewards)
    assert "no description" in advantages.describe(own)
    assert "none declared" in advantages.describe(own)
    advantages.check_laws(own)


WRONG = {
    "equal_is_zero": lambda r, ids=None: r.clone(),
    "single_is_zero": lambda r, ids=None: r + 1.0,
    "zero_sum": lambda r, ids=None: r + 1.0,
    "shift_invariant": lambda r, ids=None: r.nan_to_num(0.0, 0.0, 0.0),
    "scale_invariant": lambda r, ids=None: r.nan_to_num(0.0, 0.0, 0.0) + 1.0,
    "permutation_equivariant": lambda r, ids=None: torch.arange(len(r)) * 1.0,
    "batch_independent": lambda r, ids=None: r * len(r),
    "bounded": lambda r, ids=None: r + 3.0,
    "finite": lambda r, ids=None: r - r.mean(),
    "unscored_absent": lambda r, ids=None: r.nan_to_num(0.0, 0.0, 0.0) + 1.0,
}


@pytest.mark.parametrize("law", WRONG)
def test_each_check_catches_what_breaks_its_law(own, law):
    bound = {"bound": lambda n: 1.0} if law == "bounded" else {}
    advantages.register(own, laws={law}, **bound)(WRONG[law])
    with pytest.raises(AssertionError, match=rf"^{own}: .* does not hold"):
        advantages.check_laws(own)


def test_the_textbook_breaks_them(own):
    """In a matrix; mean and std of each group as usually written."""

    @advantages.register(own, laws={"equal_is_zero"})
    def textbook(rewards, group_ids=None):
        out = torch.zeros_like(rewards)
        for name in group_ids.unique():
            group = rewards[group_ids == name]
            out[group_ids == name] = (group - group.mean()) / (group.std(unbiased=False) + 1e-6)
        return out

    with pytest.raises(AssertionError, match="without spread"):
        advantages.check_laws(own, cases=200)


def test_registering_twice(own):
    def estimate(rewards, group_ids=None):
        return rewards

    advantages.register(own)(estimate)
    advantages.register(own, laws={"finite"})(estimate)
    assert advantages.get(own).laws == {"finite"}
    with pytest.raises(InputError, match="is free"):
        advantages.register(own)(lambda rewards: rewards)
    with pytest.raises(InputError, match="is free"):
        advantages.register("grpo")(estimate)


@pytest.mark.parametrize(
    ("name", "keywords", "message"),
    [
        ("not a name", {}, "identifier"),
        (3, {}, "identifier"),
        ("x", {"scope": "world"}, "scope is 'world'"),
        ("x", {"needs": {"luck"}}, "needs holds 'luck'"),
        ("x", {"laws": {"murphy"}}, "laws holds 'murphy'"),
        ("x", {"laws": {"bounded"}}, "bound is missing"),
        ("x", {"bound": lambda n: n}, "lack 'bounded'"),
    ],
)
def test_unusable_declarations(name, keywords, message):
    with pytest.raises(InputError, match=message):
        advantages.register(name, **keywords)


def test_check_laws_refuses_unknown_laws():
    with pytest.raises(InputError, match="murphy"):
        advantages.check_laws("grpo", laws=["murphy"])
