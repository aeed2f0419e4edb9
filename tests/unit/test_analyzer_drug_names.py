"""Other names of a drug, and the right spelling of a mistyped one, in a query."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes_serve import make_chunk
from kb.analysis.build_drug_names import main
from kb.analysis.drug_names import DrugNameExpansion, load_drug_names, sound_of
from kb.analysis.lexical import LexicalConfig
from kb.types import Locale

ENGLISH = DrugNameExpansion(
    [
        make_chunk("a:en:1", "Warfarin (Coumadin), ibuprofen and bleeding", drugs=("warfarin",)),
        make_chunk("b:en:1", "Prednisone, hydralazine, metformin, acetaminophen, insulin"),
        make_chunk("c:en:1", "Zzyzximab is new", drugs=("zzyzximab",)),
        make_chunk("d:en:1", "aspirin, celecoxib, citalopram, sertraline, omeprazole"),
    ],
    LexicalConfig(),
)
SPANISH = DrugNameExpansion(
    [make_chunk("a:es-419:1", "La warfarina, el ibuprofeno y la azitromicina", locale="es-419")],
    LexicalConfig(),
)
PORTUGUESE = DrugNameExpansion(
    [make_chunk("a:pt-BR:1", "A varfarina, o paracetamol e a losartana", locale="pt-BR")],
    LexicalConfig(),
)


# Other names.


@pytest.mark.parametrize(
    ("query", "added"),
    [
        ("is advil safe?", ["ibuprofen"]),
        ("Coumadin®", ["warfarin"]),
        ("warfarin", ["coumadin"]),
        ("TYLENOL 500mg", ["acetaminophen"]),
        ("paracetamol", ["acetaminophen"]),
        ("coumadin with warfarin", []),
        ("lantus at bedtime", ["insulin"]),
        ("metformin", []),
        ("lisinopril", []),  # No sub-chunk has it, nor its brands.
        ("what do I do when I miss a dose", []),
        ("", []),
    ],
)
def test_a_name_brings_the_names_that_the_index_has(query: str, added: list[str]) -> None:
    assert ENGLISH.added(query, "en") == added


@pytest.mark.parametrize(
    ("expansion", "locale", "query", "added"),
    [
        (SPANISH, "es-419", "coumadin", ["warfarin"]),
        (SPANISH, "es-419", "azithromycin", ["azitromicin"]),
        (SPANISH, "es-419", "varfarina", ["warfarin"]),
        (PORTUGUESE, "pt-BR", "warfarin", ["varfarin"]),
        (PORTUGUESE, "pt-BR", "acetaminophen", ["paracetamol"]),
        (PORTUGUESE, "pt-BR", "losartan", []),  # It has the stem of losartana.
    ],
)
def test_names_meet_across_the_spellings_of_three_languages(
    expansion: DrugNameExpansion, locale: Locale, query: str, added: list[str]
) -> None:
    assert expansion.added(query, locale) == added


# Spelling.


@pytest.mark.parametrize(
    ("query", "added"),
    [
        ("warfrin", ["coumadin", "warfarin"]),
        ("warafrin", ["coumadin", "warfarin"]),
        ("ibuprofin", ["ibuprofen"]),
        ("ibuporfin", ["ibuprofen"]),
        ("metforman", ["metformin"]),
        ("zzyzximb", ["zzyzximab"]),
    ],
)
def test_a_mistyped_name_brings_the_one_it_must_be(query: str, added: list[str]) -> None:
    assert sorted(ENGLISH.added(query, "en")) == added


@pytest.mark.parametrize(
    "query",
    [
        "hydroxyzine",  # Another drug than hydralazine.
        "hydroxizine",  # As near to one that the index lacks.
        "prednisolone",
        "prednisolon",
        "prednisalone",
        "metformine tablets",  # A spelling of its own.
        "celexax",  # Celexa is a known name, but the index has it not.
        "arfarin",  # Another first letter.
        "worfrin",  # Seven letters, two edits.
        "waspr",
        "bleeding",
    ],
)
def test_a_word_that_may_be_another_drug_or_no_drug_brings_none(query: str) -> None:
    assert ENGLISH.added(query, "en") == []


def test_no_known_name_is_ever_taken_for_another() -> None:
    names = load_drug_names()
    indexed = {"warfarin", "ibuprofen", "prednisone", "hydralazine", "metformin", "celecoxib"}
    for name in sorted(names.ingredients)[::7]:
        mine = {names.ingredients[name], *names.ingredients[name].split()}
        theirs = {names.ingredients[word] for word in indexed & set(ENGLISH.added(name, "en"))}
        assert theirs <= mine


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.text(max_size=80))
def test_only_words_of_the_index_are_added_and_no_text_makes_it_fail(text: str) -> None:
    typed = set(LexicalConfig().analyze(text, "en"))
    added = ENGLISH.added(text, "en")
    assert len(set(added)) == len(added)
    assert typed.isdisjoint(added)
    assert set(added) <= {"coumadin", "warfarin", "ibuprofen"} | ENGLISH._indexed


# The list.


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("warfarin", "varfarina"),
        ("azithromycin", "azitromicina"),
        ("hydrochlorothiazide", "hidroclorotiazida"),
        ("amoxicillin", "amoxicilina"),
        ("omeprazole", "omeprazol"),
        ("acetaminophen", "acetaminofeno"),
    ],
)
def test_a_name_sounds_alike_in_three_languages(one: str, other: str) -> None:
    assert sound_of(one) == sound_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("hydroxyzine", "hydralazine"),
        ("prednisone", "prednisolone"),
        ("clonidine", "clonazepam"),
        ("celebrex", "celexa"),
        ("metformin", "metronidazole"),
        ("isosorbide", "isosorbides"),
    ],
)
def test_look_alikes_are_not_one_ingredient(one: str, other: str) -> None:
    names = load_drug_names()
    assert names.ingredient_of(one) != names.ingredient_of(other)


def test_everyday_words_and_plurals_are_no_drugs() -> None:
    names = load_drug_names()
    for word in ("rayos", "cambia", "compro", "actos", "heather", "android", "penicilinas"):
        assert names.ingredient_of(word) is None


def test_the_list_is_made_from_the_two_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    products, official, out = (tmp_path / name for name in ("p.tsv", "o.tsv", "out.gz"))
    products.write_text(
        "drug_name\tactive_ingredient\tform_route\tstrength\n"
        "COUMADIN\tWARFARIN SODIUM\tTABLET;ORAL\t5MG\n"
        "DIOVAN HCT\tHYDROCHLOROTHIAZIDE; VALSARTAN\tTABLET;ORAL\t12.5MG;80MG\n"
        "TWOFOLD\tWARFARIN SODIUM\tTABLET;ORAL\t5MG\n"
        "TWOFOLD\tVALSARTAN\tTABLET;ORAL\t5MG\n"
        "RAYOS\tPREDNISONE\tTABLET;ORAL\t5MG\n"
        "TUMSY\tCALCIUM CARBONATE\tTABLET;ORAL\t5MG\n",
        "utf-8",
    )
    official.write_text(
        "name\tsources\tunii\tdisplay_name\n"
        "PARACETAMOL\tINN\t362O9ITL9D\tACETAMINOPHEN\n"
        "13-C UREA\tEMA EPAR\tW6KX9E6D8X\tUREA C-13\n",
        "utf-8",
    )

    assert main([str(products), str(official), str(out)]) == 0
    first = out.read_bytes()
    assert main([str(products), str(official), str(out)]) == 0

    assert out.read_bytes() == first
    assert "names of" in capsys.readouterr().out
    assert gzip.decompress(first).decode().splitlines() == [
        "acetaminophen\tacetaminophen\tgeneric",
        "coumadin\twarfarin\tbrand",
        "paracetamol\tacetaminophen\tgeneric",
        "prednisone\tprednisone\tgeneric",
        "tumsy\tcalcium carbonate\tbrand",
        "valsartan\tvalsartan\tgeneric",
        "warfarin\twarfarin\tgeneric",
    ]
