"""Experts over two devices: the tokens of one device, and only the weights in use travel."""

from pathlib import Path

import pytest

import tensorplug as tp
from tensorplug import Backend, Tensor
from tensorplug_llm import LanguageModel, load_model
from tensorplug_llm.testing import LoneText, tiny_models

from .placements import OPENCL

MODEL = tiny_models.TINY_MODELS["qwen3moe"].sizes
USED, LAYERS = MODEL["expert_used_count"], MODEL["block_count"]
EXPERT = 3 * 4 * MODEL["embedding_length"] * MODEL["expert_feed_forward_length"]
"""Bytes of one expert: gate, up and down in f32."""
PROMPT = tiny_models.prompt("qwen3moe")
LARGEST_RESULT = 4 * MODEL["embedding_length"] * USED


class Moves:
    """Notes the bytes of each copy to a stream."""

    def __init__(self, stream: Backend) -> None:
        self.sizes: list[int] = []
        stream.watches = (*stream.watches, self)  # type: ignore[assignment]

    def moves(self, _by: object, _source: object, _target: object, size: int) -> None:
        self.sizes.append(size)

    def __getattr__(self, _name: str) -> object:
        return lambda *_: None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tiny_models.write("qwen3moe", tmp_path / "m.gguf")
    return tmp_path / "m.gguf"


def tokens(model: LanguageModel) -> list[int]:
    with LoneText(model, 64, kv=tp.F32) as text:
        return text.continued(PROMPT, 12)


@pytest.mark.skipif(not OPENCL, reason="there is no OpenCL device")
@pytest.mark.parametrize("layers", [[1, 2], [0, 3]], ids=str)
def test_experts_on_two_devices_give_the_tokens_of_one(layers: list[int], path: Path) -> None:
    with tp.open("cpu@tensorplug-cpu") as cpu, tp.open(OPENCL[0]) as gpu:
        with load_model(path, [cpu]) as model:
            expected = tokens(model)
        with load_model(path, [gpu, cpu], layers=layers) as model:
            found = tokens(model)

    assert found == expected


@pytest.mark.skipif(not OPENCL, reason="there is no OpenCL device")
def test_only_experts_in_use_are_copied(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tp.open("cpu@tensorplug-cpu") as cpu, tp.open(OPENCL[0]) as gpu:

        def takes_experts(node: Tensor) -> bool:
            return node.op == "mul_mat_id"

        # The products are computed on the device although their weights are in host memory.
        monkeypatch.setattr(gpu.device, "offload", takes_experts)
        with (
            load_model(path, [gpu, cpu], layers=[0, LAYERS]) as model,
            LoneText(model, 64, kv=tp.F32) as text,
        ):
            text.prefill(PROMPT)
            moves = Moves(gpu)
            text.decode(9)

    weights = [size for size in moves.sizes if size > LARGEST_RESULT]
    assert sum(weights) == LAYERS * USED * EXPERT
