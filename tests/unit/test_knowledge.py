"""Which generation is served, and when one is made."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from fakes_serve import FakeEmbedder
from kb.errors import CardError, InputError, StoreError
from kb.generations import Generations, Manifest
from kb.protocols import Embedder
from serve import knowledge
from serve.knowledge import ensure_generation
from serve.settings import Settings

CARD = """---
id: warfarin
title: Warfarin
category: drug-interaction
locale: en
drugs: [warfarin]
sources:
  - {name: A label, url: "https://example.org/label", licence: CC0-1.0}
reviewed: 2026-11-30
---
Bleeding.
"""


class Home:
    """A folder with a card, and the embedder that is at hand."""

    def __init__(self, folder: Path) -> None:
        self.cards, self.kb_home, self.models = folder / "cards", folder / "kb", folder / "models"
        self.cards.mkdir()
        (self.cards / "a.md").write_text(CARD, "utf-8")
        self.embedder: Embedder | None = None

    def ensure(self, *, ingest_on_start: bool = True) -> str:
        return ensure_generation(
            Settings(
                kb_cards=self.cards,
                kb_home=self.kb_home,
                model_home=self.models,
                ingest_on_start=ingest_on_start,
            )
        )

    def current(self) -> Manifest:
        manifest = Generations(self.kb_home).current()
        assert manifest is not None
        return manifest


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    home = Home(tmp_path)
    monkeypatch.setattr(knowledge, "choose_embedder", lambda _config: home.embedder)
    return home


def an_embedder() -> FakeEmbedder:
    vectors: defaultdict[str, list[float]] = defaultdict(lambda: [1.0, 0.0])
    return FakeEmbedder(vectors, 2, frozenset())


def test_the_first_start_ingests_and_the_next_serves_the_same(home: Home) -> None:
    home.embedder = an_embedder()

    first = home.ensure()

    assert home.current().id == first
    assert home.current().fingerprint == home.embedder.fingerprint
    assert home.ensure() == first


def test_a_start_that_may_not_ingest_says_what_to_run(home: Home) -> None:
    with pytest.raises(StoreError, match=r"no knowledge base yet; run `retrieval ingest`"):
        home.ensure(ingest_on_start=False)

    assert not (home.kb_home / "CURRENT").exists()


def test_what_was_published_is_served_without_a_look_at_the_cards(home: Home) -> None:
    home.embedder = an_embedder()
    first = home.ensure()
    (home.cards / "a.md").write_text("no card at all", "utf-8")

    assert home.ensure() == first


def test_a_generation_without_vectors_is_made_again_once_there_is_an_embedder(home: Home) -> None:
    first = home.ensure()
    assert home.current().fingerprint is None
    assert home.ensure() == first
    home.embedder = an_embedder()

    second = home.ensure()

    assert second != first
    assert home.current().fingerprint == home.embedder.fingerprint


def test_a_generation_without_vectors_is_served_when_there_is_no_leave_to_ingest(
    home: Home,
) -> None:
    first = home.ensure()
    home.embedder = an_embedder()

    assert home.ensure(ingest_on_start=False) == first


def test_a_bad_card_stops_the_first_start(home: Home) -> None:
    (home.cards / "a.md").write_text("no card at all", "utf-8")

    with pytest.raises(CardError, match=r"a\.md:1:"):
        home.ensure()


def test_a_missing_card_folder_stops_the_first_start(home: Home) -> None:
    (home.cards / "a.md").unlink()
    home.cards.rmdir()

    with pytest.raises(InputError, match="no such card folder"):
        home.ensure()
