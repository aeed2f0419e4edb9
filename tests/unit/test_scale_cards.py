"""Cards to measure with: as many as asked for, valid, the same each time, and honest."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from kb.cards import read_cards
from kb.chunking import split_card
from kb.errors import InputError
from kb.types import Card
from loadtests import ingest_scale, scale_cards
from loadtests.ingest_scale import ADDED_CARD, HashEmbedder
from loadtests.scale_cards import MAX_CARD_CHUNKS, SYNTHETIC, write_scale_cards

LABELS = {
    "11111111-aaaa": ("Coumadin", ["WARFARIN SODIUM"]),
    "22222222-bbbb": ("Combi: no. 1 #strong", ["LISINOPRIL AND HYDROCHLOROTHIAZIDE"]),
}
SECTIONS = ("drug_interactions", "spl_medguide", "boxed_warning")
SENTENCES = 60


def _body(label: str, section: str) -> str:
    return " ".join(
        f"Sentence {number} of {section} on {label} tells what may happen with other medicines."
        for number in range(SENTENCES)
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    rows = [
        {
            "section": section,
            "text": f"# not a heading\n```\n{_body(brand, section)}\u2028\u00a0End of it.",
            "set_id": set_id,
            "brand_name": [brand],
            "generic_name": generic,
        }
        for set_id, (brand, generic) in LABELS.items()
        for section in SECTIONS
    ]
    labels = folder / f"{scale_cards.LABELS}.gz"
    labels.parent.mkdir(parents=True)
    with gzip.open(labels, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    topic = {
        "_id": "6308",
        "title": "A1C",
        "url": "https://medlineplus.gov/a1c.html",
        "text": "A1C is a blood test.\n\nIt is done twice a year.",
    }
    topics = folder / scale_cards.TOPICS
    topics.parent.mkdir()
    topics.write_text(json.dumps(topic) + "\n", "utf-8")
    return folder


def _count(cards: list[Card]) -> int:
    return sum(len(split_card(card)) for card in cards)


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("wanted", [1, 37, 400])
def test_the_sub_chunks_number_what_was_asked_for(data: Path, tmp_path: Path, wanted: int) -> None:
    counted = write_scale_cards(data, tmp_path / "out", wanted)
    cards = read_cards(tmp_path / "out")
    assert counted == _count(cards)
    assert wanted <= counted <= wanted * 1.005
    assert max(len(split_card(card)) for card in cards) <= MAX_CARD_CHUNKS


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(
    data: Path, tmp_path: Path
) -> None:
    for name, seed in (("one", 7), ("two", 7), ("three", 8)):
        write_scale_cards(data, tmp_path / name, 300, seed)
    assert _files(tmp_path / "one") == _files(tmp_path / "two")
    assert _files(tmp_path / "one") != _files(tmp_path / "three")


def test_the_real_text_comes_first_and_whole(data: Path, tmp_path: Path) -> None:
    real = list(scale_cards.real_cards(scale_cards.read_texts(data)))
    write_scale_cards(data, tmp_path / "few", _count(real) - 1)
    assert not any(card.title.startswith(SYNTHETIC) for card in read_cards(tmp_path / "few"))

    write_scale_cards(data, tmp_path / "many", _count(real) + 100)
    cards = read_cards(tmp_path / "many")
    written = [card for card in cards if not card.title.startswith(SYNTHETIC)]
    assert _count(written) == _count(real)
    text = " ".join(c.text for card in written for c in split_card(card))
    for brand, _ in LABELS.values():
        for section in SECTIONS:
            for sentence in _body(brand, section).split(". "):
                assert sentence in text


def test_a_synthetic_card_says_so_and_keeps_to_one_kind_of_section(
    data: Path, tmp_path: Path
) -> None:
    write_scale_cards(data, tmp_path / "out", 600)
    made = [card for card in read_cards(tmp_path / "out") if card.title.startswith(SYNTHETIC)]
    assert any(all(brand in card.sections[0].text for brand, _ in LABELS.values()) for card in made)
    for card in made:
        assert "synthetic" in card.id
        assert [source.name.startswith(SYNTHETIC) for source in card.sources] == [True]
        text = card.sections[0].text
        assert sum(section in text for section in SECTIONS) == 1


def test_a_card_names_its_drugs_its_label_and_its_category(data: Path, tmp_path: Path) -> None:
    write_scale_cards(data, tmp_path / "out", 300)
    cards = read_cards(tmp_path / "out")
    assert {card.locale for card in cards} == {"en"}
    label = next(card for card in cards if card.id == "22222222-bbbb-drug-interactions-1")
    assert label.title == "Combi: no. 1 #strong: drug interactions, part 1"
    assert label.category == "drug-interaction"
    assert label.drugs == ("lisinopril", "hydrochlorothiazide")
    assert label.sources[0].url.endswith("setid=22222222-bbbb")
    assert label.sources[0].licence.startswith("CC0")
    assert [section.heading for section in label.sections] == [""]


def test_a_folder_that_holds_something_is_left_alone(data: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.md").write_text("mine")
    with pytest.raises(InputError, match="is not empty"):
        write_scale_cards(data, tmp_path, 10)
    assert (tmp_path / "mine.md").read_text() == "mine"


def test_one_label_alone_cannot_be_recombined(data: Path, tmp_path: Path) -> None:
    labels = data / f"{scale_cards.LABELS}.gz"
    with gzip.open(labels, "rt", encoding="utf-8") as file:
        first = file.readline()
    labels.unlink()
    (data / scale_cards.LABELS).write_text(first, "utf-8")
    with pytest.raises(InputError, match="no two label sections"):
        write_scale_cards(data, tmp_path / "out", 10_000)


@pytest.mark.parametrize("arguments", [["nowhere"], ["data", "--sub-chunks", "0"]])
def test_a_wrong_call_is_exit_code_two(
    data: Path, tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, *rest = arguments
    call = [str(data.parent / folder), str(tmp_path / "out"), *rest]
    assert scale_cards.main(call) == 2
    assert capsys.readouterr().err.startswith("scale_cards: ")


def test_the_command_reads_back_what_it_wrote(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scale_cards.main([str(data), str(tmp_path / "out"), "--sub-chunks", "200"]) == 0
    assert capsys.readouterr().out.startswith("200 sub-chunks in ")


def test_texts_that_share_words_get_near_vectors_of_length_one() -> None:
    texts = ["take warfarin with food", "take warfarin without food", "storage of insulin pens", ""]
    vectors = HashEmbedder().embed_passages(texts)
    assert vectors.shape == (4, 384)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    assert vectors[0] @ vectors[1] > 0.5 > vectors[0] @ vectors[2]
    np.testing.assert_array_equal(vectors[0], HashEmbedder().embed_query(texts[0]))


def test_a_card_more_embeds_only_its_own_and_no_change_embeds_none(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cards, home, file = tmp_path / "cards", tmp_path / "kb", tmp_path / "report.json"
    write_scale_cards(data, cards, 300)
    before = _files(cards)
    call = ["--cards", str(cards), "--kb-home", str(home), "--json", str(file)]
    assert ingest_scale.main(call) == 0
    assert _files(cards) == before

    steps = json.loads(file.read_text())["steps"]
    (tmp_path / "added").mkdir()
    (tmp_path / "added" / "card.md").write_text(ADDED_CARD)
    added = _count(read_cards(tmp_path / "added"))
    assert [step["rows"] for step in steps] == [300, 300 + added, 300 + added]
    assert [step["embedded"] for step in steps] == [300, added, 0]
    assert all(step["peak_mb"] > 0 and step["disk_mb"] > 0 for step in steps)
    assert "everything but the model" in capsys.readouterr().out

    assert ingest_scale.main(call) == 2
    assert "is not empty" in capsys.readouterr().err


def test_an_invalid_card_is_named_across_the_process_border(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cards").mkdir()
    (tmp_path / "cards" / "broken.md").write_text("no front matter")
    assert ingest_scale.main(["--cards", str(tmp_path / "cards")]) == 2
    assert "broken.md:1: must begin with" in capsys.readouterr().err
