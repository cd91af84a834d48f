"""Semantic search over a folder: python search.py MODEL FOLDER QUERY."""

import sys
from pathlib import Path

import numpy as np

import tensorplug as tp
from tensorplug_llm import load_model

model_name, folder, query = sys.argv[1:]
passages = [
    (path.name, passage)
    for path in sorted(Path(folder).glob("*.txt"))
    for passage in path.read_text(encoding="utf-8").split("\n\n")
]

with tp.open("best") as device, load_model(model_name, [device]) as model:
    vectors = model.embed([passage for _, passage in passages])  # f32 [passages, size]
    (wanted,) = model.embed([query])

lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(wanted)
scores = vectors @ wanted / lengths
for i in np.argsort(-scores)[:3]:
    name, passage = passages[i]
    print(f"{scores[i]:.2f}  {name}: {' '.join(passage.split())[:60]}")
