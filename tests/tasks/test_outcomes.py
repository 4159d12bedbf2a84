"""Verdicts: numbers in every way, counted by their outcome."""

import copy
import pickle

from grouprl.tasks import Reward, Verdict, score
from grouprl.types import Completion, Group, Prompt


def group(*texts: str) -> Group:
    completions = tuple(Completion((5,), (-0.1,), (True,), text, "stop") for text in texts)
    return Group("g", Prompt("p", "?"), "?", (1,), completions)


class Graded:
    outcomes = ("good", "bad", "absent")

    def __call__(self, completions):
        graded = {"g": Verdict(2.0, "good"), "b": Verdict(0.0, "bad"), "n": Verdict(float("nan"), "bad")}
        return [graded.get(text) for text in completions]


def test_a_verdict_is_its_number() -> None:
    verdict = Verdict(0.5, "half")
    assert verdict + 1 == 1.5
    assert isinstance(verdict, float)
    for twin in (copy.deepcopy(verdict), pickle.loads(pickle.dumps(verdict))):
        assert (twin, twin.outcome) == (0.5, "half")


def test_outcomes_are_counted_beside_the_scores() -> None:
    scores = score([Reward("r", Graded(), 0.5)], [group("g", "b", "?", "n")])
    assert scores.rewards == [1.0, 0.0, None, None]
    assert scores.components == {"r": [2.0, 0.0, None, None]}
    assert not any(isinstance(value, Verdict) for value in scores.components["r"])
    assert scores.outcomes == {"r": ["good", "bad", None, None]}
    assert scores.outcome_shares() == {
        "reward_r_good_share": 0.25,
        "reward_r_bad_share": 0.25,
        "reward_r_absent_share": 0.0,
    }
    assert scores.nonfinite == 1


def test_a_plain_function_may_return_verdicts_and_a_plain_reward_has_no_outcomes() -> None:
    def unlisted(completions):
        return [Verdict(1.0, "found")] + [0.0] * (len(completions) - 1)

    def plain(completions):
        return [1.0] * len(completions)

    scores = score([Reward("u", unlisted), Reward("p", plain)], [group("a", "b")])
    assert scores.outcome_shares() == {"reward_u_found_share": 0.5}
    assert score([Reward("r", Graded())], []).outcome_shares() == {}
