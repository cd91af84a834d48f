"""Several chats at once: the server generates them together."""

import asyncio
import os

from openai import AsyncOpenAI

CITIES = ("Paris", "Rome", "Oslo", "Lima")


async def ask(client: AsyncOpenAI, model: str, city: str) -> str:
    """What the model says of a city."""
    answer = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": f"In which country is {city}?"}],
        max_tokens=20,
    )
    return f"{city}: {answer.choices[0].message.content}"


async def main() -> None:
    """Ask for all cities at the same time."""
    async with AsyncOpenAI() as client:
        model = os.environ.get("MODEL") or (await client.models.list()).data[0].id
        for answer in await asyncio.gather(*(ask(client, model, city) for city in CITIES)):
            print(answer)


asyncio.run(main())
