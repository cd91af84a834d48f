"""What is in a GGUF file: python gguf_tour.py [MODEL]."""

import sys
from collections import Counter

import numpy as np

from tensorplug import blocks
from tensorplug.device.buffer import human
from tensorplug.gguf import open_gguf
from tensorplug_llm import find_model

with open_gguf(find_model(*sys.argv[1:2] or ["smollm2-135m"])) as file:
    print(f"GGUF version {file.version}, {len(file.tensors)} tensors")
    for key, value in file.metadata.items():
        if isinstance(value, (str, int, float)) and len(str(value)) < 40:
            print(f"  {key} = {value}")

    count, size = Counter(), Counter()
    for tensor in file.tensors.values():
        count[tensor.dtype.name] += 1
        size[tensor.dtype.name] += tensor.nbytes
    for kind in sorted(size, key=size.__getitem__, reverse=True):
        print(f"{kind}: {count[kind]} tensors, {human(size[kind])}")

    name = "blk.0.attn_q.weight"
    tensor = file.tensors[name]
    values = blocks.decode(file.tensor_bytes(name), tensor.dtype, tensor.shape)
    print(f"{name}: {tensor.dtype.name} {list(tensor.shape)}")
    print(f"  standard deviation {values.std():.4f}, largest {np.abs(values).max():.4f}")
