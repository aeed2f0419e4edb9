"""Sub-chunks collapse to cards."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from fakes_serve import make_chunk
from kb.types import Locale, SubChunk
from serve.candidates import Candidate
from serve.fusion import reciprocal_rank_fusion
from serve.parents import collapse_to_cards, leads_of


def candidates_of(*chunks: SubChunk) -> list[Candidate]:
    return [Candidate(chunk, ranks={"dense": rank}) for rank, chunk in enumerate(chunks, start=1)]


def collapse(*chunk_ids: str, locale: Locale = "en") -> list[str]:
    chunks = [make_chunk(i, locale=i.split(":")[1]) for i in chunk_ids]
    return [c.chunk.id for c in collapse_to_cards(candidates_of(*chunks), locale, leads_of(chunks))]


def test_sub_chunks_of_one_card_do_not_add_up() -> None:
    fused = reciprocal_rank_fusion(
        {"dense": ["P1:0", "P1:1", "P1:2", "P2:0"], "bm25": ["P2:0", "P3:0"]}, {}, rrf_k=60
    )
    candidates = [Candidate(make_chunk(hit.chunk_id), hit.ranks, hit.fused_score) for hit in fused]

    cards = collapse_to_cards(candidates, "en", {})

    assert [card.chunk.card_id for card in cards] == ["P2", "P1", "P3"]
    assert [card.fused_score for card in cards] == [1 / (60 + 1) + 1 / (60 + 4), 1 / 61, 1 / 62]


def test_a_long_card_takes_one_place_with_its_best_sub_chunk() -> None:
    long_card = [f"A:en:{number}" for number in range(12, 0, -1)]

    assert collapse(*long_card[:6], "B:en:1", *long_card[6:], "C:en:1", "D:en:1") == [
        "A:en:12",
        "B:en:1",
        "C:en:1",
        "D:en:1",
    ]


def test_two_cards_with_the_same_text_both_stay_with_their_own_titles() -> None:
    chunks = [
        make_chunk("c1:en:1", "Take with food.", title="Ibuprofen"),
        make_chunk("c2:en:1", "Take with food.", title="Naproxen"),
    ]

    cards = collapse_to_cards(candidates_of(*chunks), "en", {})

    assert [(c.chunk.card_id, c.chunk.title) for c in cards] == [
        ("c1", "Ibuprofen"),
        ("c2", "Naproxen"),
    ]


def test_the_passage_is_in_the_querys_locale_when_the_card_has_one_there() -> None:
    ranked = ("A:en:1", "B:en:1", "A:es-419:2", "A:es-419:1")

    assert collapse(*ranked, locale="es-419") == ["A:es-419:2", "B:en:1"]
    assert collapse(*ranked, locale="en") == ["A:en:1", "B:en:1"]
    assert collapse(*ranked, locale="pt-BR") == ["A:en:1", "B:en:1"]


def test_a_card_keeps_the_place_of_its_best_sub_chunk_in_any_locale() -> None:
    assert collapse("A:en:1", "B:es-419:1", "A:es-419:1", locale="es-419") == [
        "A:es-419:1",
        "B:es-419:1",
    ]


def test_no_candidates_are_no_cards() -> None:
    assert collapse() == []


CHUNK_IDS = st.lists(
    st.builds(
        "{}:{}:{}".format,
        st.sampled_from("ABCDE"),
        st.sampled_from(["en", "es-419", "pt-BR"]),
        st.integers(1, 4),
    ),
    unique=True,
)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(CHUNK_IDS, st.sampled_from(["en", "es-419", "pt-BR"]))
def test_every_card_appears_once_in_the_order_of_its_first_sub_chunk(
    chunk_ids: list[str], locale: Locale
) -> None:
    collapsed = collapse(*chunk_ids, locale=locale)

    assert set(collapsed) <= set(chunk_ids)
    assert [i[0] for i in collapsed] == list(dict.fromkeys(i[0] for i in chunk_ids))
    for kept in collapsed:
        of_card = [i for i in chunk_ids if i[0] == kept[0]]
        in_locale = [i for i in of_card if i.split(":")[1] == locale]
        assert kept == (in_locale or of_card)[0]


# Turns


def turn(chunk_id: str, text: str) -> SubChunk:
    return make_chunk(chunk_id, text, shown=False)


def test_a_card_found_by_a_turn_is_shown_with_its_best_text() -> None:
    first = make_chunk("A:en:1", "An introduction.", ordinal=1)
    second = make_chunk("A:en:2", "What to do.", ordinal=2)
    asked = turn("A:en:asked-1", "is it safe?")

    (card,) = collapse_to_cards(candidates_of(asked, second, first), "en", leads_of([first]))

    assert (card.chunk.id, card.asked_as) == ("A:en:2", "is it safe?")
    assert card.ranks == {"dense": 1}


def test_a_card_of_which_only_a_turn_was_found_is_shown_from_its_beginning() -> None:
    first = make_chunk("A:en:1", "An introduction.", ordinal=1)
    rows = [turn("A:en:asked-1", "is it safe?"), make_chunk("A:en:2", "More.", ordinal=2), first]

    (card,) = collapse_to_cards(candidates_of(rows[0]), "en", leads_of(rows))

    assert (card.chunk.id, card.asked_as) == ("A:en:1", "is it safe?")


def test_a_card_found_by_its_text_names_no_turn() -> None:
    text, asked = make_chunk("A:en:1"), turn("A:en:asked-1", "is it safe?")

    (card,) = collapse_to_cards(candidates_of(text, asked), "en", leads_of([text]))

    assert (card.chunk.id, card.asked_as) == ("A:en:1", None)


def test_the_text_of_a_card_found_by_a_turn_is_in_the_turns_locale() -> None:
    english = make_chunk("A:en:1", "In English.", ordinal=1)
    spanish = make_chunk("A:es-419:1", "En español.", locale="es-419", ordinal=1)
    asked = turn("A:es-419:asked-1", "¿es seguro?")
    asked = replace(asked, locale="es-419")

    (card,) = collapse_to_cards(
        candidates_of(asked, english), "es-419", leads_of([english, spanish])
    )

    assert card.chunk.id == "A:es-419:1"
