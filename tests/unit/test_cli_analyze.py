"""The ``retrieval analyze`` command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes_kb import HashEmbedder, generations_in
from kb.analysis.lexical import LexicalConfig
from kb.ingest import ingest
from serve.cli import main
from serve.settings import Settings, load_settings

CARD = """---
id: warfarin
title: Warfarin
category: drug-interaction
locale: en
drugs: [warfarin, ibuprofen]
sources:
  - {name: A label, url: "https://example.org/label", licence: CC0-1.0}
reviewed: 2026-11-30
---
## What happens
Warfarin with ibuprofen can make you bleed.
"""

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def analyze(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    """Run the command on places of its own, and give exit code and both outputs."""
    for name in Settings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["analyze", *arguments, "--kb-home", str(tmp_path / "kb")])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_the_tokens_come_in_one_line(analyze: Command) -> None:
    assert analyze("Take 2.5mg of Warfarin") == (0, "take 2.5 mg warfarin\n", "")


def test_the_locale_is_that_asked_for_or_else_detected(analyze: Command) -> None:
    assert analyze("1.000 mg", "--locale", "pt-PT")[1] == "1000 mg\n"
    assert analyze("1.000 mg", "--locale", "en")[1] == "1.000 mg\n"
    assert '"es-419"' in analyze("¿Puedo tomar ibuprofeno con el desayuno?", "--json")[1]


def test_json_is_the_wire_answer(analyze: Command) -> None:
    code, out, _ = analyze("1/2 tablet", "--locale", "en", "--json")

    assert code == 0
    assert json.loads(out) == {
        "locale": "en",
        "analyzer": "product",
        "tokens": ["0.5", "tablet"],
        "added": [],
    }


def test_settings_reach_the_analyser(analyze: Command) -> None:
    published = analyze("the patient's 1/2", "--set", "analyzer=published", "--locale", "en")
    kept = analyze("with the", "--set", "bm25_stop_words=false", "--locale", "en")

    assert published[1] == "patient 1 2\n"
    assert kept[1] == "with the\n"


@pytest.mark.parametrize("text", ["", "   ", "\x00", "a" * 2001])
def test_a_blank_or_endless_text_is_a_wrong_call(analyze: Command, text: str) -> None:
    code, out, err = analyze(text)

    assert (code, out) == (2, "")
    assert err.startswith("retrieval: text: ")
    assert len(err.splitlines()) == 1


def test_an_unknown_analyser_is_a_wrong_call(analyze: Command) -> None:
    code, out, err = analyze("warfarin", "--set", "analyzer=other")

    assert (code, out) == (2, "")
    assert "'analyzer'" in err


def test_words_are_added_from_the_published_cards(analyze: Command, tmp_path: Path) -> None:
    expanding = ("--locale", "en")
    as_typed = ("--set", "drug_name_expansion=false", *expanding)
    assert analyze("coumadin", *expanding) == (0, "coumadin\n", "")

    cards = tmp_path / "cards"
    cards.mkdir()
    (cards / "warfarin.md").write_text(CARD, "utf-8")
    ingest(cards, generations_in(tmp_path / "kb"), [HashEmbedder()])

    assert analyze("coumadin", *expanding) == (0, "coumadin\nadded: warfarin\n", "")
    assert analyze("hydroxyzine", *expanding) == (0, "hydroxyzin\n", "")
    assert analyze("coumadin", *as_typed) == (0, "coumadin\n", "")


def test_the_settings_of_the_lexical_leg_ship_with_drug_names_and_can_all_be_changed() -> None:
    assert load_settings(environ={}).lexical_config() == LexicalConfig(drug_names=True)
    changed = load_settings(
        {
            "analyzer": "published",
            "bm25_k1": 0.9,
            "bm25_b": 0.4,
            "bm25_stop_words": False,
            "drug_name_expansion": False,
        },
        environ={},
    )
    assert changed.lexical_config() == LexicalConfig("published", 0.9, 0.4, stop_words=False)
