"""A chat, whole."""

import os

from openai import OpenAI

client = OpenAI()
answer = client.chat.completions.create(
    model=os.environ.get("MODEL") or client.models.list().data[0].id,
    messages=[
        {"role": "system", "content": "You answer in one sentence."},
        {"role": "user", "content": "What is a tensor?"},
    ],
    max_tokens=60,
)
print(answer.choices[0].message.content)
