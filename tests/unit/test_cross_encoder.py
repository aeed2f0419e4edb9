"""The reranker's engine: a model made of arithmetic, and a clock that only the model moves."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.engines import cross_encoder, pair_onnx, pair_sentence_transformers
from deployments.engines.cross_encoder import CrossEncoder, load_cross_encoder
from fakes_serve import FakeClock
from kb.errors import InputError, ModelError, StageUnavailable
from kb.models import HUB_FILES, ModelStore, find_spec

IN_THE_BOX = "ms-marco-MiniLM-L-12-v2"
ON_THE_HUB = "BAAI/bge-reranker-base"
TINY = 1e-6


@dataclass(frozen=True)
class FakePair:
    passage: str
    tokens: int


@dataclass
class FakePairModel:
    """Give a passage's length as its score; a token takes ``seconds`` of the clock."""

    clock: FakeClock
    seconds: float
    tokens: int = 10
    model_id: str = "fake-reranker"
    languages: frozenset[str] = frozenset({"en"})
    slow: Mapping[str, float] = field(default_factory=dict)
    scored: list[str] = field(default_factory=list)

    def prepare(self, query: str, passages: Sequence[str]) -> Iterator[FakePair]:
        assert query
        for passage in passages:
            yield FakePair(passage, self.tokens)

    def score(self, pair: FakePair) -> float:
        self.scored.append(pair.passage)
        self.clock.advance(self.slow.get(pair.passage, self.seconds) * pair.tokens)
        return float(len(pair.passage))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """One clock for the deadline and for the cost."""
    clock = FakeClock(0.0)
    monkeypatch.setattr(cross_encoder, "time", SimpleNamespace(time=clock, perf_counter=clock))
    return clock


def passages_of(count: int) -> list[str]:
    return ["p" * length for length in range(1, count + 1)]


def scored_in(engine: CrossEncoder[FakePair], clock: FakeClock, seconds: float) -> int:
    """Ask for twenty passages with so much time, and tell how many were scored."""
    return len(engine.rerank("q", passages_of(20), "en", clock.now + seconds).scores)


def test_every_passage_gets_its_score_in_the_given_order(clock: FakeClock) -> None:
    engine = CrossEncoder(FakePairModel(clock, seconds=0.01), clock)

    scores = engine.rerank("q", ["ccc", "a", "bb"], "en", deadline=clock.now + 60)

    assert scores.scores == (3.0, 1.0, 2.0)
    assert scores.complete
    assert scores.model_id == "fake-reranker"


def test_it_stops_before_the_pair_that_would_end_after_the_deadline(clock: FakeClock) -> None:
    engine = CrossEncoder(FakePairModel(clock, seconds=0.01), clock)
    deadline = clock.now + 0.25  # A pair takes 10 * 0.01 s: two fit, the third would end at 0.3.

    scores = engine.rerank("q", passages_of(20), "en", deadline)

    assert scores.scores == (1.0, 2.0)
    assert not scores.complete
    assert clock.now <= deadline


def test_a_deadline_in_the_past_scores_nothing(clock: FakeClock) -> None:
    model = FakePairModel(clock, seconds=0.01)
    engine = CrossEncoder(model, clock)
    model.scored.clear()

    scores = engine.rerank("q", passages_of(3), "en", deadline=clock.now - 1)

    assert scores.scores == ()
    assert not scores.complete
    assert model.scored == []


def test_no_passages_are_a_complete_answer(clock: FakeClock) -> None:
    scores = CrossEncoder(FakePairModel(clock, 0.01), clock).rerank("q", [], "en", clock.now)

    assert scores.scores == ()
    assert scores.complete


def test_a_language_the_model_was_not_trained_for_is_refused_before_any_work(
    clock: FakeClock,
) -> None:
    model = FakePairModel(clock, seconds=0.01)
    engine = CrossEncoder(model, clock)
    model.scored.clear()

    with pytest.raises(StageUnavailable) as failure:
        engine.rerank("q", ["a"], "es", clock.now + 60)

    assert (failure.value.stage, failure.value.reason) == ("rerank", "language_not_covered")
    assert model.scored == []


@pytest.mark.parametrize("language", ["en", "es", "pt"])
def test_a_model_that_names_no_language_covers_every_one(clock: FakeClock, language: str) -> None:
    engine = CrossEncoder(FakePairModel(clock, 0.01, languages=frozenset()), clock)

    assert engine.rerank("q", ["a"], language, clock.now + 60).complete


def test_passages_are_prepared_only_as_far_as_they_are_scored(clock: FakeClock) -> None:
    prepared = []

    class Model(FakePairModel):
        def prepare(self, query: str, passages: Sequence[str]) -> Iterator[FakePair]:
            for pair in super().prepare(query, passages):
                prepared.append(pair.passage)
                yield pair

    engine = CrossEncoder(Model(clock, seconds=0.01), clock)
    prepared.clear()

    engine.rerank("q", passages_of(200), "en", clock.now + 0.25)

    assert prepared == ["p", "pp", "ppp"]  # The third is the one that no longer fitted.


def test_after_a_slow_start_the_cost_falls_fast(clock: FakeClock) -> None:
    model = FakePairModel(clock, seconds=0.02)
    engine = CrossEncoder(model, clock)
    model.seconds = 0.005  # From 0.2 s a pair down to 0.05 s.

    # Four pairs end at 0.2 s; the fifth would end at 0.25 s sharp, were the old cost all forgotten.
    assert scored_in(engine, clock, 0.25) == 4
    assert scored_in(engine, clock, 0.25 + 0.01) == 5


def test_a_moments_contention_does_not_close_the_window(clock: FakeClock) -> None:
    model = FakePairModel(clock, seconds=0.005, slow={"pp": 0.05})
    engine = CrossEncoder(model, clock)
    engine.rerank("q", ["p", "pp"], "en", clock.now + 60)

    # The first is always tried; were the ten times dearer pair believed, the next would not be.
    assert scored_in(engine, clock, 0.16) >= 2


def test_the_window_opens_again_after_a_missed_deadline(clock: FakeClock) -> None:
    model = FakePairModel(clock, seconds=1.0)
    engine = CrossEncoder(model, clock)
    assert scored_in(engine, clock, 0.15) <= 1  # And that one ended 9.85 s too late.
    model.seconds = 0.001  # The machine is a thousand times faster than it was at the start.

    scored = [scored_in(engine, clock, 0.15) for _ in range(12)]

    assert scored == sorted(scored)
    assert scored[-1] >= 10


def test_requests_that_come_too_late_do_not_make_the_next_one_overrun(clock: FakeClock) -> None:
    engine = CrossEncoder(FakePairModel(clock, seconds=0.01), clock)
    for _ in range(50):  # They waited in a queue until their time was over.
        engine.rerank("q", ["p"], "en", deadline=clock.now - 1)

    deadline = clock.now + 0.15
    engine.rerank("q", passages_of(20), "en", deadline)

    assert clock.now <= deadline


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.floats(0.0001, 0.1), st.integers(0, 12), st.floats(0, 3))
def test_what_is_scored_is_a_prefix_and_only_its_first_pair_can_end_late(
    seconds: float, count: int, budget: float
) -> None:
    clock = FakeClock(0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cross_encoder, "time", SimpleNamespace(time=clock, perf_counter=clock))
        engine = CrossEncoder(FakePairModel(clock, seconds), clock)
        passages = passages_of(count)
        deadline = clock.now + budget

        scores = engine.rerank("q", passages, "en", deadline)

    assert scores.scores == tuple(float(len(p)) for p in passages)[: len(scores.scores)]
    assert scores.complete == (len(scores.scores) == count)
    assert clock.now <= deadline + TINY or len(scores.scores) == 1


def one_warning(caplog: pytest.LogCaptureFixture) -> str:
    """Give the text of the only warning."""
    (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    return record.getMessage()


def put_model(home: Path, model_id: str, content: bytes = b"not a model") -> ModelStore:
    """Lay files with the right names and the wrong content into a model store."""
    store = ModelStore(home)
    spec = find_spec(model_id)
    store.folder(spec).mkdir(parents=True)
    for name in spec.files or HUB_FILES:
        (store.folder(spec) / name).write_bytes(content)
    return store


def test_an_empty_model_store_is_one_warning_and_no_reranker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert load_cross_encoder(ModelStore(tmp_path), [ON_THE_HUB, IN_THE_BOX]) is None

    message = one_warning(caplog)
    assert ON_THE_HUB in message
    assert IN_THE_BOX in message
    assert str(tmp_path) in message


def test_a_preference_of_none_is_one_warning_and_no_reranker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert load_cross_encoder(ModelStore(tmp_path), []) is None
    assert one_warning(caplog)


@pytest.mark.parametrize("content", [b"", b"not a model", b"{}", b"\xff\xfe\x00"])
def test_a_corrupt_model_file_is_one_warning_that_names_the_model(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = put_model(tmp_path, IN_THE_BOX, content)

    assert load_cross_encoder(store, [IN_THE_BOX]) is None
    assert IN_THE_BOX in one_warning(caplog)


@pytest.mark.parametrize("error", [MemoryError(), OSError("no such device"), ImportError("no lib")])
def test_a_failure_to_load_is_one_warning_that_says_what_it_was(
    error: Exception,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(pair_onnx, "OnnxTextModel", fail)

    assert load_cross_encoder(put_model(tmp_path, IN_THE_BOX), [IN_THE_BOX]) is None
    message = one_warning(caplog)
    assert IN_THE_BOX in message
    assert type(error).__name__ in message


def test_the_next_of_the_preference_is_tried_when_the_first_does_not_load(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Model(FakePairModel):
        def __init__(self, *_: object) -> None:
            super().__init__(FakeClock(), seconds=0.0, model_id=IN_THE_BOX)

    def fail(*_: object) -> None:
        raise ModelError("no such library")

    monkeypatch.setattr(pair_sentence_transformers, "SentenceTransformersPairModel", fail)
    monkeypatch.setattr(pair_onnx, "OnnxPairModel", Model)
    put_model(tmp_path, ON_THE_HUB)
    store = put_model(tmp_path, IN_THE_BOX)

    engine = load_cross_encoder(store, [ON_THE_HUB, IN_THE_BOX])

    assert engine is not None
    assert engine.model.model_id == IN_THE_BOX
    assert ON_THE_HUB in one_warning(caplog)


def test_an_unknown_name_in_the_preference_is_an_error_of_the_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no-such-model"):
        load_cross_encoder(ModelStore(tmp_path), ["no-such-model"])


def test_no_model_library_is_imported_when_there_is_no_model(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from deployments.engines.cross_encoder import load_cross_encoder
from kb.models import ModelStore
assert load_cross_encoder(ModelStore(Path(sys.argv[1])), sys.argv[2:]) is None
print(*{"torch", "sentence_transformers", "onnxruntime", "tokenizers", "ray"} & set(sys.modules))
"""
    command = [sys.executable, "-c", program, str(tmp_path), ON_THE_HUB, IN_THE_BOX]

    result = subprocess.run(command, capture_output=True, text=True, check=True)

    assert result.stdout.strip() == ""
