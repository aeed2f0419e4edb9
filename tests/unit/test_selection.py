"""What a leg keeps of its order."""

from __future__ import annotations

from itertools import takewhile

from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.engines.selection import select_hits
from kb.types import Hit

Order = list[tuple[Hit, str]]


def order_of(cards: str) -> Order:
    """Make an order with a hit for each letter, the letter being its card."""
    return [(Hit(f"{card}:{n}", 100.0 - n), card) for n, card in enumerate(cards)]


def selected(cards: str, depth: int, min_cards: int) -> str:
    return "".join(hit.chunk_id[0] for hit in select_hits(order_of(cards), depth, min_cards))


def test_the_depth_is_enough_where_it_reaches_enough_cards() -> None:
    assert selected("AABCD", depth=3, min_cards=2) == "AAB"


def test_a_long_card_does_not_keep_the_others_out() -> None:
    assert selected("A" * 12 + "BCD", depth=3, min_cards=3) == "AAABC"


def test_beyond_the_depth_only_new_cards_are_taken() -> None:
    assert selected("AABABC", depth=2, min_cards=3) == "AABC"


def test_all_hits_are_taken_where_there_are_fewer_than_asked() -> None:
    assert selected("AB", depth=50, min_cards=50) == "AB"
    assert selected("", depth=50, min_cards=50) == ""


def test_the_order_is_read_no_further_than_needed() -> None:
    read = []

    def order() -> object:
        for item in order_of("ABCDEF"):
            read.append(item)
            yield item

    select_hits(order(), depth=2, min_cards=1)  # type: ignore[arg-type]

    assert len(read) == 2


CARDS = st.text(st.sampled_from("ABCDE"), max_size=30)
PROPERTY = settings(deadline=None, max_examples=150, derandomize=True)


@PROPERTY
@given(CARDS, st.integers(1, 12), st.integers(1, 8))
def test_at_least_min_cards_are_reached_while_there_are_any(
    cards: str, depth: int, min_cards: int
) -> None:
    assert len(set(selected(cards, depth, min_cards))) >= min(min_cards, len(set(cards)))


@PROPERTY
@given(CARDS, st.integers(1, 12), st.integers(1, 8))
def test_the_first_hits_are_kept_and_the_order_stays(
    cards: str, depth: int, min_cards: int
) -> None:
    order = [hit for hit, _ in order_of(cards)]

    hits = select_hits(order_of(cards), depth, min_cards)

    assert list(hits[:depth]) == order[:depth]
    assert sorted(hits, key=order.index) == list(hits)
    assert len(hits) == len(set(hits))


@PROPERTY
@given(CARDS, st.integers(1, 12), st.integers(1, 8))
def test_nothing_is_taken_beyond_what_was_asked(cards: str, depth: int, min_cards: int) -> None:
    hits = select_hits(order_of(cards), depth, min_cards)
    first_cards = {hit.chunk_id[0] for hit in hits[:depth]}
    extra = [hit.chunk_id[0] for hit in hits[depth:]]

    assert len(extra) <= max(0, min_cards - len(first_cards))
    assert len(extra) == len(set(extra) - first_cards)


@PROPERTY
@given(CARDS, st.integers(1, 12), st.integers(1, 7))
def test_asking_for_more_cards_only_adds_hits_behind(
    cards: str, depth: int, min_cards: int
) -> None:
    fewer = selected(cards, depth, min_cards)
    more = selected(cards, depth, min_cards + 1)

    same = list(takewhile(lambda pair: pair[0] == pair[1], zip(fewer, more, strict=False)))
    assert len(same) == len(fewer)
