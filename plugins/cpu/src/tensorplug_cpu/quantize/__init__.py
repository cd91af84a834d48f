"""Copies of models as GGUF files, with weights in another type: `tensorplug quantize`."""
