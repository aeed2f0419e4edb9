"""When a generation is made, and when what there is stays as it is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fakes_kb import HashEmbedder, generations_in
from kb.embedders import factory
from kb.errors import CardError, InputError, StoreError
from kb.generations import Manifest
from kb.models import ModelSpec, ModelStore, find_spec
from serve.knowledge import ensure_generation, ingest_cards
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


BGE = find_spec("bge-small-en-v1.5")
OTHER = find_spec("all-MiniLM-L6-v2")


class Home:
    """A folder with a card, and the models that are at hand; loading one gives a fake of it."""

    def __init__(self, folder: Path) -> None:
        self.cards, self.kb_home, self.models = folder / "cards", folder / "kb", folder / "models"
        self.cards.mkdir()
        (self.cards / "a.md").write_text(CARD, "utf-8")
        self.loaded: list[str] = []

    def install(self, spec: ModelSpec) -> None:
        """Put a model's files down, as far as presence goes."""
        for name in spec.files:
            path = ModelStore(self.models).folder(spec) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"weights")

    def load(self, spec: ModelSpec, *_: object) -> HashEmbedder:
        """Make an embedder as the factory does."""
        self.loaded.append(spec.id)
        return HashEmbedder(name=spec.id)

    def settings(self, *, ingest_on_start: bool = True) -> Settings:
        return Settings(
            kb_cards=self.cards,
            kb_home=self.kb_home,
            model_home=self.models,
            ingest_on_start=ingest_on_start,
            embedder_models=(BGE.id, OTHER.id),
        )

    def ensure(self, *, ingest_on_start: bool = True) -> str:
        """Start, and name what is served then."""
        ensure_generation(self.settings(ingest_on_start=ingest_on_start))
        return self.current().id

    def current(self) -> Manifest:
        manifest = generations_in(self.kb_home).current()
        assert manifest is not None
        return manifest

    def made_by(self) -> list[str]:
        return [space.fingerprint.embedder_id for space in self.current().spaces]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    home = Home(tmp_path)
    monkeypatch.setattr(factory, "make_embedder", home.load)
    return home


def test_the_first_start_ingests_and_the_next_serves_the_same(home: Home) -> None:
    home.install(BGE)

    first = home.ensure()

    assert home.made_by() == [BGE.id]
    home.loaded.clear()
    assert home.ensure() == first
    assert home.loaded == []


def test_a_start_that_may_not_ingest_says_what_to_run(home: Home) -> None:
    with pytest.raises(StoreError, match=r"no knowledge base yet; run `retrieval ingest`"):
        home.ensure(ingest_on_start=False)

    assert not (home.kb_home / "CURRENT").exists()


def test_what_was_published_is_served_without_a_look_at_the_cards(home: Home) -> None:
    home.install(BGE)
    first = home.ensure()
    (home.cards / "a.md").write_text("no card at all", "utf-8")

    assert home.ensure() == first


def test_a_generation_without_vectors_is_made_again_once_there_is_an_embedder(home: Home) -> None:
    first = home.ensure()
    assert home.made_by() == []
    assert home.ensure() == first
    home.install(BGE)

    second = home.ensure()

    assert second != first
    assert home.made_by() == [BGE.id]


def test_an_embedder_that_comes_to_hand_later_gets_its_space_and_the_next_start_changes_nothing(
    home: Home,
) -> None:
    home.install(OTHER)
    first = home.ensure()
    home.install(BGE)

    second = home.ensure()

    assert second != first
    assert home.made_by() == [BGE.id, OTHER.id]
    assert home.ensure() == second


def test_an_embedder_that_comes_to_hand_later_does_not_publish_other_cards(home: Home) -> None:
    home.install(OTHER)
    first = home.ensure()
    (home.cards / "a.md").write_text(CARD.replace("Bleeding", "Changed"), "utf-8")
    home.install(BGE)

    assert home.ensure() == first
    assert home.made_by() == [OTHER.id]


def test_an_embedder_that_is_gone_leaves_what_is_served(home: Home) -> None:
    home.install(BGE)
    home.install(OTHER)
    first = home.ensure()
    shutil.rmtree(ModelStore(home.models).folder(BGE))

    assert home.ensure() == first
    assert home.made_by() == [BGE.id, OTHER.id]


def test_without_the_cards_that_it_was_made_from_a_generation_stays(home: Home) -> None:
    home.install(OTHER)
    first = home.ensure()
    shutil.rmtree(home.cards)
    home.install(BGE)

    assert home.ensure() == first


def test_a_damaged_generation_is_left_to_the_replicas_which_fall_back(home: Home) -> None:
    home.install(OTHER)
    first = home.ensure()
    (home.kb_home / "generations" / first / "manifest.json").write_bytes(b"{")
    home.install(BGE)

    ensure_generation(home.settings())

    assert (home.kb_home / "CURRENT").read_text("utf-8") == f"{first}\n"
    assert [path.name for path in (home.kb_home / "generations").iterdir()] == [first]


def test_a_generation_without_vectors_is_served_when_there_is_no_leave_to_ingest(
    home: Home,
) -> None:
    first = home.ensure()
    home.install(BGE)

    assert home.ensure(ingest_on_start=False) == first


def test_as_many_generations_are_kept_as_the_settings_say(home: Home) -> None:
    for n in range(4):
        (home.cards / "a.md").write_text(CARD.replace("Bleeding", f"Version {n}"), "utf-8")
        ingest_cards(home.settings().model_copy(update={"keep_generations": 2}))

    assert len(generations_in(home.kb_home).ids()) == 2


def test_a_bad_card_stops_the_first_start(home: Home) -> None:
    (home.cards / "a.md").write_text("no card at all", "utf-8")

    with pytest.raises(CardError, match=r"a\.md:1:"):
        home.ensure()


def test_a_missing_card_folder_stops_the_first_start(home: Home) -> None:
    (home.cards / "a.md").unlink()
    home.cards.rmdir()

    with pytest.raises(InputError, match="no such card folder"):
        home.ensure()
