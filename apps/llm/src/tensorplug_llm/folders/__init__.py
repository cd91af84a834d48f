"""Models as Hugging Face has them: a folder with config.json, tokenizer.json and *.safetensors.

A folder is read as if it were a GGUF file: `open_folder` gives a `ModelFile` with GGUF's names.
"""

from tensorplug_llm.folders.folder import Folder, open_folder

__all__ = ["Folder", "open_folder"]
