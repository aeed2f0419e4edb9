"""The golden set: that it is whole, and what is refused of one that is not."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from evals.golden import GoldenQuery, qrels_of, read_golden, texts
from kb.cards import LOCALES, read_cards
from kb.errors import InputError
from kb.types import Card, Locale
from serve.settings import Settings

_GAINS = {1, 2}


@pytest.fixture(scope="module")
def golden() -> list[GoldenQuery]:
    return read_golden()


@pytest.fixture(scope="module")
def cards() -> list[Card]:
    return read_cards(Settings().kb_cards)


def best_of(query: GoldenQuery) -> list[str]:
    return [card for card, gain in query.gains.items() if gain == max(query.gains.values())]


# The shipped one


def test_every_query_has_an_id_of_its_own_and_a_text_that_no_other_has(
    golden: list[GoldenQuery],
) -> None:
    assert len({query.id for query in golden}) == len(golden)
    assert len({(query.locale, query.text.casefold()) for query in golden}) == len(golden)
    assert all(query.text.strip() for query in golden)


def test_it_is_large_enough_to_say_something(golden: list[GoldenQuery]) -> None:
    unanswerable = [query for query in golden if not query.answerable]
    near = [query for query in unanswerable if query.kind == "unanswerable-near"]

    assert len(golden) >= 300
    assert len(unanswerable) >= 60
    assert 2 * len(near) >= len(unanswerable)


def test_a_querys_kind_says_whether_it_has_an_answer(golden: list[GoldenQuery]) -> None:
    for query in golden:
        assert query.kind.startswith("unanswerable") == (not query.answerable), query.id


def test_every_card_that_is_judged_is_in_the_content_in_that_locale(
    golden: list[GoldenQuery], cards: list[Card]
) -> None:
    there = {(card.id, card.locale) for card in cards}
    judged = {(card, query.locale) for query in golden for card in query.gains}

    assert judged <= there
    assert {gain for query in golden for gain in query.gains.values()} == _GAINS


def test_every_card_is_the_best_answer_to_a_query_in_each_language(
    golden: list[GoldenQuery], cards: list[Card]
) -> None:
    best = {
        (card, query.locale)
        for query in golden
        for card, gain in query.gains.items()
        if gain == max(_GAINS)
    }

    assert {(card.id, card.locale) for card in cards} - best == set()


@pytest.mark.parametrize("locale", LOCALES)
def test_either_half_has_queries_with_an_answer_and_without(
    golden: list[GoldenQuery], locale: Locale
) -> None:
    halves = Counter((q.for_tuning, q.answerable) for q in golden if q.locale == locale)

    assert min(halves[tuning, answer] for tuning in (True, False) for answer in (True, False)) >= 10


def test_the_queries_that_one_card_alone_answers_best_are_in_one_half(
    golden: list[GoldenQuery],
) -> None:
    halves = defaultdict[str, set[bool]](set)
    for query in golden:
        for card in best_of(query) if query.answerable else ():
            halves[card].add(query.for_tuning)

    assert {card for card, of_card in halves.items() if len(of_card) > 1} == set()


def test_no_query_stands_word_for_word_among_the_turns_of_a_card(
    golden: list[GoldenQuery], cards: list[Card]
) -> None:
    def words(text: str) -> str:
        return " ".join(re.findall(r"\w+", text.casefold()))

    turns = {words(turn) for card in cards for turn in card.asked_as}

    assert [query.id for query in golden if words(query.text) in turns] == []


# Halves


def query_of(query_id: str, **gains: int) -> GoldenQuery:
    return GoldenQuery(query_id, "a question", "en", "question", gains, for_tuning=True)


def halves_of(folder: Path, *judged: str) -> dict[str, bool]:
    """Read queries whose judgments are given as ``id card gain``."""
    ids = dict.fromkeys(line.split()[0] for line in judged)
    (folder / "queries.en.jsonl").write_text("".join(map(row, ids)))
    (folder / "qrels.en.tsv").write_text("".join("\t".join(j.split()) + "\n" for j in judged))
    return {query.id: query.for_tuning for query in read_golden(folder, ["en"])}


def test_the_half_follows_the_best_card_and_not_the_query(folder: Path) -> None:
    halves = halves_of(folder, *(f"q{n}-{card} {card} 2" for card in "abcdefgh" for n in (1, 2)))

    assert set(halves.values()) == {True, False}
    assert all(halves[f"q1-{card}"] == halves[f"q2-{card}"] for card in "abcdefgh")


def test_a_card_that_only_helps_moves_no_query(folder: Path) -> None:
    alone = halves_of(folder, *(f"q-{card} {card} 2" for card in "abcdefgh"))
    helped = halves_of(
        folder, *(f"q-{c} {c} 2" for c in "abcdefgh"), *(f"q-{c} z{c} 1" for c in "abcdefgh")
    )

    assert helped == alone


def test_cards_that_are_best_for_one_query_bring_all_their_queries_into_one_half(
    folder: Path,
) -> None:
    chain = [f"q{n} {'abcdefgh'[n + step]} 2" for n in range(7) for step in (0, 1)]

    assert len(set(halves_of(folder, *chain).values())) == 1


def test_queries_without_an_answer_are_halved_by_their_ids(folder: Path) -> None:
    (folder / "queries.en.jsonl").write_text("".join(row(f"q{n}") for n in range(9)))
    (folder / "qrels.en.tsv").write_text("")

    assert {query.for_tuning for query in read_golden(folder, ["en"])} == {True, False}


def test_only_what_can_be_answered_is_judged() -> None:
    queries = [query_of("q1", a=2, b=1), query_of("q2")]

    assert texts(queries) == {"q1": "a question", "q2": "a question"}
    assert qrels_of(queries) == {"q1": {"a": 2, "b": 1}}


# What is read, and what is refused


def row(query_id: str, text: str = "is it safe?", **data: Any) -> str:
    metadata = {"locale": "en", "kind": "question", **data}
    return json.dumps({"_id": query_id, "text": text, "metadata": metadata}) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "queries.en.jsonl").write_text(
        row("q2", "and with milk?") + row("q1") + row("q3", kind="unanswerable-far")
    )
    (tmp_path / "qrels.en.tsv").write_text(
        "query-id\tcorpus-id\tscore\nq1\ta\t2\nq1\tb\t1\nq2\tb\t2\n"
    )
    for locale in ("es-419", "pt-BR"):
        (tmp_path / f"queries.{locale}.jsonl").write_text("")
        (tmp_path / f"qrels.{locale}.tsv").write_text("")
    return tmp_path


def test_queries_come_by_id_with_the_gains_of_their_cards(folder: Path) -> None:
    read = read_golden(folder, ["en"])

    assert [(q.id, q.text, q.locale, q.kind, q.gains) for q in read] == [
        ("q1", "is it safe?", "en", "question", {"a": 2, "b": 1}),
        ("q2", "and with milk?", "en", "question", {"b": 2}),
        ("q3", "is it safe?", "en", "unanswerable-far", {}),
    ]
    assert [query.answerable for query in read_golden(folder, ["en"])] == [True, True, False]


def test_a_judged_id_that_is_no_query_is_refused_and_named(folder: Path) -> None:
    with (folder / "qrels.en.tsv").open("a") as file:
        file.write("q9\ta\t2\n")

    with pytest.raises(InputError, match=r"qrels\.en\.tsv .*'q9'"):
        read_golden(folder, ["en"])


@pytest.mark.parametrize(
    ("name", "line", "place"),
    [
        ("queries.en.jsonl", "not json\n", r"queries\.en\.jsonl:4"),
        ("queries.en.jsonl", '{"_id": "q4"\n', r"queries\.en\.jsonl:4"),
        ("queries.en.jsonl", "[1]\n", r"queries\.en\.jsonl:4"),
        ("queries.en.jsonl", '{"_id": "q4", "text": "x"}\n', r"queries\.en\.jsonl:4.*metadata"),
        ("queries.en.jsonl", row("q1"), r"queries\.en\.jsonl:4: 'q1' is there twice"),
        ("queries.en.jsonl", row("q4", locale="fr"), r"queries\.en\.jsonl:4"),
        ("queries.en.jsonl", row("q4", locale="pt-BR"), r"queries\.en\.jsonl:4: 'q4'"),
        ("qrels.en.tsv", "q1\ta\n", r"qrels\.en\.tsv:5"),
        ("qrels.en.tsv", "q1\ta\tmuch\n", r"qrels\.en\.tsv:5"),
    ],
)
def test_a_broken_line_is_refused_with_its_file_and_number(
    folder: Path, name: str, line: str, place: str
) -> None:
    with (folder / name).open("a") as file:
        file.write(line)

    with pytest.raises(InputError, match=place):
        read_golden(folder, ["en"])


@pytest.mark.parametrize("name", ["queries.en.jsonl", "qrels.en.tsv"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()

    with pytest.raises(InputError, match=name):
        read_golden(folder, ["en"])
