"""Several vector spaces in a generation, and ingests that embed only what is new."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fakes_kb import (
    HashEmbedder,
    MemoryDocuments,
    MemoryStore,
    generations_in,
    read_whole,
    served_id,
    text_vector,
    write_card,
)
from kb.errors import CardError, StageUnavailable, StoreError
from kb.generations import Generations
from kb.ingest import IngestReport
from kb.ingest import ingest as ingest_into
from kb.protocols import Embedder
from kb.stores.folder import FolderDocuments
from kb.types import Fingerprint, SubChunk, Vector, VectorSpace

LOCALES = ("en", "es-419", "pt-BR")


@pytest.fixture
def cards(tmp_path: Path) -> Path:
    folder = tmp_path / "cards"
    write_card(folder, "c1", _body("One.", "Two.", "Three."))
    write_card(folder, "c2", "Take with food.")
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "kb"


def _body(*texts: str) -> str:
    """Write a section a text, so that each is a sub-chunk of its own."""
    return "".join(f"## Part of {text}\n{text}\n" for text in texts)


def ingest(cards: Path, home: Path, *embedders: Embedder, keep: int = 3) -> IngestReport:
    return ingest_into(cards, generations_in(home), embedders, keep=keep)


def _vectors(home: Path, embedder: HashEmbedder) -> dict[str, Vector]:
    loaded, spaces = read_whole(home)
    (space,) = (s for s in loaded.manifest.spaces if s.fingerprint == embedder.fingerprint)
    return spaces[space.name]


def assert_served_as_from_scratch(cards: Path, home: Path, *embedders: Embedder) -> None:
    """Compare what is served with an ingest of the same cards into an empty home."""
    with tempfile.TemporaryDirectory() as fresh:
        ingest(cards, Path(fresh), *embedders)
        assert_alike(
            generations_in(home),
            generations_in(Path(fresh)),
            [e.embed_query("q") for e in embedders],
        )


def assert_alike(one: Generations, other: Generations, queries: Sequence[Vector]) -> None:
    """Compare rows, ids, vectors and answers of what two knowledge bases serve."""
    left, right = one.load(one.current_id() or ""), other.load(other.current_id() or "")
    assert left.chunks == right.chunks
    assert left.manifest.content_hash == right.manifest.content_hash
    assert left.manifest.spaces == right.manifest.spaces
    here, there = one.open_vectors(left.manifest), other.open_vectors(right.manifest)
    try:
        for space, query in zip(left.manifest.spaces, queries, strict=True):
            ids = [chunk.id for chunk in left.chunks if space.covers(chunk.locale)]
            assert here.count(space.name) == there.count(space.name) == len(ids)
            np.testing.assert_allclose(
                here.vectors(space.name, ids), there.vectors(space.name, ids), atol=1e-6
            )
            hits, expected = (r.search(space.name, query, 10) for r in (here, there))
            assert [hit.chunk_id for hit in hits] == [hit.chunk_id for hit in expected]
            assert [h.score for h in hits] == pytest.approx([h.score for h in expected], abs=1e-5)
    finally:
        here.close()
        there.close()


# Several vector spaces.


def _in_three_languages(folder: Path) -> None:
    for locale in LOCALES:
        write_card(folder / locale, "c1", f"In {locale}.", locale=locale)
    write_card(folder / "en", "c2", "English alone.")


def test_a_space_holds_the_rows_of_its_languages_and_no_other(tmp_path: Path, home: Path) -> None:
    _in_three_languages(tmp_path / "cards")
    english, iberian = (
        HashEmbedder(8, "english", languages=["en"]),
        HashEmbedder(16, "iberian", languages=["pt", "es"]),
    )
    report = ingest(tmp_path / "cards", home, english, iberian)
    assert _vectors(home, english).keys() == {"c1:en:1", "c2:en:1"}
    assert _vectors(home, iberian).keys() == {"c1:es-419:1", "c1:pt-BR:1"}
    assert (report.rows, report.embedded) == (4, 4)
    assert sorted(english.passages) == ["About c1: In en.", "About c2: English alone."]
    assert sorted(iberian.passages) == ["About c1: In es-419.", "About c1: In pt-BR."]
    manifest = generations_in(home).current()
    assert manifest is not None
    assert [(s.languages, s.rows) for s in manifest.spaces] == [(("en",), 2), (("es", "pt"), 2)]


def test_a_space_of_an_embedder_without_languages_holds_every_row(
    tmp_path: Path, home: Path
) -> None:
    _in_three_languages(tmp_path / "cards")
    english, every = HashEmbedder(8, "english", languages=["en"]), HashEmbedder(16, "every")
    report = ingest(tmp_path / "cards", home, english, every)
    assert len(_vectors(home, english)) == 2
    assert len(_vectors(home, every)) == report.rows == 4
    assert report.embedded == 6
    assert report.embedders == f"{english.fingerprint}, {every.fingerprint}"


def test_a_space_without_a_row_of_its_languages_is_empty_and_sound(cards: Path, home: Path) -> None:
    embedder = HashEmbedder(languages=["pt"])
    assert ingest(cards, home, embedder).embedded == 0
    assert _vectors(home, embedder) == {}
    assert generations_in(home).verify(served_id(home)).rows == 4
    assert ingest(cards, home, embedder).unchanged


@pytest.mark.parametrize(
    ("languages", "locale", "covered"),
    [
        ((), "en", True),
        ((), "pt-BR", True),
        (("en",), "en", True),
        (("en",), "es-419", False),
        (("es",), "es-419", True),
        (("es", "pt"), "pt-BR", True),
        (("pt-BR",), "pt-BR", False),  # Languages are named without their region.
    ],
)
def test_a_space_covers_a_locale_by_its_language(
    languages: tuple[str, ...], locale: str, covered: bool
) -> None:
    space = VectorSpace(Fingerprint("e", "r1", 8, "", ""), languages, 0)
    assert space.covers(locale) is covered  # type: ignore[arg-type]


def test_every_fingerprint_has_a_space_name_of_its_own() -> None:
    made_by = Fingerprint("BAAI/bge-small-en-v1.5", "r1", 384, "query: ", "")
    changed = [
        replace(made_by, embedder_id="BAAI-bge-small-en-v1.5"),  # Readable parts may be the same.
        replace(made_by, revision="r2"),
        replace(made_by, dimension=385),
        replace(made_by, query_prefix=""),
        replace(made_by, passage_prefix="query: "),
    ]
    names = {VectorSpace(fingerprint, (), 0).name for fingerprint in [made_by, *changed]}
    assert len(names) == 1 + len(changed)
    # Engines allow little: 3 to 63 characters, lower case.
    assert all(3 <= len(n) <= 63 and n == n.lower() and n.strip("-") == n for n in names)
    assert VectorSpace(made_by, ("en",), 7).name == VectorSpace(made_by, (), 0).name


# What is not new is not embedded again.


def test_only_a_new_sub_chunk_is_embedded(cards: Path, home: Path) -> None:
    ingest(cards, home, HashEmbedder())
    write_card(cards, "c3", "Something new.")
    embedder = HashEmbedder()
    report = ingest(cards, home, embedder)
    assert embedder.passages == ["About c3: Something new."]
    assert (report.rows, report.embedded) == (5, 1)
    assert_served_as_from_scratch(cards, home, HashEmbedder())


def test_a_sub_chunk_inserted_in_the_middle_moves_the_vectors_of_those_after_it(
    cards: Path, home: Path
) -> None:
    ingest(cards, home, HashEmbedder())
    write_card(cards, "c1", _body("One.", "Between.", "Two.", "Three."))
    embedder = HashEmbedder()
    assert ingest(cards, home, embedder).embedded == 1
    assert embedder.passages == ["About c1 - Part of Between.: Between."]
    np.testing.assert_allclose(
        _vectors(home, embedder)["c1:en:4"],
        text_vector("About c1 - Part of Three.: Three.", 8),
        atol=1e-6,
    )
    assert_served_as_from_scratch(cards, home, HashEmbedder())


def test_sub_chunks_that_change_places_are_not_embedded_again(cards: Path, home: Path) -> None:
    ingest(cards, home, HashEmbedder())
    write_card(cards, "c1", _body("Three.", "Two.", "One."))
    embedder = HashEmbedder()
    report = ingest(cards, home, embedder)
    assert (report.embedded, report.unchanged, embedder.passages) == (0, False, [])
    assert_served_as_from_scratch(cards, home, HashEmbedder())


def test_a_card_under_another_id_keeps_its_vectors(cards: Path, home: Path) -> None:
    ingest(cards, home, HashEmbedder())
    (cards / "c2.md").unlink()
    write_card(cards, "a-new-id", "Take with food.", title="About c2")
    embedder = HashEmbedder()
    assert ingest(cards, home, embedder).embedded == 0
    assert _vectors(home, embedder).keys() >= {"a-new-id:en:1"}
    assert_served_as_from_scratch(cards, home, HashEmbedder())


def test_a_changed_title_embeds_all_of_its_card_and_no_other(cards: Path, home: Path) -> None:
    ingest(cards, home, HashEmbedder())
    write_card(cards, "c1", _body("One.", "Two.", "Three."), title="New")
    embedder = HashEmbedder()
    assert ingest(cards, home, embedder).embedded == 3
    assert all(passage.startswith("New - ") for passage in embedder.passages)
    assert_served_as_from_scratch(cards, home, HashEmbedder())


def test_a_change_that_no_model_sees_embeds_nothing_and_is_published(
    cards: Path, home: Path
) -> None:
    first = ingest(cards, home, HashEmbedder())
    write_card(cards, "c2", "Take with food.", drugs="warfarin")
    embedder = HashEmbedder()
    report = ingest(cards, home, embedder)
    assert (report.embedded, report.unchanged) == (0, False)
    assert report.generation > first.generation
    assert read_whole(home)[0].chunks[-1].drugs == ("warfarin",)


def test_removed_rows_go_and_the_others_are_not_embedded_again(cards: Path, home: Path) -> None:
    ingest(cards, home, HashEmbedder())
    write_card(cards, "c1", _body("One.", "Three."))
    embedder = HashEmbedder()
    assert ingest(cards, home, embedder).embedded == 0
    assert _vectors(home, embedder).keys() == {"c1:en:1", "c1:en:2", "c2:en:1"}
    assert_served_as_from_scratch(cards, home, HashEmbedder())


def test_an_added_space_embeds_for_itself_alone(cards: Path, home: Path) -> None:
    ingest(cards, home, HashEmbedder())
    one, other = HashEmbedder(), HashEmbedder(16, "other")
    report = ingest(cards, home, one, other)
    assert (report.embedded, len(one.passages), len(other.passages)) == (4, 0, 4)
    assert_served_as_from_scratch(cards, home, HashEmbedder(), HashEmbedder(16, "other"))


def test_a_removed_space_goes_and_nothing_is_embedded(cards: Path, home: Path) -> None:
    ingest(cards, home, HashEmbedder(), HashEmbedder(16, "other"))
    kept = HashEmbedder(16, "other")
    report = ingest(cards, home, kept)
    assert (report.embedded, report.unchanged) == (0, False)
    assert list(read_whole(home)[1]) == [VectorSpace(kept.fingerprint, (), 0).name]
    assert_served_as_from_scratch(cards, home, HashEmbedder(16, "other"))


def test_another_order_of_preference_is_another_generation_without_embedding(
    cards: Path, home: Path
) -> None:
    one, other = HashEmbedder(), HashEmbedder(16, "other")
    ingest(cards, home, one, other)
    report = ingest(cards, home, other, one)
    assert (report.embedded, report.unchanged) == (0, False)
    assert report.embedders == f"{other.fingerprint}, {one.fingerprint}"


def test_an_embedder_that_learns_a_language_embeds_its_rows_alone(
    tmp_path: Path, home: Path
) -> None:
    cards = tmp_path / "cards"
    _in_three_languages(cards)
    ingest(cards, home, HashEmbedder(languages=["en"]))
    embedder = HashEmbedder(languages=["en", "es"])
    assert ingest(cards, home, embedder).embedded == 1
    assert embedder.passages == ["About c1: In es-419."]
    assert_served_as_from_scratch(cards, home, HashEmbedder(languages=["en", "es"]))


def test_the_old_generation_is_not_touched_by_what_is_copied_from_it(
    cards: Path, home: Path
) -> None:
    first = ingest(cards, home, HashEmbedder()).generation
    folder = home / "generations" / first
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    write_card(cards, "c1", _body("Two.", "Four."))
    ingest(cards, home, HashEmbedder())
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


# What is built already is not built again.


def test_after_a_rollback_the_newer_one_is_published_again_without_building(
    cards: Path, home: Path
) -> None:
    ingest(cards, home, HashEmbedder())
    write_card(cards, "c2", "Take without food.")
    newer = ingest(cards, home, HashEmbedder())
    generations_in(home).rollback()
    embedder = HashEmbedder()
    report = ingest(cards, home, embedder)
    assert report == replace(newer, embedded=0, unchanged=True)
    assert served_id(home) == newer.generation
    assert embedder.passages == []
    assert len(generations_in(home).ids()) == 2


def test_after_a_rollback_the_cards_of_the_served_one_change_nothing(
    cards: Path, home: Path
) -> None:
    first = ingest(cards, home, HashEmbedder())
    write_card(cards, "c2", "Take without food.")
    ingest(cards, home, HashEmbedder())
    generations_in(home).rollback()
    write_card(cards, "c2", "Take with food.")
    assert ingest(cards, home, HashEmbedder()).unchanged
    assert served_id(home) == first.generation


class _Killed(BaseException):
    """The end of a process, as far as one that lives on can play it."""


def _die_writing_the_pointer(self: FolderDocuments, name: str, data: bytes) -> None:
    if name == "CURRENT":
        raise _Killed
    _put(self, name, data)


_put = FolderDocuments.put


def test_what_was_finished_but_not_published_is_published_by_the_next_run_without_embedding(
    cards: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ingest(cards, home, HashEmbedder())
    write_card(cards, "c2", "Take without food.")
    with monkeypatch.context() as patch:
        patch.setattr(FolderDocuments, "put", _die_writing_the_pointer)
        with pytest.raises(_Killed):
            ingest(cards, home, HashEmbedder())
    assert served_id(home) == first.generation
    (_, finished) = generations_in(home).ids()
    embedder = HashEmbedder()
    report = ingest(cards, home, embedder)
    assert (report.generation, report.embedded, report.unchanged) == (finished, 0, True)
    assert served_id(home) == finished
    assert embedder.passages == []
    assert_served_as_from_scratch(cards, home, HashEmbedder())


def test_what_was_finished_but_not_published_is_not_served_when_the_cards_changed_since(
    cards: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_card(cards, "c2", "A version that nobody wants.")
    with monkeypatch.context() as patch:
        patch.setattr(FolderDocuments, "put", _die_writing_the_pointer)
        with pytest.raises(_Killed):
            ingest(cards, home, HashEmbedder())
    write_card(cards, "c2", "The last version.")
    report = ingest(cards, home, HashEmbedder())
    assert not report.unchanged
    assert "The last version." in {chunk.text for chunk in read_whole(home)[0].chunks}


def test_a_run_that_was_killed_before_it_pruned_is_made_good_by_the_next(
    cards: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        write_card(cards, "c2", f"Version {n}.")
        ingest(cards, home)

    def die(*_: object) -> None:
        raise _Killed

    write_card(cards, "c2", "Version 3.")
    with monkeypatch.context() as patch:
        patch.setattr(Generations, "prune", die)
        with pytest.raises(_Killed):
            ingest(cards, home)
    assert len(generations_in(home).ids()) == 4
    assert ingest(cards, home).unchanged
    assert len(generations_in(home).ids()) == 3


@pytest.mark.parametrize("keep", [2, 5])
def test_as_many_generations_are_kept_as_is_said(cards: Path, home: Path, keep: int) -> None:
    made = []
    for n in range(6):
        write_card(cards, "c2", f"Version {n}.")
        made.append(ingest(cards, home, keep=keep).generation)
    assert generations_in(home).ids() == made[-keep:]


# Canaries.


def _canaries(cards: Path, *entries: tuple[str, str, str]) -> Path:
    lines = [f'- {{query: "{q}", card: {card}, locale: {lang}}}\n' for q, card, lang in entries]
    path = cards / "canaries.yaml"
    path.write_text("".join(lines), "utf-8")
    return path


FOUND = ("About c2: Take with food.", "c2", "en")


def test_a_generation_whose_canaries_find_their_cards_is_published(cards: Path, home: Path) -> None:
    _canaries(cards, FOUND)
    assert ingest(cards, home, HashEmbedder()).generation == served_id(home)


def test_a_canary_that_does_not_find_its_card_leaves_what_is_served(
    cards: Path, home: Path
) -> None:
    first = ingest(cards, home, HashEmbedder(2)).generation
    # In two dimensions, the five nearest cards to a query leave two of seven out.
    texts = {"c1": "One.", "c2": "Take with food."} | {f"c{n}": f"Card {n}." for n in range(3, 8)}
    for card_id, text in texts.items():
        write_card(cards, card_id, text)
    query = "About c7: Card 7."
    scores = {
        card_id: float(text_vector(f"About {card_id}: {text}", 2) @ text_vector(query, 2))
        for card_id, text in texts.items()
    }
    worst = min(scores, key=lambda card_id: scores[card_id])
    path = _canaries(cards, FOUND, (query, worst, "en"))
    with pytest.raises(StoreError, match="nothing is published") as caught:
        ingest(cards, home, HashEmbedder(2))
    for word in (str(path), "entry 2", worst, "hash-"):
        assert word in str(caught.value)
    assert served_id(home) == first
    assert [path.name for path in (home / "generations").iterdir()] == [first]
    _canaries(cards, FOUND, (query, "c7", "en"))
    assert ingest(cards, home, HashEmbedder(2)).rows == 7


def test_a_canary_is_asked_only_of_the_spaces_of_its_language(tmp_path: Path, home: Path) -> None:
    cards = tmp_path / "cards"
    _in_three_languages(cards)
    _canaries(cards, ("About c1: In es-419.", "c1", "es-419"))
    english = _Deaf(8, "english", languages=["en"])
    assert ingest(cards, home, english).generation == served_id(home)
    with pytest.raises(StoreError, match=r"spanish.*cannot embed a canary"):
        ingest(cards, home, english, _Deaf(8, "spanish", languages=["es"]))


class _Deaf(HashEmbedder):
    """Embed passages, but no query."""

    def embed_query(self, text: str) -> Vector:
        raise StageUnavailable("dense", "timeout", text[:0])


def test_a_canary_that_cannot_be_embedded_publishes_nothing(cards: Path, home: Path) -> None:
    _canaries(cards, FOUND)
    with pytest.raises(StoreError, match="cannot embed a canary"):
        ingest(cards, home, _Deaf())
    assert generations_in(home).current_id() is None
    assert generations_in(home).ids() == []
    assert list((home / "generations").iterdir()) == []


def test_a_bad_canary_is_refused_before_anything_is_embedded(cards: Path, home: Path) -> None:
    _canaries(cards, FOUND, ("Where?", "c9", "en"))
    embedder = HashEmbedder()
    with pytest.raises(CardError, match=r"canaries\.yaml \(entry 2\).*'c9'"):
        ingest(cards, home, embedder)
    assert embedder.passages == []
    assert not home.exists()


# Any sequence of edits gives what an ingest from scratch gives.

_TEXTS = ("One.", "Two.", "Three.", "Four.")
_KB = dict[tuple[str, str], tuple[str, tuple[str, ...]]]
"""Card id and locale to title and texts: the same texts and titles come again and again."""

_knowledge_bases = st.dictionaries(
    st.tuples(st.sampled_from(("c1", "c2")), st.sampled_from(("en", "es-419"))),
    st.tuples(
        st.sampled_from(("Title", "Other")),
        st.lists(st.sampled_from(_TEXTS), max_size=4).map(tuple),
    ),
    max_size=4,
)
_embedders = st.sets(st.sampled_from(("english", "every")), max_size=2)
_histories = st.lists(st.tuples(_knowledge_bases, _embedders), min_size=2, max_size=4)
_TWICE: list[tuple[_KB, set[str]]] = [
    ({("c1", "en"): ("Title", ("One.", "One.", "Two."))}, {"every"}),
    ({("c1", "en"): ("Title", ("Two.", "One.", "One.", "Two."))}, {"every", "english"}),
]


def _write(folder: Path, knowledge: _KB) -> None:
    folder.mkdir()
    for (card_id, locale), (title, texts) in knowledge.items():
        body = "".join(f"## Same\n{text}\n" for text in texts)
        write_card(folder / locale, card_id, body, title=title, locale=locale)


def _make(names: set[str]) -> list[HashEmbedder]:
    made = {
        "english": HashEmbedder(8, "english", languages=["en"]),
        "every": HashEmbedder(4, "every"),
    }
    return [made[name] for name in sorted(names)]


def _passages_of(chunks: Sequence[SubChunk], embedder: HashEmbedder) -> set[str]:
    space = VectorSpace(embedder.fingerprint, tuple(embedder.languages), 0)
    return {chunk.passage for chunk in chunks if space.covers(chunk.locale)}


def _check_history(
    history: list[tuple[_KB, set[str]]],
    folder: Path,
    generations: Generations,
    fresh: list[Generations],
) -> None:
    known: dict[str, set[str]] = {}
    for number, (knowledge, names) in enumerate(history):
        cards = folder / f"cards-{number}"
        _write(cards, knowledge)
        embedders = _make(names)
        report = ingest_into(cards, generations, embedders)
        ingest_into(cards, fresh[number], _make(names))
        assert_alike(generations, fresh[number], [e.embed_query("q") for e in embedders])
        loaded = generations.load(report.generation)
        for embedder in embedders:
            # Each passage that the space did not hold before, and no other.
            name = embedder.fingerprint.embedder_id
            wanted = _passages_of(loaded.chunks, embedder)
            if report.unchanged:
                assert embedder.passages == []
            else:
                assert set(embedder.passages) == wanted - known.get(name, set())
        known = {e.fingerprint.embedder_id: _passages_of(loaded.chunks, e) for e in embedders}


@settings(deadline=None, derandomize=True, max_examples=60)
@given(_histories, st.booleans())
@example(_TWICE, False)
@example(_TWICE, True)
def test_any_sequence_of_edits_serves_what_an_ingest_from_scratch_serves(
    history: list[tuple[_KB, set[str]]], copies: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generations, *fresh = (
            Generations(MemoryDocuments(), MemoryStore(copies=copies), folder / f"lock-{n}")
            for n in range(len(history) + 1)
        )
        _check_history(history, folder, generations, fresh)


@settings(deadline=None, derandomize=True, max_examples=4)
@given(_histories)
@example(_TWICE)
def test_any_sequence_of_edits_serves_the_same_from_the_embedded_store(
    history: list[tuple[_KB, set[str]]],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generations, *fresh = (generations_in(folder / f"{n}") for n in range(len(history) + 1))
        _check_history(history, folder, generations, fresh)
