"""GGUF files written anew with weights in another type: what `tensorplug quantize` does."""
