"""Embeddings and scores of rerankers: equal to llama.cpp's and to float64 arithmetic."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import tensorplug as tp
from tensorplug import Backend
from tensorplug.errors import FormatError, OptionError
from tensorplug.gguf import open_gguf
from tensorplug_llm import LanguageModel, load_model
from tensorplug_llm.arch import architecture
from tensorplug_llm.embedding import TOKENS, groups, normalized
from tensorplug_llm.errors import PromptTooLong
from tensorplug_llm.testing import LoneText, distance, tiny_models
from tensorplug_llm.testing.random_models import write_random
from tensorplug_llm.tokenizer import load_tokenizer

from .bert_in_doubles import in_double_precision
from .placements import FEW

DATA = Path(__file__).with_name("llama_cpp_embeddings.npz")
"""`make_llama_cpp_embeddings.py` writes it."""
LIMITS = dict.fromkeys(("modern-bert-odd", "nomic-bert", "qwen3-last", "qwen3-rank"), 1e-5)
"""llama.cpp takes all GELUs by the approximation with tanh, in a table of halves."""
LIMIT = 1e-3

DEVICES = [FEW[0], *(pytest.param(names, marks=pytest.mark.long) for names in FEW[1:2])]

Doubles = npt.NDArray[np.float64]


@pytest.fixture(scope="module", params=DEVICES, ids="+".join)
def streams(request: pytest.FixtureRequest) -> Iterator[Sequence[Backend]]:
    opened = [tp.open(device) for device in request.param]
    yield opened
    for backend in opened:
        backend.close(force=True)


def written(name: str, folder: Path) -> Path:
    tiny_models.write(name, folder / "model.gguf")
    return folder / "model.gguf"


@pytest.fixture
def bert(tmp_path: Path, cpu: Backend) -> Iterator[LanguageModel]:
    with load_model(written("bert", tmp_path), [cpu]) as model:
        yield model


@pytest.mark.parametrize("name", tiny_models.EMBEDDING_MODELS)
def test_embeddings_of_texts_of_unlike_length_are_those_of_llama_cpp(
    name: str, streams: Sequence[Backend], tmp_path: Path
) -> None:
    with np.load(DATA) as stored:
        expected = stored[name]

    with load_model(written(name, tmp_path), streams) as model:
        found = model.embedder().embed(tiny_models.texts(name))

    assert distance(found, expected) < LIMITS.get(name, LIMIT)


def doubles(path: Path) -> dict[str, Doubles]:
    """The weights of a file of f32."""
    with open_gguf(path) as file:
        return {
            name: np.frombuffer(file.tensor_bytes(name), np.float32)
            .reshape(tensor.ne[: tensor.rank][::-1])
            .astype(np.float64)
            for name, tensor in file.tensors.items()
        }


@pytest.mark.parametrize("name", ["bert", "bert-odd"])
def test_embeddings_are_those_of_double_precision(name: str, tmp_path: Path, cpu: Backend) -> None:
    path = written(name, tmp_path)
    weights = doubles(path)

    with load_model(path, [cpu]) as model:
        found = model.embedder().embed(tiny_models.texts(name))
        heads = model.hparams.heads
        pick = np.mean if model.embedder().pooling == "mean" else _first

    for row, ids in zip(found, tiny_models.texts(name), strict=True):
        expected = pick(in_double_precision(weights, ids, heads), axis=0)
        assert distance(row, expected) < 2e-6


def _first(states: Doubles, axis: int) -> Doubles:
    return states.take(0, axis)


def test_a_text_has_the_embedding_that_it_has_alone(bert: LanguageModel) -> None:
    texts = ["a b", "ab ac ad a b c d e f g h i j k l", "", "xyz " * 30]

    together = bert.embed(texts)

    for row, text in zip(together, texts, strict=True):
        np.testing.assert_allclose(row, bert.embed([text])[0], rtol=0, atol=2e-6)


def test_a_model_that_embedded_closes(tmp_path: Path, cpu: Backend) -> None:
    model = load_model(written("bert", tmp_path), [cpu])
    embedder = model.embedder()
    model.embed(["a b"])

    model.close()

    assert embedder.closed


def test_embeddings_have_length_one(bert: LanguageModel) -> None:
    lengths = np.linalg.norm(bert.embed(["a", "b c"]), axis=1)

    np.testing.assert_allclose(lengths, 1, rtol=1e-6)


def test_a_vector_of_zeros_stays_zeros() -> None:
    assert not normalized(np.zeros((1, 4), np.float32)).any()


def test_no_text_gives_no_embedding(bert: LanguageModel) -> None:
    assert bert.embed([]).shape == (0, 64)


def test_a_text_beyond_the_context_is_refused(bert: LanguageModel) -> None:
    with pytest.raises(PromptTooLong, match="302 tokens, and this model reads 256"):
        bert.embed(["a " * 300])


def test_a_text_beyond_the_context_can_be_cut(bert: LanguageModel) -> None:
    cut = bert.embed(["a " * 300], truncate=True)

    np.testing.assert_array_equal(cut, bert.embed(["a " * 254]))


def test_padding_beyond_the_context_has_no_position_of_its_own(
    tmp_path: Path, cpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = tiny_models.EMBEDDING_MODELS["bert"]
    narrow = replace(tiny, more={**tiny.more, "context_length": 250})  # padded to 256
    monkeypatch.setitem(tiny_models.EMBEDDING_MODELS, "narrow", narrow)
    path = written("narrow", tmp_path)

    with load_model(path, [cpu]) as model:
        ids = model.tokenizer.encode("a " * 248)
        found = model.embedder().embed([ids])[0]
        heads = model.hparams.heads
    states = in_double_precision(doubles(path), ids, heads)

    assert len(ids) == 250
    assert distance(found, states.mean(axis=0)) < 2e-6


def test_a_reranker_scores_documents_by_pairs(tmp_path: Path, cpu: Backend) -> None:
    with load_model(written("bert-rank", tmp_path), [cpu]) as model:
        scores = model.rerank("a b", ["c d", "e f g h"])
        pair = [2, *model.tokenizer.encode("a b", add_special=False), 3]
        pair += [*model.tokenizer.encode("c d", add_special=False), 3]
        alone = model.embedder().embed([pair])

    assert scores.shape == (2,)
    np.testing.assert_allclose(scores[0], alone[0, 0], rtol=1e-5)


def test_a_causal_reranker_reads_pairs_by_its_template(tmp_path: Path, cpu: Backend) -> None:
    path, sizes = tmp_path / "m.gguf", tiny_models.EMBEDDING_MODELS["qwen3-rank"].sizes
    metadata = {f"qwen3.{key}": value for key, value in sizes.items()} | tiny_models.tokenizer(
        "bpe"
    )
    metadata["tokenizer.chat_template.rerank"] = "<|endoftext|>{query}-{document}?"
    write_random(path, architecture("qwen3"), metadata)

    with load_model(path, [cpu]) as model:
        pair = model.pair("a{document}<|endoftext|>", "b")
        score = model.rerank("ab", ["c"])
        plain = model.tokenizer.encode("a{document}<|endoftext|>-b?", add_special=False)
        end = model.tokenizer.eos

    assert pair == [end, *plain]
    assert end not in plain
    assert 0 < score[0] < 1


def test_a_model_without_a_head_ranks_nothing(bert: LanguageModel) -> None:
    with pytest.raises(OptionError, match="is not a reranker"):
        bert.rerank("a", ["b"])


def test_an_encoder_continues_no_text(bert: LanguageModel) -> None:
    with pytest.raises(OptionError, match="embeds texts and continues none"):
        LoneText(bert)


def test_every_text_is_in_one_pass_that_holds_it() -> None:
    lengths = np.random.default_rng(5).integers(1, 1500, 200).tolist()
    order = sorted(range(200), key=lengths.__getitem__, reverse=True)

    passes = groups(order, lengths)

    assert sorted(i for group, _ in passes for i in group) == list(range(200))
    for group, shape in passes:
        assert len(group) == shape.texts
        assert max(lengths[i] for i in group) <= shape.length
        assert shape.texts == 1 or shape.texts * shape.length <= TOKENS


def test_words_are_cut_into_the_longest_tokens(bert: LanguageModel) -> None:
    tokens = {t: i for i, t in enumerate(bert.file.metadata["tokenizer.ggml.tokens"])}  # type: ignore[arg-type, var-annotated]

    ids = bert.tokenizer.encode("ÀB! abz")

    assert ids == [2, tokens["▁ab"], 1, tokens["▁ab"], tokens["z"], 3]


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        (b"\4\0\0\0", "do not have the sizes"),
        (b"\0\0\0\0\0", "it has no root"),
        (b"\4\0\0\0" + b"\0\4\0\0" + b"\0", "leads beyond its end"),
    ],
)
def test_damaged_rules_of_normalization_are_refused(rules: bytes, problem: str) -> None:
    metadata = {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": ["<pad>", "</s>", "<unk>", "▁a"],
        "tokenizer.ggml.precompiled_charsmap": np.frombuffer(rules, np.uint8),
    }

    with pytest.raises(FormatError, match=problem):
        load_tokenizer(metadata)


def test_a_unigram_model_takes_the_most_likely_tokens() -> None:
    tokens = {"<pad>": 0.0, "</s>": 0.0, "<unk>": 0.0, "▁a": -2.0, "b": -2.0, "▁ab": -3.0}
    metadata = {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.scores": np.array(list(tokens.values()), np.float32),
        "tokenizer.ggml.token_type": np.array([3, 3, 2, 1, 1, 1], np.int32),
        "tokenizer.ggml.remove_extra_whitespaces": True,
    }

    ids = load_tokenizer(metadata).encode("  ab   a??b ")

    assert ids == [5, 3, 2, 4, 1]
