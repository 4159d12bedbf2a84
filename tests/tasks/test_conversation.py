"""A prompt's content: what is accepted as it stands, and what each refusal says."""

from typing import Any

import pytest

from grouprl.errors import TaskError
from grouprl.tasks import Reward, Task
from grouprl.tasks.conversation import read_content
from grouprl.types import Prompt

USER = {"role": "user", "content": "Hi"}


def test_text_stays_as_it_is() -> None:
    assert read_content(" Hi\r\n") == " Hi\r\n"


def test_messages_become_a_tuple_of_plain_dicts() -> None:
    given = [{"role": "system", "content": ""}, {**USER, "name": "Ada", "tool_calls": None}]
    assert read_content(given) == ({"role": "system", "content": ""}, {**USER, "name": "Ada"})
    assert read_content(({"role": "tool", "content": "3"},))[0] == {"role": "tool", "content": "3"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the prompt is blank"),
        (" \n", "the prompt is blank"),
        ("a\ud800b", "half a surrogate pair at character 2"),
        (None, "of type NoneType, expected text or a list of messages"),
        (7, "of type int"),
        (b"Hi", "of type bytes"),
        (USER, "of type dict, expected text or a list of messages"),
        ([], "an empty list"),
        (["Hi"], "message 1 of the prompt is of type str"),
        ([{"role": "user"}], "message 1 of the prompt has no 'content'"),
        ([USER, {"role": None, "content": "Hi"}], "message 2 of the prompt has no 'role'"),
        ([{"role": "human", "content": "Hi"}], "has role 'human', expected one of system"),
        ([{"role": ["user"], "content": "Hi"}], "has role"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
            "'content' of type list, expected text",
        ),
        ([{**USER, "tool_calls": [1]}], "'tool_calls' of type list"),
        ([{"role": "user", "content": "\udc00"}], "half a surrogate pair"),
        ([USER, {"role": "assistant", "content": "Ho"}], "last message is of role 'assistant'"),
        ([{"role": "system", "content": "Ho"}], "last message is of role 'system'"),
        ([{"role": "user", "content": " "}], "last message is blank"),
    ],
)
def test_refusals(content: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_content(content)


def test_a_system_prompt_before_each_conversation() -> None:
    reward = Reward("any", lambda completions: [0] * len(completions))
    user = {"role": "user", "content": "Hi"}
    task = Task(
        "t",
        [Prompt("a", (user,))],
        [Prompt("b", (user, {"role": "assistant", "content": "?"}, user))],
        (reward,),
    )
    changed = task.with_system_prompt("Be brief.")
    assert [p.content[0] for p in (*changed.train, *changed.heldout)] == [
        {"role": "system", "content": "Be brief."}
    ] * 2
    assert changed.heldout[0].content[1:] == task.heldout[0].content
    assert changed.fingerprint() != task.fingerprint()


def test_plain_text_gets_a_system_prompt_as_its_first_paragraph() -> None:
    """As DeepSeek-R1-Zero asks a base model, which has no chat template."""
    reward = Reward("any", lambda completions: [0] * len(completions))
    task = Task("t", [Prompt("a", "2 + 2 ="), Prompt("b", (USER,))], [Prompt("c", "3 + 3 =")], (reward,))
    changed = task.with_system_prompt("Think first.")
    assert changed.train[0].content == "Think first.\n\n2 + 2 ="
    assert changed.train[1].content == ({"role": "system", "content": "Think first."}, USER)
    assert changed.heldout[0].content == "Think first.\n\n3 + 3 ="


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            ({"role": "system", "content": "x"}, {"role": "user", "content": "Hi"}),
            r"data.jsonl, line 1: prompt 'a': .*role 'system' already.*leave system_prompt out",
        ),
        (
            ({"role": "developer", "content": "x"}, {"role": "user", "content": "Hi"}),
            "role 'developer' already",
        ),
    ],
)
def test_a_system_prompt_where_it_has_no_place(content: Any, problem: str) -> None:
    reward = Reward("any", lambda completions: [0] * len(completions))
    task = Task("t", [Prompt("a", content)], [], (reward,), origins={"a": "data.jsonl, line 1"})
    with pytest.raises(TaskError, match=problem):
        task.with_system_prompt("Be brief.")
    with pytest.raises(TaskError, match="expected text that is not blank"):
        task.with_system_prompt(" ")
