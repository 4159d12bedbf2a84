"""reasoning-gym's families as tasks: their problems, which are held out, and how answers are scored."""

import json
import re
from collections import Counter
from fractions import Fraction

import pytest

from grouprl import tasks
from grouprl.errors import RewardError, TaskError
from grouprl.tasks.reasoning_gym_rewards import Answers, FamilyItem, tagged_answer
from grouprl.tasks.reasoning_gym_task import open_pool
from grouprl.tasks.worker_pool import Failure, WorkerPool
from grouprl.types import Completion, Group

pytest.importorskip("reasoning_gym")

NO_GOLD = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
"""Families that give no answer of their own, as many are right; their scorer looks at what an answer does."""


@pytest.fixture(scope="module")
def pool():
    made = open_pool(time_limit_s=60, processes=1)
    yield made
    made.close()


@pytest.fixture(scope="module")
def sums():
    return tasks.load("reasoning-gym:chain_sum", size=30, heldout=10, max_terms=3, workers=1)


def rewards(task, prompt, *texts):
    """Each component of completions of one prompt, by name, and the totals, as a step scores them."""
    completions = tuple(Completion((1,), (-1.0,), (True,), text, "stop") for text in texts)
    scores = tasks.score(task.rewards, [Group("g", prompt, "p", (1,), completions)])
    return scores.rewards, scores.components


def entry(pool, family, seed=0, options=None, index=0):
    """An item of a family, and a function from an answer to its score."""
    given = json.dumps(options or {})
    (made,) = pool.ask(
        {
            "ask": "items",
            "family": family,
            "options": given,
            "seed": seed,
            "size": 8,
            "first": index,
            "count": 1,
        }
    )
    request = {"ask": "score", "family": family, "options": given, "entry": made["entry"]}
    return made, lambda answer: pool.ask({**request, "answer": answer})


# Which answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>1</answer> then <answer>2</answer>", "2"),
        ("<answer>5", None),
        ("no tag", None),
        ("<answer> -4\n</answer>", "-4"),
        ("<answer>1</answer> then <answer>2", "1"),
        ("<answer></answer>", ""),
        ("</answer>7<answer>", None),
        ("</answer><answer>7</answer>", "7"),
        ("<answer>5 and <answer>6</answer>", "6"),
        ("<answer>1</answer></answer>", "1"),
        ("<answer>a</answer>b</answer>c</answer>", "a"),
        ("<ANSWER>1</ANSWER>", None),
        ("", None),
    ],
)
def test_the_last_closed_tag(text, answer):
    assert tagged_answer(text) == answer


def test_a_hostile_text_takes_linear_time():
    assert tagged_answer("<answer>" * 100_000 + "</answer>" * 100_000) == ""


def test_the_whole_completion_where_the_task_says_so():
    task = tasks.load("reasoning-gym:chain_sum", size=2, heldout=0, answer="whole", workers=1)
    prompt = task.train[0]
    gold = prompt.fields["answer"]
    assert prompt.content[0]["content"].endswith("\n\nReply with only the answer.")
    total, parts = rewards(task, prompt, f" {gold}\n", f"<answer>{gold}</answer>", " \n")
    assert total == [1, 0, 0]
    assert parts["answered"] == [1, 1, 0]


# What is right


def test_only_a_score_of_one_is_right(sums):
    """Case 76: partial credit for text round the answer is recorded, and is not success."""
    prompt = sums.train[0]
    gold = prompt.fields["answer"]
    total, parts = rewards(
        sums,
        prompt,
        f"<answer> {gold}\n</answer>",
        f"<answer>{gold}.0</answer>",
        f"<answer>{gold} extra</answer>",
        f"<answer>The answer is {gold}</answer>",
        f"The answer is {gold}",
        "<answer></answer>",
        "<answer>x</answer>",
    )
    n = len(gold)
    assert total == [1, 1, 0, 0, 0, 0, 0]
    assert parts["right"] == total
    assert parts["score"] == [
        1,
        1,
        n / (n + 6),
        n / (n + 14),
        0,
        0,
        0,
    ]  # the share of the text that is the answer
    assert parts["answered"] == [1, 1, 1, 1, 0, 0, 1]


def test_basic_arithmetic_of_case_76(pool):
    _, score = next(
        found
        for found in (entry(pool, "basic_arithmetic", seed) for seed in range(200))
        if found[0]["answer"] == "-4"
    )
    assert [score(text) for text in ("-4", "-4.0", "-4 extra", "The answer is -4")] == [1.0, 0.5, 0.25, 0.125]


def test_the_first_of_several_numbers_is_no_answer(pool):
    """Case 78: the family's scorer takes the first number."""
    made, score = entry(pool, "gsm_symbolic")
    gold = made["answer"]
    assert [score(f"{gold} or 5"), score(f"5 or {gold}"), score(f"1 2 3 {gold} 4")] == [0, 0, 0]
    assert [score(gold), score(f"${gold} in all")] == [1, 1]


def test_countdown_of_case_79(pool):
    made, score = entry(pool, "countdown", 3, {"min_numbers": 4, "max_numbers": 4})
    gold, target = made["answer"], eval(made["answer"])
    assert score(gold) == 1
    assert score(str(target)) == 0.05  # the numbers are not used
    assert score(f"{gold} + 6 - 6") == 0.05
    assert score("no idea") == 0
    task = tasks.load("reasoning-gym:countdown", size=1, heldout=0, workers=1)
    total, parts = rewards(task, task.train[0], "none", "<answer>1</answer>", "<answer>1 +</answer>")
    assert total == [0, 0, 0]  # no spread: the floors of the family's score make none
    assert parts["score"] == [0, 0.05, 0.01]


def test_rounded_lists_keep_the_numbers_of_the_question(pool):
    """Case 80: number_sorting's own answers are right by its scorer and made of the question's numbers."""
    for seed in range(20):
        made, score = entry(pool, "number_sorting", seed, {"min_decimals": 2, "max_decimals": 2})
        assert made["score"] == 1
        assert all(number in made["question"] for number in json.loads(made["answer"].replace("'", '"')))
        assert score(made["answer"]) == 1


def test_the_question_states_the_format_of_a_list(pool):
    """Case 81: the separator is not for the model to guess."""
    made, score = entry(pool, "word_sorting")
    assert "comma-separated" in made["question"]
    assert score(made["answer"].replace(", ", " ")) < 1


def test_scorers_that_would_take_anything_are_not_asked(pool):
    made, score = entry(pool, "game_of_life_halting")
    wrong = {"True": "False", "False": "True"}[made["answer"]]
    assert [score(made["answer"]), score(wrong), score("5"), score("True or False")] == [1, 0, 0, 0]
    made, score = entry(pool, "puzzle24", 1)
    assert score(made["answer"]) == 1
    assert score("6+6+6+6") == 0
    assert score("(1+2+1)*6") == 0


# What a model's text can do


EVILS = [
    "__import__('pathlib').Path('{path}').touch()",
    "[__import__('os').system('touch {path}')]",
    "open('{path}', 'w')",
    "(lambda: open('{path}', 'w'))()",
    "exec(\"open('{path}', 'w')\")",
    "[c for c in [open('{path}', 'w')]]",
    "x.__class__.__base__.__subclasses__()",
    'S(\'open("{path}","w")\')',
    "sin(open('{path}', 'w'))",
]


@pytest.mark.parametrize(
    "family",
    [
        "binary_matrix",
        "spiral_matrix",
        "string_insertion",
        "n_queens",
        "countdown",
        "puzzle24",
        "simple_integration",
        "polynomial_multiplication",
    ],
)
def test_no_answer_is_run(pool, tmp_path, family):
    """Each of these families' scorers calls eval() on the answer, or SymPy's parser, which does."""
    made, score = entry(pool, family)
    for number, evil in enumerate(EVILS):
        path = tmp_path / f"evil{number}"
        reply = score(evil.replace("{path}", str(path)))
        assert isinstance(reply, Failure) or reply < 1
        assert not path.exists()
    assert score(made["answer"]) == 1


def test_a_list_of_python_still_has_its_partial_score(pool):
    made, score = entry(pool, "spiral_matrix")
    assert score(str([int(number) for number in made["answer"].split()])) == 0.1


def test_an_endless_answer_is_wrong_and_holds_up_nobody():
    """Case 69, with a scorer of reasoning-gym: 9**9**9 is computed digit by digit."""
    task = tasks.load("reasoning-gym:countdown", size=2, heldout=0, workers=1, timeout_s=4)
    prompt = task.train[0]
    gold = prompt.fields["answer"]
    total, parts = rewards(task, prompt, "<answer>9**9**9**9</answer>", f"<answer>{gold}</answer>")
    assert total == [0, 1]
    assert parts["score"] == [None, 1]
    assert parts["answered"] == [1, 1]


def test_a_scorer_that_raises_is_a_wrong_answer():
    """prime_factorization reads integers without looking."""
    task = tasks.load("reasoning-gym:prime_factorization", size=1, heldout=0, workers=1)
    prompt = task.train[0]
    total, parts = rewards(
        task, prompt, "<answer>two</answer>", f"<answer>{prompt.fields['answer']}</answer>"
    )
    assert total == [0, 1]
    assert parts["score"] == [None, 1]


def test_no_worker_is_no_score(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("raise SystemExit(3)")
    item = FamilyItem("i", "f", "q", "a", {"ask": "score"})
    broken = WorkerPool(path, time_limit_s=1, memory_limit_bytes=1 << 30, processes=1)
    answers = Answers(broken, {"i": item}, whole=True)
    with pytest.raises(RewardError, match=r"no worker comes up \(the process ended \(exit status 3\)\)"):
        answers.right(["x"], ["i"])
    with pytest.raises(RewardError, match="no item 'j', expected the task's own prompts"):
        answers.score(["x"], ["j"])


# Problems


def test_prompts_and_fields(sums):
    assert sums.name == "chain_sum"
    assert (len(sums.train), len(sums.heldout)) == (30, 10)
    prompt = sums.train[0]
    (message,) = prompt.content
    assert message["role"] == "user"
    assert message["content"].endswith(
        "\n\nWrite your final answer, and nothing else, between <answer> and </answer>."
    )
    assert set(prompt.fields) == {"family", "answer", "item"}
    assert prompt.prompt_id == prompt.fields["item"] == "chain_sum/train-0/0"
    assert sums.heldout[0].prompt_id == "chain_sum/heldout/0"
    expression = re.search(r"[0-9]+(?: [-+] [0-9]+){1,2}", message["content"])[0]
    assert eval(expression) == int(prompt.fields["answer"])


def questions(prompts):
    return [prompt.content[0]["content"] for prompt in prompts]


def test_held_out_problems_are_none_of_those_trained_on():
    """One-digit sums of two: 162 questions in all, so that most draws repeat one."""
    small = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    task = tasks.load("reasoning-gym:chain_sum", size=80, heldout=40, workers=1, **small)
    everything = questions(task.train) + questions(task.heldout)
    assert len(set(everything)) == 120
    other = tasks.load("reasoning-gym:chain_sum", size=80, heldout=40, seed=1, workers=1, **small)
    assert questions(other.heldout) == questions(task.heldout)
    assert questions(other.train) != questions(task.train)
    assert not set(questions(other.train)) & set(questions(other.heldout))
    with pytest.raises(
        TaskError,
        match=r"chain_sum gave \d+ different questions beside 40 held out in .* tries, expected 400",
    ):
        tasks.load("reasoning-gym:chain_sum", size=400, heldout=40, workers=1, **small)


@pytest.mark.parametrize("family", ["chain_sum", "word_ladder", "isomorphic_strings", "ransom_note"])
def test_the_same_options_give_the_same_problems(family):
    """The last three order by sets, so that every process of a plain import gives others."""
    prints = {
        tasks.load(f"reasoning-gym:{family}", size=3, heldout=2, workers=1).fingerprint() for _ in range(2)
    }
    assert len(prints) == 1


def test_a_mixture_by_weight():
    task = tasks.load(
        "reasoning-gym:chain_sum*2+leg_counting",
        size=30,
        heldout=15,
        workers=1,
        chain_sum={"max_terms": 2},
        leg_counting={"max_animals": 3},
        instruction="",
    )
    families = [prompt.fields["family"] for prompt in task.train]
    assert (families.count("chain_sum"), families.count("leg_counting")) == (20, 10)
    assert [p.fields["family"] for p in task.heldout].count("leg_counting") == 5
    assert set(families[:3]) == {"chain_sum", "leg_counting"}
    assert task.name == "chain_sum+leg_counting"
    for prompt in task.heldout:
        total, _ = rewards(task, prompt, f"<answer>{prompt.fields['answer']}</answer>")
        assert total == [1]


def test_composite_is_a_family_too():
    task = tasks.load(
        "reasoning-gym:composite",
        size=6,
        heldout=2,
        workers=1,
        datasets=[{"name": "chain_sum"}, {"name": "game_of_life_halting", "weight": 2}],
    )
    for prompt in task.train:
        total, _ = rewards(task, prompt, f"<answer>{prompt.fields['answer']}</answer>", "<answer>x</answer>")
        assert total == [1, 0]


def test_training_on_the_score(sums):
    task = tasks.load(
        "reasoning-gym:chain_sum", size=1, heldout=0, workers=1, max_terms=2, reward_weights=[0, 1, 0]
    )
    gold = task.train[0].fields["answer"]
    total, _ = rewards(task, task.train[0], f"<answer>{gold}</answer>", f"<answer>{gold}!</answer>")
    assert total == [1, pytest.approx(Fraction(len(gold), len(gold) + 1))]


# What is refused


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("chain_sums", {}, "no family 'chain_sums' among the 106 of reasoning-gym, did you mean chain_sum"),
        ("qqq", {}, "no family 'qqq' among the 106 .*; its README lists them"),
        ("", {}, "'' is not a part of a mixture"),
        ("chain_sum", {"max_term": 3}, "no option 'max_term', expected one of .*did you mean 'max_terms'"),
        ("chain_sum", {"families": 3}, "no option 'families'"),
        ("chain_sum", {"max_terms": 1}, r"chain_sum refuses max_terms = 1 \(AssertionError: max_terms must"),
        ("chain_sum", {"max_terms": "a"}, "chain_sum refuses max_terms = 'a'"),
        ("composite", {}, "composite refuses no options .*Must specify at least one dataset"),
        ("chain_sum", {"size": 0}, "size is 0, expected an integer from 1 to 100,000"),
        ("chain_sum", {"heldout": -1}, "heldout is -1"),
        ("chain_sum", {"seed": 5000}, "seed is 5000, expected an integer from 0 to 4,000"),
        ("chain_sum", {"answer": "box"}, "answer is 'box', expected 'tag' or 'whole'"),
        ("chain_sum", {"timeout_s": 0}, "timeout_s is 0"),
        ("chain_sum", {"instruction": 3}, "instruction is 3, expected text"),
        (
            "chain_sum+leg_counting",
            {"max_terms": 3},
            "no option 'max_terms', expected one of size, .* a table",
        ),
        ("chain_sum+leg_counting", {"chain_sum": 3}, "chain_sum is 3, expected a table"),
        ("chain_sum", {"heldout_fraction": 0.1}, "heldout_fraction is for files"),
    ],
)
def test_refusals(name, options, message):
    with pytest.raises(TaskError, match=message) as caught:
        tasks.load(f"reasoning-gym:{name}", **{"workers": 1} | options)
    assert "\n" not in str(caught.value)


# Every family

NAMED_SOLUTION = {
    "graph_color": lambda metadata: json.dumps(metadata["possible_answer"]),
    "propositional_logic": lambda metadata: metadata["example_answer"],
    "rubiks_cube": lambda metadata: metadata["example_correct_answer"],
}


@pytest.mark.slow
def test_every_family_gives_problems_whose_answers_are_right():
    """One held out and two to train on of each of the 106, in one mixture: its workers start once."""
    pool = open_pool(time_limit_s=60, processes=1)
    names = pool.ask({"ask": "families"})
    pool.close()
    assert len(names) == 106
    task = tasks.load(
        f"reasoning-gym:{'+'.join(names)}",
        size=2 * len(names),
        heldout=len(names),
        timeout_s=60,
        composite={"datasets": [{"name": "chain_sum"}]},
    )
    for prompts, each in ((task.train, 2), (task.heldout, 1)):
        assert Counter(prompt.fields["family"] for prompt in prompts) == dict.fromkeys(names, each)
        golds = [prompt.fields["answer"] for prompt in prompts]
        assert {p.fields["family"] for p, gold in zip(prompts, golds) if gold is None} == NO_GOLD
        said = [["nothing", f"<answer>{gold}</answer>", "<answer>\x00</answer>"] for gold in golds]
        groups = [
            Group(
                prompt.prompt_id,
                prompt,
                "p",
                (1,),
                tuple(Completion((1,), (-1.0,), (True,), t, "stop") for t in texts),
            )
            for prompt, texts in zip(prompts, said)
        ]
        scores = tasks.score(task.rewards, groups).rewards
        for k, prompt in enumerate(prompts):
            right = float(prompt.fields["family"] not in NO_GOLD)
            assert scores[3 * k : 3 * k + 3] == [0, right, 0], prompt.prompt_id


@pytest.mark.parametrize("family", sorted(NAMED_SOLUTION))
def test_families_without_an_answer_take_a_right_one(pool, family):
    """By the solution that the item itself names; boxnet and rush_hour name none."""
    import base64
    import pickle

    made, score = entry(pool, family)
    assert made["answer"] is None
    metadata = pickle.loads(base64.b64decode(made["entry"]))["metadata"]
    assert score(NAMED_SOLUTION[family](metadata)) == 1
    assert score("nothing") != 1
