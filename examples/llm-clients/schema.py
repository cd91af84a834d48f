"""An answer that is JSON of a schema."""

import os
from typing import Literal

from openai import OpenAI
from pydantic import BaseModel


class Colour(BaseModel):
    """What the answer must be."""

    name: Literal["red", "green", "blue"]
    warm: bool


client = OpenAI()
answer = client.chat.completions.parse(
    model=os.environ.get("MODEL") or client.models.list().data[0].id,
    messages=[{"role": "user", "content": "Which colour has the sky?"}],
    response_format=Colour,
    max_tokens=100,
)
print(repr(answer.choices[0].message.parsed))
