"""The in-the-box embedder's adapter, on a tiny real ONNX model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fakes_kb import TINY_WORDS, write_tiny_onnx_embedder
from kb.embedders.onnx import OnnxEmbedder
from kb.errors import ModelError, RetrievalError
from kb.models import ModelSpec, find_spec
from kb.types import Vector

DIMENSION = 16
SPEC = find_spec("bge-small-en-v1.5").model_copy(
    update={
        "dimension": DIMENSION,
        "query_prefix": "represent this sentence ",
        "passage_prefix": "",
        "max_tokens": 6,
    }
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tiny_onnx_embedder(tmp_path, DIMENSION)
    return tmp_path


def _embedder(folder: Path, **fields: object) -> OnnxEmbedder:
    spec: ModelSpec = SPEC.model_copy(update=fields)
    return OnnxEmbedder(spec, folder)


def _cosine(one: Vector, other: Vector) -> float:
    return float(one @ other)


def test_vectors_are_of_unit_length_and_come_in_the_given_order(folder: Path) -> None:
    embedder = _embedder(folder)
    matrix = embedder.embed_passages(list(TINY_WORDS))
    assert matrix.shape == (len(TINY_WORDS), DIMENSION)
    assert matrix.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(matrix, axis=1), 1, atol=1e-6)
    for row, word in zip(matrix, TINY_WORDS, strict=True):
        np.testing.assert_array_equal(row, embedder.embed_passages([word])[0])


def test_the_query_prefix_goes_on_queries_and_never_on_passages(folder: Path) -> None:
    embedder = _embedder(folder, max_tokens=64)
    query = embedder.embed_query("warfarin dose")
    plain, prefixed = embedder.embed_passages(
        ["warfarin dose", "represent this sentence warfarin dose"]
    )
    np.testing.assert_array_equal(query, prefixed)
    assert _cosine(query, plain) < 0.99


def test_the_passage_prefix_goes_on_passages(folder: Path) -> None:
    with_prefix = _embedder(folder, max_tokens=64, passage_prefix="this ")
    plain = _embedder(folder, max_tokens=64, query_prefix="")
    np.testing.assert_array_equal(
        with_prefix.embed_passages(["dose"])[0], plain.embed_query("this dose")
    )


def test_a_text_longer_than_the_window_is_cut_to_it(folder: Path) -> None:
    embedder = _embedder(folder, query_prefix="", max_tokens=6)  # Two are [CLS] and [SEP].
    full = embedder.embed_query("warfarin ibuprofen dose of")
    np.testing.assert_array_equal(full, embedder.embed_query("warfarin ibuprofen dose of the the"))
    assert _cosine(full, embedder.embed_query("warfarin ibuprofen dose")) < 0.9999
    assert embedder.embed_query("dose " * 10_000).shape == (DIMENSION,)


def test_no_padding_counts_in_the_vector(folder: Path) -> None:
    # The tokenizer's file pads to 512; the tiny model would average the padding in.
    one, other = _embedder(folder, max_tokens=64).embed_passages(["warfarin", "ibuprofen"])
    assert _cosine(one, other) < 0.95


@pytest.mark.parametrize("text", ["", " ", "???", "用量", "\x00"])
def test_a_text_without_known_words_has_a_vector_all_the_same(folder: Path, text: str) -> None:
    assert np.isfinite(_embedder(folder).embed_query(text)).all()


def test_no_passages_make_an_empty_matrix(folder: Path) -> None:
    assert _embedder(folder).embed_passages([]).shape == (0, DIMENSION)


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json"])
def test_a_missing_or_broken_file_is_named(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"half a file")
    with pytest.raises(ModelError, match=name):
        _embedder(folder)
    (folder / name).unlink()
    with pytest.raises(ModelError, match=name):
        _embedder(folder)


def test_a_model_of_another_dimension_than_its_catalogue_entry_is_refused(folder: Path) -> None:
    with pytest.raises(RetrievalError):
        _embedder(folder, dimension=DIMENSION * 2).embed_passages(["dose"])
