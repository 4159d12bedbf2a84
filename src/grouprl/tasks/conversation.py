"""A prompt's content: text, or a conversation whose next turn is the model's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grouprl.types import Message

ROLES = ("system", "developer", "user", "assistant", "tool")


def read_content(value: Any) -> str | tuple[Message, ...]:
    """Check a prompt's content and make messages plain dicts in a tuple.

    Args:
        value: Text, or a sequence of mappings with "role" and "content". Further keys may hold text (a
            "name"); those that hold None are left out, as Parquet fills them in.

    Returns:
        The content of a `Prompt`.

    Raises:
        ValueError: blank text, text that is not Unicode (half a surrogate pair), no messages, a message that
            is malformed, or a last one that is not the user's or a tool's: there would be nothing to answer.

    Example:
        >>> read_content([{"role": "user", "content": "Hi", "name": None}])
        ({'role': 'user', 'content': 'Hi'},)
        >>> read_content([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}])
        Traceback (most recent call last):
        ...
        ValueError: the last message is of role 'assistant', expected 'user' or 'tool': nothing is asked
    """
    if isinstance(value, str):
        if not value.strip():
            raise ValueError("the prompt is blank, expected text")
        _check_unicode(value, "the prompt")
        return value
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        raise ValueError(f"the prompt is of type {type(value).__name__}, expected text or a list of messages")
    if not value:
        raise ValueError("the prompt is an empty list, expected at least one message")
    messages = tuple(_read_message(message, index) for index, message in enumerate(value))
    last = messages[-1]
    if last["role"] not in ("user", "tool"):
        raise ValueError(
            f"the last message is of role {last['role']!r}, expected 'user' or 'tool': nothing is asked"
        )
    if not last["content"].strip():
        raise ValueError("the last message is blank, expected text")
    return messages


def with_system_prompt(content: str | Sequence[Message], system_prompt: str) -> str | tuple[Message, ...]:
    """A prompt's content with a system prompt before it: a message of its own, or plain text's first paragraph.

    Args:
        content: The content of a `Prompt`.
        system_prompt: Text that is not blank.

    Raises:
        ValueError: A conversation that has a system prompt.

    Example:
        >>> with_system_prompt(({"role": "user", "content": "Hi"},), "Be brief.")[0]
        {'role': 'system', 'content': 'Be brief.'}
        >>> with_system_prompt("2 + 2 =", "Sums.")
        'Sums.\\n\\n2 + 2 ='
    """
    if isinstance(content, str):  # as DeepSeek-R1-Zero's template for a base model
        return f"{system_prompt}\n\n{content}"
    if content[0]["role"] in ("system", "developer"):
        raise ValueError(
            f"the prompt has a message of role {content[0]['role']!r} already, expected none beside a system prompt"
        )
    return ({"role": "system", "content": system_prompt}, *content)


def _read_message(message: Any, index: int) -> dict[str, str]:
    where = f"message {index + 1} of the prompt"
    if not isinstance(message, Mapping):
        raise ValueError(
            f"{where} is of type {type(message).__name__}, expected an object with role and content"
        )
    for key in ("role", "content"):
        if message.get(key) is None:
            raise ValueError(f"{where} has no {key!r}, expected both role and content")
    if message["role"] not in ROLES:
        raise ValueError(f"{where} has role {message['role']!r}, expected one of {', '.join(ROLES)}")
    for key, value in message.items():
        if value is not None and not isinstance(value, str):
            raise ValueError(
                f"{where} has a {key!r} of type {type(value).__name__}, expected text; images, parts and "
                "tool calls are not supported"
            )
        _check_unicode(value or "", where)
    return {key: value for key, value in message.items() if value is not None}


def _check_unicode(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where} holds half a surrogate pair at character {error.start + 1}, expected Unicode"
        ) from None
