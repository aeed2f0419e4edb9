"""Sub-chunks: nothing of a card is lost, mixed or too long."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kb
from kb.cards import read_cards
from kb.chunking import MAX_TOKENS, estimate_tokens, sentences, split_card, split_cards
from kb.types import Card, Locale, Section, Source, SubChunk

SHIPPED = Path(kb.__file__).parent / "content"

_words = st.one_of(
    st.sampled_from(
        ["dose", "warfarin", "2.5", "mg.", "e.g.", "Dr.", "no.", "Stop!", "¿Qué?", "用量。"]
    ),
    st.text(alphabet="abcdefgh.,!?-", min_size=1, max_size=12),
    st.text(alphabet="xyz", min_size=500, max_size=520),
)
_gaps = st.sampled_from([" ", " ", " ", "  ", "\n", "\n\n", "\t", "\u00a0", "\u3000"])
_texts = st.one_of(
    st.lists(st.tuples(_words, _gaps), min_size=1, max_size=70).map(
        lambda pairs: "".join(word + gap for word, gap in pairs).strip()
    ),
    st.text(min_size=1, max_size=60).map(str.strip),
).filter(bool)
_headings = st.text(alphabet="abcdef ", max_size=40).map(str.strip)


def _card(
    sections: list[Section],
    title: str = "Title",
    sources: tuple[Source, ...] = (Source("Label", "https://example.org", "CC0 1.0"),),
    card_id: str = "c1",
    locale: Locale = "en",
) -> Card:
    return Card(
        id=card_id,
        title=title,
        category="escalation",
        locale=locale,
        drugs=("warfarin",),
        sources=sources,
        reviewed="2026-11-30",
        sections=tuple(sections),
    )


_cards = st.builds(
    _card,
    st.lists(st.builds(Section, _headings, _texts), max_size=3),
    title=st.text(alphabet="abcdef ", min_size=1, max_size=60),
)


def _room(chunk: SubChunk) -> int:
    """Estimate what title and section leave for the text, as the contract says it."""
    return max(MAX_TOKENS - estimate_tokens(f"{chunk.title} - {chunk.section}: "), MAX_TOKENS // 4)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(_cards)
def test_joined_sub_chunks_hold_every_word_of_the_body_in_order(card: Card) -> None:
    words = [word for section in card.sections for word in section.text.split()]
    assert " ".join(chunk.text for chunk in split_card(card)).split() == words


@settings(deadline=None, derandomize=True, max_examples=30)
@given(_cards)
def test_sections_are_never_mixed(card: Card) -> None:
    chunks = iter(split_card(card))
    for section in card.sections:
        words = section.text.split()
        while words:
            chunk = next(chunks)
            assert chunk.section == section.heading
            part = chunk.text.split()
            assert part == words[: len(part)]
            words = words[len(part) :]
    assert next(chunks, None) is None


@settings(deadline=None, derandomize=True, max_examples=30)
@given(_cards)
def test_a_passage_is_longer_than_the_limit_only_for_a_single_long_word(card: Card) -> None:
    for chunk in split_card(card):
        assert chunk.text.strip()
        # These titles and headings leave the text at least a quarter of the passage.
        fits = estimate_tokens(chunk.passage) <= MAX_TOKENS
        assert fits or len(chunk.text.split()) == 1


@settings(deadline=None, derandomize=True, max_examples=30)
@given(_cards)
def test_neighbours_of_one_section_would_not_fit_into_one_sub_chunk(card: Card) -> None:
    # Headings may repeat, so sections are taken one by one.
    for section in card.sections:
        chunks = split_card(_card([section], title=card.title))
        for one, other in itertools.pairwise(chunks):
            assert estimate_tokens(one.text) + estimate_tokens(other.text) > _room(one)


@settings(deadline=None, derandomize=True, max_examples=15)
@given(_cards)
def test_ids_are_numbered_through_the_card_and_the_same_each_time(card: Card) -> None:
    chunks = split_card(card)
    assert [chunk.ordinal for chunk in chunks] == list(range(1, len(chunks) + 1))
    assert [chunk.id for chunk in chunks] == [f"c1:en:{n}" for n in range(1, len(chunks) + 1)]
    assert split_card(card) == chunks


def test_a_sub_chunk_carries_what_its_card_says() -> None:
    chunk = split_card(_card([Section("When", "At noon.")], title="About", locale="pt-BR"))[0]
    assert (chunk.id, chunk.card_id, chunk.locale) == ("c1:pt-BR:1", "c1", "pt-BR")
    assert (chunk.title, chunk.category, chunk.section, chunk.text, chunk.drugs) == (
        "About",
        "escalation",
        "When",
        "At noon.",
        ("warfarin",),
    )
    assert chunk.passage == "About - When: At noon."


def test_a_passage_without_a_section_begins_with_the_title_alone() -> None:
    assert split_card(_card([Section("", "At noon.")]))[0].passage == "Title: At noon."


def test_a_card_without_text_has_no_sub_chunks() -> None:
    assert split_card(_card([])) == []


def test_cards_with_the_same_text_have_sub_chunks_of_their_own() -> None:
    one, other = (split_card(_card([Section("", "Same.")], card_id=name)) for name in ("a", "b"))
    assert [chunk.id for chunk in one + other] == ["a:en:1", "b:en:1"]


def test_the_sub_chunks_of_many_cards_come_by_id_whatever_the_order_of_the_cards() -> None:
    long = _card([Section(f"S{n}", "Text.") for n in range(11)], card_id="b")
    cards = [long, _card([Section("", "Text.")], card_id="a"), _card([], card_id="c")]
    chunks = split_cards(cards)
    ids = [chunk.id for chunk in chunks]
    assert len(ids) == 12
    assert ids == sorted(ids)
    assert ids[:3] == ["a:en:1", "b:en:1", "b:en:10"]
    assert split_cards(reversed(cards)) == chunks
    assert {c.id: c for c in chunks if c.card_id == "b"} == {c.id: c for c in split_card(long)}


def test_sub_chunks_that_begin_alike_all_survive() -> None:
    start = " ".join(["again"] * 60)
    chunks = split_card(_card([Section("", f"{start} one.\n{start} two.")]))
    assert {"one.", "two."} <= {word for chunk in chunks for word in chunk.text.split()}
    assert len({chunk.id for chunk in chunks}) == len(chunks)


def test_a_very_long_title_leaves_room_for_text_all_the_same() -> None:
    title = "word " * 70
    chunks = split_card(_card([Section("", "one two three. " * 30)], title=title))
    assert all(estimate_tokens(chunk.text) <= MAX_TOKENS // 4 for chunk in chunks)
    assert max(len(chunk.text.split()) for chunk in chunks) > 1


def test_short_sentences_of_a_section_share_a_sub_chunk() -> None:
    chunks = split_card(_card([Section("", "Take it. With food.\n- At noon.\n- At night.")]))
    assert [chunk.text for chunk in chunks] == ["Take it. With food. - At noon. - At night."]


def test_every_sub_chunk_is_filled_to_the_last_sentence_that_fits() -> None:
    sentence = "Take it now."  # Four pieces.
    fit = _room(split_card(_card([Section("", sentence)]))[0]) // estimate_tokens(sentence)
    chunks = split_card(_card([Section("", " ".join([sentence] * 3 * fit))]))
    assert [chunk.text.count(sentence) for chunk in chunks] == [fit] * 3


def test_words_of_a_long_sentence_fill_every_sub_chunk_alike() -> None:
    fit = _room(split_card(_card([Section("", "dose")]))[0])
    chunks = split_card(_card([Section("", " ".join(["dose"] * 3 * fit))]))
    assert [chunk.text.count("dose") for chunk in chunks] == [fit] * 3


def test_a_sentence_that_fits_is_never_cut() -> None:
    sentence = "Take the tablet with a large glass of water and never with milk or juice."
    chunks = split_card(_card([Section("", " ".join([sentence] * 20))]))
    assert len(chunks) > 1
    assert all(chunk.text.endswith(sentence) for chunk in chunks)
    assert all(chunk.text.startswith(sentence) for chunk in chunks)


def test_a_sentence_that_is_too_long_is_cut_between_words() -> None:
    sentence = " ".join(f"word{n}" for n in range(200)) + "."
    texts = [chunk.text for chunk in split_card(_card([Section("", sentence)]))]
    assert len(texts) > 1
    assert " ".join(texts) == sentence


def test_a_section_s_sources_are_those_that_name_it_or_none() -> None:
    everywhere = Source("A", "https://example.org/a", "CC0 1.0")
    when = Source("B", "https://example.org/b", "CC0 1.0", ("When",))
    how = Source("C", "https://example.org/c", "CC0 1.0", ("How", "When"))
    sections = [Section("When", "Noon."), Section("How", "Water."), Section("Why", "So.")]
    chunks = split_card(_card(sections, sources=(everywhere, when, how)))
    assert [chunk.sources for chunk in chunks] == [
        (everywhere, when, how),
        (everywhere, how),
        (everywhere,),
    ]


def test_a_section_that_no_source_names_shows_all_of_the_card_s() -> None:
    when = Source("B", "https://example.org/b", "CC0 1.0", ("When",))
    how = Source("C", "https://example.org/c", "CC0 1.0", ("How",))
    chunks = split_card(_card([Section("Why", "So.")], sources=(when, how)))
    assert chunks[0].sources == (when, how)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four… Five", ["One.", "Two!", "Three?", "Four…", "Five"]),
        ("Take 2.5 mg. Not 25 mg.", ["Take 2.5 mg.", "Not 25 mg."]),
        (
            "Use pain relievers, e.g. ibuprofen. Ask.",
            ["Use pain relievers, e.g. ibuprofen.", "Ask."],
        ),
        ("See Dr. No. 5 is vs. 6 (approx. 7).", ["See Dr. No. 5 is vs. 6 (approx. 7)."]),
        ("- one\n- two\n\n\n- three", ["- one", "- two", "- three"]),
        ("Ends with etc.", ["Ends with etc."]),
        ("¿Qué hago? Llame.", ["¿Qué hago?", "Llame."]),
        ("", []),
        (" \n \t\n", []),
    ],
)
def test_sentences_end_where_a_reader_would_end_them(text: str, expected: list[str]) -> None:
    assert list(sentences(text)) == expected


@settings(deadline=None, derandomize=True, max_examples=15)
@given(_texts)
def test_the_estimate_of_a_text_is_the_sum_of_its_words(text: str) -> None:
    assert estimate_tokens(text) == sum(estimate_tokens(word) for word in text.split())


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 0), ("dose", 1), ("dosing", 1), ("dosings", 2), ("2.5 mg.", 5)]
)
def test_the_estimate_counts_pieces_of_six_letters_and_punctuation(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens


def test_every_passage_of_the_shipped_cards_keeps_to_the_limit() -> None:
    chunks = [chunk for card in read_cards(SHIPPED) for chunk in split_card(card)]
    assert chunks
    assert [c.id for c in chunks if estimate_tokens(c.passage) > MAX_TOKENS] == []
    assert len({chunk.id for chunk in chunks}) == len(chunks)


# Turns


def test_each_turn_is_a_row_of_its_own_that_is_found_by_its_words_alone_and_not_shown() -> None:
    card = replace(_card([Section("Advice", "Take it with food.")]), asked_as=("w/ food?", "¿y?"))

    text, *turns = split_card(card)

    assert text.shown
    assert [(t.id, t.shown, t.passage) for t in turns] == [
        ("c1:en:asked-1", False, "w/ food?"),
        ("c1:en:asked-2", False, "¿y?"),
    ]
    assert all(t.card_id == text.card_id and t.sources == card.sources for t in turns)
    assert all(t.ordinal > text.ordinal for t in turns)


def test_a_card_without_text_has_no_rows_even_when_it_names_turns() -> None:
    assert split_card(replace(_card([]), asked_as=("anything?",))) == []
