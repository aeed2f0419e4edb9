"""What the in-the-box cross-encoder puts into its window."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from deployments.engines import pair_onnx
from deployments.engines.cross_encoder import MAX_QUERY_TOKENS
from deployments.engines.pair_onnx import OnnxPair, OnnxPairModel
from kb.models import find_spec

CLS, SEP = 101, 102
SPEC = find_spec("ms-marco-MiniLM-L-12-v2")


class FakeTextModel:
    """A token is a word, its id the number that the word is; the result tells what was run."""

    def __init__(self, _folder: object, max_tokens: int, _threads: int) -> None:
        self.max_tokens = max_tokens

    def token_ids(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def frame(self, first: Sequence[int], second: Sequence[int]) -> list[int]:
        return [CLS, *first, SEP, *second, SEP]

    def run(self, ids: Sequence[int], first_length: int) -> NDArray[np.float32]:
        return np.asarray([len(ids) + first_length / 1000], dtype=np.float32)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> OnnxPairModel:
    monkeypatch.setattr(pair_onnx, "OnnxTextModel", FakeTextModel)
    return OnnxPairModel(SPEC, folder=None)  # type: ignore[arg-type]


def words(start: int, count: int) -> str:
    return " ".join(str(start + number) for number in range(count))


def test_a_pair_is_the_query_and_the_passage_framed(model: OnnxPairModel) -> None:
    (pair,) = model.prepare("1 2", ["11 12 13"])

    assert pair == OnnxPair((CLS, 1, 2, SEP, 11, 12, 13, SEP), query_length=4)
    assert pair.tokens == 8
    assert model.score(pair) == pytest.approx(8.004)


def test_passages_are_prepared_in_order(model: OnnxPairModel) -> None:
    pairs = model.prepare("1", ["11", "12", "13"])

    assert [pair.ids[3] for pair in pairs] == [11, 12, 13]


def test_a_passage_that_is_too_long_loses_its_tail(model: OnnxPairModel) -> None:
    (pair,) = model.prepare(words(1, 12), [words(1000, 600)])

    assert pair.tokens == SPEC.max_tokens
    assert pair.ids[14:-1] == tuple(range(1000, 1000 + 512 - 12 - 3))


@pytest.mark.parametrize("length", [129, 600, 10_000])
def test_a_query_that_is_too_long_leaves_the_passage_whole(
    model: OnnxPairModel, length: int
) -> None:
    (pair,) = model.prepare(words(1, length), [words(100_000, 300)])

    assert pair.ids[-301:-1] == tuple(range(100_000, 100_300))
    assert pair.ids[1 : 1 + MAX_QUERY_TOKENS] == tuple(range(1, 1 + MAX_QUERY_TOKENS))
    assert pair.query_length == MAX_QUERY_TOKENS + 2


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.integers(0, 700), st.integers(0, 700), st.integers(16, 512))
def test_the_window_is_never_exceeded_and_half_of_it_stays_for_the_passage(
    query: int, passage: int, window: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_onnx, "OnnxTextModel", FakeTextModel)
        model = OnnxPairModel(SPEC.model_copy(update={"max_tokens": window}), None)  # type: ignore[arg-type]
        (pair,) = model.prepare(words(1, query), [words(1000, passage)])

    of_query, of_passage = pair.query_length - 2, pair.tokens - pair.query_length - 1
    assert pair.tokens <= window
    assert of_query <= query
    assert of_passage == min(passage, window - 3 - of_query)
    assert of_passage >= min(passage, (window - 3) // 2)
    assert pair.ids[: of_query + 2] == (CLS, *range(1, 1 + of_query), SEP)
