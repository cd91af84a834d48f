"""Writes llama.cpp's logits with the adapter of lora_files.py into lora_logits.npz.

Needs llama-cpp-python 0.3.36, and the folder `llama-f16` of hf_folders.py as MODEL, a GGUF file of
type f32, with the adapter as ADAPTER, which `lora_files.write_file` writes:

    python apps/llm/tests/make_lora_logits.py MODEL ADAPTER
"""

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
hf_folders = importlib.import_module("hf_folders")
lora_files = importlib.import_module("lora_files")
made: Any = importlib.import_module("make_llama_cpp_logits")


def main() -> None:
    llama = made.llama
    oracle = made.Oracle(Path(sys.argv[1]), outputs=hf_folders.POSITIONS)
    adapter = llama.llama_adapter_lora_init(oracle._model, sys.argv[2].encode())
    adapters = (type(adapter) * 1)(adapter)
    scales = (importlib.import_module("ctypes").c_float * 1)(lora_files.SCALE)
    if llama.llama_set_adapters_lora(oracle._context, adapters, 1, scales):
        raise RuntimeError("llama_set_adapters_lora")
    found = oracle.read(hf_folders.prompt("llama-f16"), all_logits=True)
    data = made.rounded(found[list(hf_folders.RECORDED)])
    np.savez_compressed(HERE / "lora_logits.npz", logits=data)


if __name__ == "__main__":
    main()
