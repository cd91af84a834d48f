"""One model on two machines: python two_machines.py MODEL ADDRESS NODE NODE.

Each NODE is a host name or address of the Ray cluster at ADDRESS. Without these three, both devices
are processes of this machine.
"""

import sys

import tensorplug as tp
import tensorplug_ray
from tensorplug_llm import generate, load_model

model_name, *cluster = sys.argv[1:]
if cluster:
    address, *nodes = cluster
    devices = [{"open": "cpu", "node": node} for node in nodes]
    first, second = tensorplug_ray.connect(address, devices=devices)
else:
    first, second = tensorplug_ray.connect(devices=["cpu?threads=1", "cpu?threads=1"])

with (
    first.open() as a,
    second.open() as b,
    tp.open("cpu") as here,
    load_model(model_name, [a, b, here]) as model,
    model.session(context=512) as session,
):
    prompt = model.tokenizer.encode("The capital of France is")
    print(repr(model.tokenizer.decode(list(generate(session, prompt, tokens=2)))))
    print("layers on each device:", model.placement.counts)
