"""Leafs with values, for tests that work ops out by hand."""

import numpy as np

import tensorplug as tp
from tensorplug.graph.tensor import leaf
from tensorplug_cpu import reference


def f32(values, name="x"):
    """A leaf and its stored value, to be put into one mapping."""
    array = np.asarray(values, np.float32)
    return leaf(name, array.shape, tp.F32), array


def i32(values):
    array = np.asarray(values, np.int32)
    return leaf("ids", array.shape, tp.I32), array


def value(node, *leafs):
    return reference.compute(node, dict(leafs))[node]


def random(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)
