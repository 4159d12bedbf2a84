"""Prompts and reward functions: what the policy is asked, and how its answers are scored.

task             a Task is prompts to train on, prompts held out, and rewards
loading          load(name or file) → Task; names()
arithmetic_task  the quickstart: sums of two small numbers
reasoning_gym_task  families of reasoning-gym: reasoning_gym_rewards scores answers, reasoning_gym_worker is the
                 process that makes problems and knows the right answers; mixture: several by weight
worker_pool      processes for work on text that nobody may trust, with limits; worker_process is their side
files            prompts from JSON Lines, Parquet and CSV, or hub; conversation checks each one
math_rows        GSM8K's and MATH's columns as prompts and answers
split            which prompts are held out
reward_specs     a reward from "module:function", a built-in name or a function
named_rewards    the built-in names, and the options that some take
http_reward      a reward that a server computes
builtin_rewards  last_integer, last_number, exact_match, only_number
math_reward      answers compared exactly, or by math-verify: final_answers finds them, math_values reads them,
                 math_worker compares formulas
format_rewards   tags; length_rewards: linear, soft overlong, cosine
answers          the number in a model's answer, read exactly
checking         everything about a task's rewards that can fail before training does so there
columns          which keywords a reward function is called with
outcomes         a score that says why: counted apart in the metrics
scoring          groups of completions → one reward each, or None
"""

from grouprl.tasks.arithmetic_task import arithmetic
from grouprl.tasks.checking import check_rewards
from grouprl.tasks.loading import load, names
from grouprl.tasks.outcomes import Verdict
from grouprl.tasks.reward_specs import RewardLike, make_rewards, reward_from_spec
from grouprl.tasks.scoring import Scores, score
from grouprl.tasks.task import Reward, RewardFunction, Task

__all__ = [
    "Reward",
    "RewardFunction",
    "RewardLike",
    "Scores",
    "Task",
    "Verdict",
    "arithmetic",
    "check_rewards",
    "load",
    "make_rewards",
    "names",
    "reward_from_spec",
    "score",
]
