"""The messages of a conversation, as chat templates take them. Raises ServeError."""

import json
from collections.abc import Mapping
from typing import Any

from tensorplug_llm.serve import reading
from tensorplug_llm.serve.reading import kind, refuse, shown, unsupported

ROLES = {r: r for r in ("system", "user", "assistant", "tool")} | {"developer": "system"}


def messages(name: str, value: Any) -> tuple[dict[str, Any], ...]:
    """The messages; those of the role `tool` get the name of the function that they answer."""
    if not isinstance(value, list) or not value:
        refuse(name, f"is {kind(value)}; give a list with at least one message")
    found = tuple(_message(f"{name}[{i}]", message) for i, message in enumerate(value))
    called: dict[str, str] = {}
    for i, message in enumerate(found):
        for call in message.get("tool_calls", ()):
            called[call["id"]] = call["function"]["name"]
        if message["role"] == "tool":
            if message["tool_call_id"] not in called:
                refuse(
                    f"{name}[{i}].tool_call_id",
                    f"is {shown(message['tool_call_id'])}, which no message before it called; "
                    "send the assistant's message with its tool_calls too",
                )
            message["name"] = called[message["tool_call_id"]]
    return found


def _message(name: str, value: Any) -> dict[str, Any]:
    fields = reading.fields(name, value)
    role = fields.take("role", reading.text)
    if role not in ROLES:
        refuse(f"{name}.role", f"is {shown(role)}; give one of {', '.join(ROLES)}")
    message: dict[str, Any] = {"role": ROLES[role], "content": fields.take("content", _content)}
    fields.take("name", reading.text)
    for other in ("refusal", "annotations", "reasoning_content"):  # of answers that are sent back
        fields.take(other, reading.anything)
    for other in ("function_call", "audio"):
        if fields.take(other, reading.anything):
            unsupported(f"{name}.{other}")
    if role == "assistant" and (calls := fields.take("tool_calls", _calls)):
        message["tool_calls"] = calls
        message["content"] = message["content"] or ""
    if role == "tool":
        message["tool_call_id"] = fields.given("tool_call_id", reading.text)
    if message["content"] is None:
        refuse(f"{name}.content", "is missing; give a text")
    fields.check_empty()
    return message


def _content(name: str, value: Any) -> str:
    """A text, or the joined texts of parts."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        refuse(name, f"is {kind(value)}; give a text or a list of parts")
    texts = []
    for part in value:
        sort = reading.json_object(name, part).get("type")
        if sort != "text":
            refuse(name, f"has a part of the type {shown(sort)}; this server reads text only")
        texts.append(reading.text(f"{name}.text", part.get("text")))
    return "\n".join(texts)


def _calls(name: str, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        refuse(name, f"is {kind(value)}; give a list of calls")
    return [_call(f"{name}[{i}]", call) for i, call in enumerate(value)]


def _call(name: str, value: Any) -> dict[str, Any]:
    fields = reading.fields(name, value)
    call = {"id": fields.given("id", reading.text), "type": "function"}
    if (sort := fields.take("type", reading.text)) not in (None, "function"):
        refuse(f"{name}.type", f"is {shown(sort)}; give function")
    function = fields.given("function", reading.fields)
    fields.take("index", reading.integer)  # of parts of streams that were joined
    fields.check_empty()
    called = {
        "name": function.given("name", reading.text),
        "arguments": _arguments(function.take("arguments", reading.text) or "{}"),
    }
    function.check_empty()
    return {**call, "function": called}


def _arguments(text: str) -> Mapping[str, Any] | str:
    """The arguments as templates expect them: an object, or the text where it is not JSON."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return found if isinstance(found, dict) else text
