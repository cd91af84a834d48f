"""An op of one's own on each device: python custom_op/run.py."""

import numpy as np
from snake import snake

import tensorplug as tp

tp.load_all()
x = tp.input("x", (5,), tp.F32)
y = snake(x, a=2.0, name="y")
values = np.linspace(-1, 1, 5, dtype=np.float32)

for device in tp.devices():
    with (
        device.open() as stream,
        tp.open("cpu") as cpu,  # takes what the device refuses
        tp.Scheduler([stream, cpu]) as scheduler,
        scheduler.schedule(y, pins={} if device.refuses(y) else {y: stream}) as run,
    ):
        found = run.run({x: values})[y].round(4)
        print(f"{device.name}: computed by {run.device_of(y)}, {found}")
