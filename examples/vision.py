"""A small network for images, from NumPy weights, on two devices: python vision.py opencl:0 cpu."""

import sys

import numpy as np

import tensorplug as tp

rng = np.random.default_rng(0)


def weights(*shape: int) -> np.ndarray:
    """Random weights in the place of trained ones."""
    fan_in = np.prod(shape[1:])
    return rng.standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(fan_in))


def bars(count: int) -> np.ndarray:
    """Images of 28 x 28 with one bright row each, as [count, channels, height, width]."""
    images = np.zeros((count, 1, 28, 28), np.float32)
    for i, image in enumerate(images):
        image[0, 4 + 2 * i] = 1
    return images


def network(first: tp.Tensor, second: tp.Tensor, last: tp.Tensor, images: tp.Tensor) -> tp.Tensor:
    """Two convolutions with pooling, then a layer of ten classes."""
    x = tp.pool_2d(tp.relu(tp.conv_2d(first, images, padding=1, name="conv 1")), 2, stride=2)
    x = tp.pool_2d(tp.relu(tp.conv_2d(second, x, padding=1, name="conv 2")), 2, stride=2)
    x = x.reshape(images.shape[0], -1)
    return tp.soft_max(x @ last.T, name="classes")


tp.load_all()
names = sys.argv[1:] or ["cpu", "cpu"]
with tp.open(names[0]) as front, tp.open(names[-1]) as back:
    images = tp.input("images", (4, 1, 28, 28), tp.F32)
    y = network(
        front.place("first", weights(8, 1, 3, 3), usage=tp.WEIGHTS),
        front.place("second", weights(16, 8, 3, 3), usage=tp.WEIGHTS),
        back.place("last", weights(10, 16 * 7 * 7), usage=tp.WEIGHTS),
        images,
    )
    with tp.Scheduler([front, back]).schedule(y) as run:
        for split in run.splits:
            print(f"{run.device_of(split.nodes[0])}: {', '.join(n.op for n in split.nodes)}")
        classes = run.run({images: bars(4)})[y]
        print("most likely classes:", classes.argmax(axis=1).tolist())
