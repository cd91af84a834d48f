"""A chat in ten lines: python chat.py [MODEL]; an empty line ends it."""

import sys

import tensorplug as tp
from tensorplug_llm import Engine, SamplingParams, load_model
from tensorplug_llm.chat import ChatTemplate, encode_chat

name = sys.argv[1] if sys.argv[1:] else "smollm2-135m"
with tp.open("best") as device, load_model(name, [device]) as model, Engine(model) as engine:
    template, talk = ChatTemplate.from_metadata(model.file.metadata), []
    while said := input("> "):
        talk.append({"role": "user", "content": said})
        prompt = encode_chat(model.tokenizer, template, talk)
        stream = engine.submit(prompt, SamplingParams(temperature=0, max_tokens=100))
        talk.append({"role": "assistant", "content": model.tokenizer.decode(stream.result())})
        print(talk[-1]["content"])
