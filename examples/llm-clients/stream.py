"""A chat as it is generated, and the number of its tokens."""

import os

from openai import OpenAI

client = OpenAI()
chunks = client.chat.completions.create(
    model=os.environ.get("MODEL") or client.models.list().data[0].id,
    messages=[{"role": "user", "content": "Tell a short story of a cat."}],
    max_tokens=60,
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in chunks:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    if chunk.usage is not None:
        print(f"\n[{chunk.usage.completion_tokens} tokens]")
