"""From prompts to what is trained on, with a scripted sampler: which prompts a step takes, and what it drops."""

from collections import Counter

import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from grouprl.policy import EncodedPrompt
from grouprl.tasks import Task, make_rewards
from grouprl.training import Listener, config_from_dict
from grouprl.training.clock import Clock
from grouprl.training.collect import Collector
from grouprl.training.curriculum import Curriculum
from grouprl.training.prompts import order_of_epoch
from grouprl.types import Prompt

KINDS = {
    "all_high": [1.0, 1.0, 1.0, 1.0],
    "all_low": [0.0, 0.0, 0.0, 0.0],
    "informative": [1.0, 0.0, 0.0, 0.0],
    "single": [None, 1.0, None, None],
    "unscored": [None, None, None, None],
}


def collector(kinds, *, prompts_per_step=2, max_new_tokens=8, lengths=(1, 1, 1, 1), **sampling):
    """Prompt i's group gets the rewards of kinds[i]; completion j has lengths[j] tokens."""
    config = config_from_dict(
        {
            "rollout": {
                "group_size": 4,
                "prompts_per_step": prompts_per_step,
                "max_new_tokens": max_new_tokens,
            },
            "sampling": sampling,
        }
    )

    def by_kind(completions, kind):
        return [KINDS[k][i % 4] for i, k in enumerate(kind)]

    prompts = [Prompt(str(i), f"prompt {i}", {"kind": kind}) for i, kind in enumerate(kinds)]
    task = Task("scripted", prompts, [], make_rewards(by_kind))
    encoded = [EncodedPrompt(p, p.content, (5, 6)) for p in task.train]
    engine = Scripted(lengths)
    made = Collector(
        config, task, engine, encoded, curriculum=Curriculum(config.sampling), listener=Listener()
    )
    return made, engine.calls


class Scripted:
    """An engine whose completions have given lengths; what it was asked for is in `calls`."""

    def __init__(self, lengths):
        self.lengths, self.calls = lengths, []

    def generate(self, drawn, *, stream, earlier, **options):
        self.calls.append([p.prompt.prompt_id for p in drawn])
        groups = []
        for i, p in enumerate(drawn):
            group = tiny.group(
                [5, 6], [[7] * n for n in self.lengths], group_id=f"{stream}/{len(earlier) + i}"
            )
            groups.append(type(group)(group.group_id, p.prompt, p.text, p.token_ids, group.completions))
        return groups


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=7),
    st.integers(1, 4),
    st.integers(0, 4),
    st.integers(0, 2),
)
def test_each_epoch_visits_each_prompt_once_under_any_pattern_of_drops(kinds, wanted, rounds, skip_epochs):
    made, calls = collector(
        kinds, prompts_per_step=wanted, max_sampling_rounds=rounds, skip_epochs=skip_epochs
    )
    position, skipped = 0, Counter()
    for step in range(1, 7):
        calls.clear()
        found = made.collect(step=step, position=position, clock=Clock())
        made.curriculum.commit()
        size = len(kinds)
        visited = [
            str(i)
            for epoch in range(found.position // size + 1)
            for i in order_of_epoch(size, seed=0, epoch=epoch).tolist()
        ][position : found.position]
        drawn = [prompt_id for call in calls for prompt_id in call]
        # What was drawn is what was visited, in order, but for what was passed over.
        assert len(drawn) + sum(found.skipped.values()) == len(visited)
        remaining = iter(visited)
        assert all(prompt_id in remaining for prompt_id in drawn)
        if not skip_epochs:
            assert drawn == visited
        assert [g.prompt.prompt_id for g in found.groups] == drawn
        assert [g.group_id for g in found.groups] == [f"train/{step}/{i}" for i in range(len(drawn))]
        check_counts(found, kinds, wanted, rounds, calls)
        position, skipped = found.position, skipped + found.skipped
    assert sum(skipped.values()) == 0 or skip_epochs


def check_counts(found, kinds, wanted, rounds, calls):
    dynamic = rounds > 1
    of = [kinds[int(g.prompt.prompt_id)] for g in found.groups]
    informative = of.count("informative")
    assert found.rounds == len(calls) <= max(rounds, 1)
    assert all(1 <= len(call) <= wanted for call in calls)
    assert len(calls[0]) == wanted
    if dynamic:
        assert len(found.used_groups) == informative
        assert informative >= wanted or found.rounds == rounds
        for reason in ("all_high", "all_low", "single", "unscored"):
            assert found.groups_dropped(reason) == of.count(reason)
        assert informative < 2 * wanted
    else:
        assert len(found.used_groups) == wanted
        assert found.dropped == [None] * 4 * wanted


def test_a_later_round_draws_what_is_missing_by_the_share_so_far():
    """Four wanted. One of four in round 1: three are missing, at a quarter each 12, capped at 4. Then 3 of 8: one is
    missing, 8 / 3 = 3 prompts."""
    order = order_of_epoch(12, seed=0, epoch=0).tolist()
    kinds = ["all_low"] * 12
    for place in (0, 4, 5, 9, 10):
        kinds[order[place]] = "informative"
    made, calls = collector(kinds, prompts_per_step=4, max_sampling_rounds=5)
    found = made.collect(step=1, position=0, clock=Clock())
    assert [len(call) for call in calls] == [4, 4, 3]
    # Both that round 3 found are trained on: five groups, one more than wanted, and nothing was drawn in vain.
    assert len(found.used_groups) == 5
    assert found.position == 11


def test_rounds_run_out():
    made, _ = collector(["all_low", "all_high", "all_low"], prompts_per_step=2, max_sampling_rounds=3)
    found = made.collect(step=1, position=0, clock=Clock())
    assert (found.rounds, found.position, found.used_groups, found.kept) == (3, 6, [], [])
    assert found.groups_dropped("all_low") == 4
    assert found.groups_dropped("all_high") == 2
    assert found.resampling_s > 0


def test_punishment_shapes_the_reward_after_correctness_was_judged():
    """L_max 20, L_cache 4: lengths 16, 17, 18, 20 lose 0, 1/4, 1/2 and all of the factor."""
    made, _ = collector(
        ["all_high"],
        prompts_per_step=1,
        max_new_tokens=20,
        lengths=(16, 17, 18, 20),
        overlong_buffer_tokens=4,
        overlong_penalty=0.5,
    )
    found = made.collect(step=1, position=0, clock=Clock())
    assert found.scores.components["overlong"] == [0.0, -0.125, -0.25, -0.5]
    assert found.scores.rewards == [1.0, 0.875, 0.75, 0.5]
    assert found.correctness == [1.0] * 4
    assert found.dropped == [None] * 4  # without dynamic sampling the lengths teach


def test_dynamic_sampling_does_not_look_at_the_punishment():
    made, _ = collector(
        ["all_high", "informative"],
        prompts_per_step=1,
        max_sampling_rounds=4,
        lengths=(1, 5, 8, 8),
        overlong_buffer_tokens=8,
    )
    found = made.collect(step=1, position=0, clock=Clock())
    assert [g.prompt.prompt_id for g in found.used_groups] == ["1"]
    assert found.groups_dropped("all_high") == len(found.groups) - 1


def test_selection_looks_at_the_shaped_reward():
    """Right ones of 1 token and of 8, wrong ones of 8: highest and lowest are 1 and −1."""
    made, _ = collector(
        ["informative"],
        prompts_per_step=1,
        lengths=(1, 1, 8, 1),
        overlong_buffer_tokens=8,
        train_group_size=2,
    )
    found = made.collect(step=1, position=0, clock=Clock())
    assert found.scores.rewards == [0.875, -0.125, -1.0, -0.125]
    assert found.dropped == [None, "down_sampled", None, "down_sampled"]
    assert found.kept == [0, 2]
    assert [len(c.token_ids) for c in found.used_groups[0].completions] == [1, 8]
    assert found.used_scores.rewards == [0.875, -1.0]
    assert found.over_all(["a", "b"]) == ["a", None, "b", None]
