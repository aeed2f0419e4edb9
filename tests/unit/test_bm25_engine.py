"""The lexical leg."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_bm25 import BM25Okapi

from deployments.engines.bm25 import Bm25Engine
from fakes_serve import GENERATION, make_chunk, make_query
from kb.analysis.analyzer import analyze
from kb.analysis.lexical import LexicalConfig
from kb.errors import StageUnavailable
from kb.types import Filters, Locale


def engine_of(*texts: str) -> Bm25Engine:
    """Index texts as the sub-chunks of one card each: c0, c1 and so on."""
    return Bm25Engine([make_chunk(f"c{n}:en:1", text) for n, text in enumerate(texts)], GENERATION)


def found(engine: Bm25Engine, text: str, depth: int = 50) -> list[str]:
    return [hit.chunk_id.partition(":")[0] for hit in engine.search(make_query(text, depth)).hits]


def test_matches_whose_score_is_zero_are_hits_and_the_others_are_not() -> None:
    engine = engine_of(
        "Hello there good man!",
        "It is quite windy in London",
        "It's windy in Athens",
        "How is the weather today?",
    )

    assert set(found(engine, "windy")) == {"c1", "c2"}


def test_matches_whose_score_is_negative_are_hits_and_the_others_are_not() -> None:
    engine = engine_of("fever dose", "fever dose", "dose")
    ranking = engine.search(make_query("fever"))

    assert [hit.chunk_id for hit in ranking.hits] == ["c0:en:1", "c1:en:1"]
    assert all(hit.score < 0 for hit in ranking.hits)


@pytest.mark.parametrize("query", ["zzz", "???", "🙂🙂", "the of", " ", ""])
def test_no_shared_token_gives_an_empty_ranking(query: str) -> None:
    ranking = engine_of("aspirin", "ibuprofen", "codeine").search(make_query(query, depth=2))

    assert ranking.hits == ()
    assert ranking.filtered_out == 0
    assert ranking.generation == GENERATION


@pytest.mark.parametrize("texts", [[], ["", "", ""], ["???", "the of and"]])
def test_an_index_without_a_token_says_that_it_is_empty(texts: list[str]) -> None:
    with pytest.raises(StageUnavailable) as failure:
        engine_of(*texts).search(make_query("metformin"))

    assert (failure.value.stage, failure.value.reason) == ("bm25", "index_empty")


def test_a_sub_chunk_without_tokens_does_not_hide_the_others() -> None:
    engine = engine_of("", "metformin dose", "aspirin")

    assert found(engine, "metformin") == ["c1"]
    assert engine.search(make_query("metformin")).hits[0].score == pytest.approx(
        BM25Okapi([["metformin", "dose"], ["aspirin"]]).get_scores(["metformin"])[0]
    )


def test_a_depth_beyond_the_collection_gives_all_that_match() -> None:
    engine = engine_of("aspirin dose", "ibuprofen dose", "codeine dose")

    assert found(engine, "dose", depth=1000) == ["c0", "c1", "c2"]


@pytest.mark.parametrize(
    ("dose", "other"),
    [("2.5 mg", "25 mg"), ("0.25 mg", "25 mg"), ("0.125 mg", "125 mg"), ("1.5 g", "15 g")],
)
@pytest.mark.parametrize("written", ["{}", "{} "])
def test_a_half_dose_never_matches_the_whole_dose(dose: str, other: str, written: str) -> None:
    number, unit = dose.split()
    asked = written.format(number) + unit
    fillers = [f"{drug} once a day" for drug in ("aspirin", "codeine", "metformin", "insulin")]
    # The right one is last, so that no tie-break can put it first.
    engine = engine_of(f"warfarin {other} tablet", *fillers, f"warfarin {dose} tablet")

    assert found(engine, f"warfarin {asked}")[0] == "c5"
    assert found(engine, number) == ["c5"]


@settings(deadline=None, max_examples=100, derandomize=True)
@given(
    st.decimals(0, 1000, places=3, allow_nan=False), st.decimals(0, 1000, places=3, allow_nan=False)
)
def test_two_doses_match_exactly_when_they_are_the_same_number(a: object, b: object) -> None:
    hits = found(engine_of(f"warfarin {a} mg tablet", "aspirin"), f"{b}")

    assert hits == (["c0"] if a == b else [])


def test_title_and_section_are_searched_too() -> None:
    chunk = make_chunk("c0:en:1", "Ask first.", title="Warfarin and ibuprofen", section="Bleeding")
    engine = Bm25Engine([chunk, make_chunk("c1:en:1", "Take with food.")], GENERATION)

    assert found(engine, "warfarin") == ["c0"]
    assert found(engine, "bleeding") == ["c0"]


def test_a_sub_chunk_is_analysed_in_its_own_language_and_the_query_in_its() -> None:
    spanish = make_chunk("c0:es-419:1", "pastillas para la presión", locale="es-419")
    english = make_chunk("c1:en:1", "blood pressure pills")
    engine = Bm25Engine([spanish, english], GENERATION)

    hits = engine.search(make_query("pastilla", locale="es-419")).hits
    assert [hit.chunk_id for hit in hits] == ["c0:es-419:1"]
    hits = engine.search(make_query("pill", locale="en")).hits
    assert [hit.chunk_id for hit in hits] == ["c1:en:1"]


FILTERED = [
    make_chunk("a:en:1", "warfarin bleeding", drugs=("warfarin",)),
    make_chunk("b:en:1", "warfarin routine", category="adherence-barrier", drugs=("warfarin",)),
    make_chunk("c:en:1", "aspirin bleeding", drugs=("aspirin", "ibuprofen")),
    make_chunk("d:en:1", "insulin", category="escalation"),
    make_chunk("e:en:1", "metformin"),
]


@pytest.mark.parametrize(
    ("filters", "expected", "filtered_out"),
    [
        (Filters(), {"a", "b", "c"}, 0),
        (Filters(category=frozenset({"drug-interaction"})), {"a", "c"}, 1),
        (
            Filters(category=frozenset({"drug-interaction", "adherence-barrier"})),
            {"a", "b", "c"},
            0,
        ),
        (Filters(drugs=frozenset({"ibuprofen", "insulin"})), {"c"}, 2),
        (Filters(frozenset({"adherence-barrier"}), frozenset({"warfarin"})), {"b"}, 2),
        (Filters(frozenset({"adherence-barrier"}), frozenset({"aspirin"})), set(), 3),
        (Filters(category=frozenset({"escalation"})), set(), 3),
    ],
)
def test_filters_keep_what_they_accept_and_count_the_matches_that_they_dropped(
    filters: Filters, expected: set[str], filtered_out: int
) -> None:
    query = make_query("warfarin bleeding", filters=filters)

    ranking = Bm25Engine(FILTERED, GENERATION).search(query)

    assert {hit.chunk_id[0] for hit in ranking.hits} == expected
    assert ranking.filtered_out == filtered_out


def test_filters_are_applied_before_the_depth() -> None:
    chunks = [make_chunk(f"a:en:{n}", "metformin metformin") for n in range(9)]
    wanted = make_chunk("b:en:1", "metformin and many other words", category="escalation")
    engine = Bm25Engine([*chunks, wanted], GENERATION)

    query = make_query("metformin", depth=1, filters=Filters(frozenset({"escalation"})))

    assert [hit.chunk_id for hit in engine.search(query).hits] == ["b:en:1"]


def test_a_long_card_does_not_keep_the_others_out() -> None:
    chunks = [make_chunk(f"A:en:{n}", "metformin metformin") for n in range(12)]
    others = [make_chunk(f"{card}:en:1", "metformin with a meal") for card in "BCD"]
    others += [make_chunk(f"X:en:{n}", "aspirin") for n in range(20)]  # Metformin is rare then.
    query = make_query("metformin", depth=3, min_cards=3)

    hits = Bm25Engine([*chunks, *others], GENERATION).search(query).hits

    assert [hit.chunk_id[0] for hit in hits] == list("AAABC")


WORDS = st.sampled_from(
    ["warfarin", "ibuprofen", "dose", "doses", "2.5", "25", "mg", "the", "fever", "???", "b12"]
)
TEXTS = st.lists(st.lists(WORDS, max_size=6).map(" ".join), max_size=8)
LOCALES: st.SearchStrategy[Locale] = st.sampled_from(["en", "es-419"])
PROPERTY = settings(deadline=None, max_examples=80, derandomize=True)


@PROPERTY
@given(TEXTS, st.lists(WORDS, max_size=4).map(" ".join), LOCALES, st.integers(0, 2**16))
def test_the_hits_are_those_that_share_a_token_ordered_by_raw_score_then_by_id(
    texts: list[str], query: str, locale: Locale, shuffle: int
) -> None:
    # Ids that have nothing to do with the order in which the sub-chunks are indexed.
    chunks = [make_chunk(f"c{(n * 7 + shuffle) % 97}:en:1", t) for n, t in enumerate(texts)]
    indexed = [(c, analyze(c.passage, "en")) for c in chunks if analyze(c.passage, "en")]
    if not indexed:
        return
    tokens = analyze(query, locale)
    scores = BM25Okapi([of_chunk for _, of_chunk in indexed]).get_scores(tokens)
    expected = sorted(
        (-score, chunk.id)
        for (chunk, of_chunk), score in zip(indexed, scores, strict=True)
        if set(tokens) & set(of_chunk)
    )

    hits = Bm25Engine(chunks, GENERATION).search(make_query(query, locale=locale)).hits

    assert [(-hit.score, hit.chunk_id) for hit in hits] == expected


@PROPERTY
@given(TEXTS, st.lists(WORDS, min_size=1, max_size=4).map(" ".join), st.integers(1, 4))
def test_a_smaller_depth_gives_the_beginning_of_the_same_order(
    texts: list[str], query: str, depth: int
) -> None:
    if not any(analyze(text, "en") for text in texts):
        return
    engine = engine_of(*texts)

    assert found(engine, query, depth) == found(engine, query)[:depth]


@PROPERTY
@given(TEXTS, WORDS, st.randoms(use_true_random=False))
def test_the_order_of_the_rows_changes_nothing(
    texts: list[str], query: str, random: Random
) -> None:
    chunks = [make_chunk(f"c{n}:en:1", text) for n, text in enumerate(texts)]
    if not any(analyze(text, "en") for text in texts):
        return
    shuffled = list(chunks)
    random.shuffle(shuffled)

    hits = Bm25Engine(chunks, GENERATION).search(make_query(query)).hits
    again = Bm25Engine(shuffled, GENERATION).search(make_query(query)).hits

    assert [hit.chunk_id for hit in again] == [hit.chunk_id for hit in hits]
    assert [hit.score for hit in again] == pytest.approx([hit.score for hit in hits])


# What can be set.

TWO_LENGTHS = ["warfarin warfarin and a few other words", "warfarin", "aspirin", "x1", "y1", "z1"]
CHUNKS = [make_chunk(f"c{n}:en:1", text) for n, text in enumerate(TWO_LENGTHS)]


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.5, 0.75), (2.0, 0.0)])
def test_k1_and_b_are_those_of_the_config(k1: float, b: float) -> None:
    config = LexicalConfig(k1=k1, b=b)
    tokens = [config.analyze(chunk.passage, "en") for chunk in CHUNKS]
    expected = BM25Okapi(tokens, k1=k1, b=b).get_scores(["warfarin"])

    hits = Bm25Engine(CHUNKS, GENERATION, config).search(make_query("warfarin")).hits

    assert {hit.chunk_id: hit.score for hit in hits} == pytest.approx(
        {"c0:en:1": expected[0], "c1:en:1": expected[1]}
    )


def test_the_published_analyser_reads_rows_and_queries_alike() -> None:
    engine = Bm25Engine(CHUNKS, GENERATION, LexicalConfig(analyzer="published"))

    assert found(engine, "Warfarin's") == ["c1", "c0"]
    assert found(engine, "and") == []


def test_stop_words_are_found_when_they_are_kept() -> None:
    assert found(Bm25Engine(CHUNKS, GENERATION), "and") == []
    assert found(Bm25Engine(CHUNKS, GENERATION, LexicalConfig(stop_words=False)), "and") == ["c0"]


def test_a_brand_finds_its_ingredient_only_when_that_is_switched_on() -> None:
    expanding = Bm25Engine(CHUNKS, GENERATION, LexicalConfig(drug_names=True))

    assert found(Bm25Engine(CHUNKS, GENERATION), "coumadin") == []
    assert found(expanding, "coumadin") == ["c1", "c0"]
    assert found(expanding, "warfrin") == ["c1", "c0"]
    assert found(expanding, "hydroxyzine") == []


def test_expansion_adds_to_what_was_typed_and_drops_nothing() -> None:
    expanding = Bm25Engine(CHUNKS, GENERATION, LexicalConfig(drug_names=True))

    assert found(expanding, "coumadin or aspirin") == ["c2", "c1", "c0"]
    assert found(expanding, "aspirin") == ["c2"]


def test_a_sub_chunk_that_names_one_drug_twice_does_not_outdo_one_that_names_both() -> None:
    # Each of the two brands is rarer than a generic name, and both together than the pair.
    chunks = [
        make_chunk("other:en:1", "She wants Midol or Advil."),
        make_chunk("both:en:1", "Is ibuprofen fine with warfarin?"),
        make_chunk("one:en:1", "Ibuprofen and nothing else."),
        make_chunk("two:en:1", "Warfarin and nothing else."),
        *(make_chunk(f"filler{n}:en:1", f"Something else, number {n}.") for n in range(8)),
    ]
    engine = Bm25Engine(chunks, GENERATION, LexicalConfig(drug_names=True))

    for query in ("ibuprofen with warfarin", "ibuprofin and warferin"):
        assert found(engine, query)[0] == "both"


def test_the_other_names_of_a_drug_count_as_much_as_the_best_of_them_alone() -> None:
    chunks = [
        make_chunk("a:en:1", "Advil, Motrin."),
        make_chunk("b:en:1", "Advil, water."),
        *(make_chunk(f"filler{n}:en:1", f"Something else, number {n}.") for n in range(6)),
    ]
    plain = Bm25Engine(chunks, GENERATION, LexicalConfig())
    expanding = Bm25Engine(chunks, GENERATION, LexicalConfig(drug_names=True))

    def scores(engine: Bm25Engine, query: str) -> dict[str, float]:
        return {hit.chunk_id: hit.score for hit in engine.search(make_query(query)).hits}

    one_name, any_name = scores(plain, "advil"), scores(expanding, "ibuprofen")
    assert any_name["b:en:1"] == one_name["b:en:1"]
    assert any_name["a:en:1"] == max(one_name["a:en:1"], scores(plain, "motrin")["a:en:1"])
