"""Two steps of three groups of four, and the files that each format makes of them, as its documentation has it.

A prompt is drawn twice side by side in step 1, so a run of eight rows is two groups.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import NamedTuple

NAN = float("nan")
GROUP_SIZE = 4


class Row(NamedTuple):
    step: int
    draw: str
    prompt_number: int
    place: int
    prompt: str
    completion: str
    reward: float

    @property
    def scored(self) -> bool:
        return not math.isnan(self.reward)


_DRAWS = [
    (1, "a", 0, "What is 2 + 2?", [("4", 1.0), ("5", 0.0), ("four", 1.0), ("", NAN)]),
    (1, "b", 1, "What is 2 + 2?", [("4", 1.0)] * 4),
    (1, "c", 2, "Größe «π»? 😀", [("3", 0.5), ("3\n", 0.25), ("\x1b[31m", 0.0), ("</think>", -1.0)]),
    (2, "d", 0, "Größe «π»? 😀", [("3", 0.0)] * 4),
    (2, "e", 1, 'Say "yes"\\no', [("yes", 1.0), ("no", 0.0), ("yes", 1.0), ("no", 0.0)]),
    (2, "f", 2, "What is 2 + 2?", [("4", 1.0), ("5", 0.0), ("6", 0.0), ("7", 0.0)]),
]
ROWS = [
    Row(step, draw, number, place, prompt, completion, reward)
    for step, draw, number, prompt, completions in _DRAWS
    for place, (completion, reward) in enumerate(completions)
]
STEPS = (1, 2)


def of(step: int) -> list[Row]:
    return [row for row in ROWS if row.step == step]


def tokens(text: str) -> list[int]:
    return [ord(character) for character in text]


def lines(path: Path, records: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def grouprl(folder: Path) -> None:
    from grouprl.records import write_rollouts

    for step in STEPS:
        rows = [
            {
                "schema_version": 1,
                "step": row.step,
                "group_id": row.draw,
                "prompt_id": row.prompt,
                "sample_index": row.place,
                "prompt": row.prompt,
                "completion": row.completion,
                "reward": row.reward,
                "scored": row.scored,
                "advantage": 0.0,
                "advantage_estimator": "grpo",
            }
            for row in of(step)
        ]
        write_rollouts(folder / "rollouts" / f"step_{step:05d}.parquet", rows)


def trl(folder: Path) -> None:
    import polars as pl

    for step in STEPS:
        path = folder / "completions" / f"completions_{step:05d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pl.DataFrame(
            {
                "step": [step] * len(of(step)),
                "prompt": [row.prompt for row in of(step)],
                "completion": [row.completion for row in of(step)],
                "right": [row.reward for row in of(step)],
                "advantage": [0.0] * len(of(step)),
            }
        ).write_parquet(path)


def verl(folder: Path) -> None:
    for row in ROWS:
        record = {
            "input": row.prompt,
            "output": row.completion,
            "gts": "4",
            "score": row.reward,
            "step": row.step,
        }
        lines(folder / f"{row.step}.jsonl", [record])


def verl_uid(folder: Path) -> None:
    for row in ROWS:
        record = {
            "input": row.prompt,
            "output": row.completion,
            "gts": "4",
            "score": row.reward,
            "step": row.step,
        }
        lines(folder / f"{row.step}.jsonl", [record | {"uid": f"{row.draw}_{row.place}_0"}])


def verifiers(folder: Path) -> None:
    for row in ROWS:
        prompt = {"role": "user", "content": row.prompt}
        answer = {"role": "assistant", "content": row.completion}
        trace = {
            "agent": {"name": "solver", "trainable": True},
            "nodes": [
                {"message": prompt, "sampled": False, "token_ids": [1, 2], "mask": [False, False]},
                {
                    "parent": 0,
                    "message": answer,
                    "sampled": True,
                    "token_ids": [3, 4, 5],
                    "mask": [False, True, True],
                    "logprobs": [-0.5, -1.5],
                    "advantages": [0.25, 0.25],
                },
            ],
            "rewards": {"right": {"score": row.reward, "weight": 1.0}} if row.scored else {"right": None},
            "calls": [{"finish_reason": "stop"}],
            "ok": row.scored,
        }
        judge = {"agent": {"name": "judge", "trainable": False}, "nodes": [], "rewards": {}}
        lines(
            folder / "traces.jsonl",
            [
                {
                    "id": f"{row.draw}-{row.place}",
                    "env": {"id": "sums"},
                    "task": {"type": "Sum", "data": {}, "key": row.prompt},
                    "group": {"id": row.draw},
                    "run": {"type": "train", "id": "r", "work": {"type": "train", "step": row.step}},
                    "traces": [trace, judge],
                }
            ],
        )


def open_instruct(folder: Path) -> None:
    for index, row in enumerate(ROWS):
        lines(
            folder / "run_rollouts_000000.jsonl",
            [
                {
                    "step": row.step,
                    "sample_idx": index % 12,
                    "prompt_idx": row.prompt_number,
                    "prompt_tokens": tokens(row.prompt),
                    "response_tokens": tokens(row.completion),
                    "reward": row.reward,
                    "advantage": 0.25,
                    "finish_reason": "stop",
                    "dataset": "sums",
                    "ground_truth": ["4"],
                    "request_info": {"num_calls": 0},
                    "logprobs": [-0.5, -1.5],
                }
            ],
        )


def tinker_cookbook(folder: Path) -> None:
    for row in ROWS:
        lines(
            folder / f"iteration_{row.step:06d}" / "train_rollout_summaries.jsonl",
            [
                {
                    "schema_version": 1,
                    "split": "train",
                    "iteration": row.step,
                    "group_idx": row.prompt_number,
                    "traj_idx": row.place,
                    "tags": ["sums"],
                    "sampling_client_step": row.step,
                    "total_reward": row.reward,
                    "final_reward": row.reward,
                    "trajectory_metrics": {},
                    "steps": [
                        {"step_idx": 0, "ob_len": 7, "ac_len": 3, "reward": 0.0, "episode_done": False},
                        {"step_idx": 1, "ob_len": 12, "ac_len": 2, "reward": 0.0, "episode_done": True},
                    ],
                    "final_ob_len": 14,
                }
            ],
        )


def nemo_rl(folder: Path) -> None:
    for index, row in enumerate(ROWS):
        prompt = tokens(row.prompt)
        lines(
            folder / "exp_001" / f"train_data_step{row.step}.jsonl",
            [
                {
                    "content": [[row.prompt, row.completion]],
                    "rewards": [row.reward],
                    "input_lengths": [len(prompt) + 2],
                    "token_ids": [[*prompt, 7, 8, 0, 0]],
                    "token_loss_mask": [[0] * len(prompt) + [1, 1, 0, 0]],
                    "sample_loss_mask": [1.0],
                    "advantages": [[0.0] * len(prompt) + [0.25, 0.25, 0.0, 0.0]],
                    "generation_logprobs": [[0.0] * len(prompt) + [-0.5, -1.5, 0.0, 0.0]],
                    "prev_logprobs": [[0.0] * len(prompt) + [-1.0, -1.0, 0.0, 0.0]],
                    "idx": index % 12,
                }
            ],
        )


def roll(folder: Path) -> None:
    for step in STEPS:
        columns = {
            "id": [row.prompt for row in of(step)],
            "domain": ["math"] * 12,
            "prompt": [row.prompt for row in of(step)],
            "responses": [row.completion for row in of(step)],
            "scores": [row.reward for row in of(step)],
            "global_step": [step] * 12,
        }
        lines(folder / f"rollout_dump_data.step_{step}.jsonl", [columns])


def ms_swift(folder: Path) -> None:
    for step in STEPS:
        columns = {
            "step": [str(step)] * 12,
            "prompt": [row.prompt for row in of(step)],
            "completion": [row.completion for row in of(step)],
            "Accuracy": [row.reward for row in of(step)],
            "advantages": [0.0] * 12,
        }
        lines(folder / "v0-1" / "completions.jsonl", [columns])


def areal(folder: Path) -> None:
    for row in ROWS:
        lines(
            folder / "rollout" / str(row.step) / f"{10 * row.step + row.prompt_number}.jsonl",
            [
                {
                    "task_id": 10 * row.step + row.prompt_number,
                    "sample_idx": row.place,
                    "seqlen": 9,
                    "prompt_len": 7,
                    "head_version": row.step,
                    "tail_version": row.step,
                    "reward": row.reward,
                    "prompt": row.prompt,
                    "completion": row.completion,
                }
            ],
        )


def art(folder: Path) -> None:
    """As version 2 of the file: one more group, of which no trajectory came back, is a row without one."""
    import polars as pl

    for step in STEPS:
        path = folder / "trajectories" / "train" / f"{step:04d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        messages = [
            [
                {"role": "user", "content": row.prompt, "trainable": False},
                {"role": "assistant", "content": row.completion, "trainable": True},
            ]
            for row in of(step)
        ]
        pl.DataFrame(
            {
                "format_version": [2] * 13,
                "group_index": [*(row.prompt_number for row in of(step)), 3],
                "trajectory_index": [*(row.place for row in of(step)), None],
                "reward": [*(row.reward for row in of(step)), None],
                "metrics": ['{"turns":1}'] * 13,
                "messages": [*messages, None],
            }
        ).write_parquet(path, compression="zstd")


def table(folder: Path) -> None:
    for row in ROWS:
        record = {
            "uid": row.draw,
            "answer": row.completion,
            "value": row.reward,
            "at": row.step,
            "asked": row.prompt,
        }
        lines(folder / "rows.jsonl", [record])


TABLE_COLUMNS = {
    "group_id": "uid",
    "completion": "answer",
    "reward": "value",
    "step": "at",
    "prompt": "asked",
}
