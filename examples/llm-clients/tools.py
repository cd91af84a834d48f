"""A function that the model calls, and an answer from its result."""

import json
import os

from openai import OpenAI

CITIES = ["Rome", "Oslo"]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": CITIES}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def weather(city: str) -> str:
    """The weather of a city."""
    return f"It rains in {city}."


client = OpenAI()
model = os.environ.get("MODEL") or client.models.list().data[0].id
messages = [{"role": "user", "content": "How is the weather in Oslo?"}]
first = client.chat.completions.create(
    model=model, messages=messages, tools=[WEATHER], tool_choice="required", max_tokens=200
)
messages.append(first.choices[0].message)
for call in first.choices[0].message.tool_calls or ():
    result = weather(**json.loads(call.function.arguments))
    print(f"{call.function.name}({call.function.arguments}): {result}")
    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
last = client.chat.completions.create(
    model=model, messages=messages, tools=[WEATHER], tool_choice="none", max_tokens=60
)
print(last.choices[0].message.content)
