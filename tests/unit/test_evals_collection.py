"""Collections in BEIR layout: what is read, what is refused, and how queries are split."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evals.collection import Collection, load_collection
from kb.errors import InputError

ENGLISH = "Warfarin is a blood thinner. Take it at the same time each day."
PORTUGUESE = "A varfarina é um anticoagulante. Tome sempre à mesma hora do dia."
SHIPPED = Path(__file__).parents[2] / "evals" / "collections"


def write(folder: Path, name: str, rows: Sequence[dict[str, Any]], *, zipped: bool = False) -> None:
    data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    path = folder / f"{name}.jsonl{'.gz' if zipped else ''}"
    path.write_bytes(gzip.compress(data) if zipped else data)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    documents: list[dict[str, Any]] = [
        {"_id": "d1", "title": "Warfarin", "text": ENGLISH},
        {"_id": "d2", "text": "Ibuprofen is a painkiller.", "metadata": {"parent": "p"}},
    ]
    write(tmp_path, "corpus", documents)
    write(tmp_path, "queries", [{"_id": f"q{n}", "text": f"question {n}"} for n in range(9)])
    judged = "".join(f"q{n}\td{1 + n % 2}\t{1 + n % 2}\n" for n in range(8))
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    return tmp_path


def test_documents_queries_and_judgments_are_read(folder: Path) -> None:
    found = load_collection(folder)

    assert [(d.id, d.title, d.parent) for d in found.documents] == [
        ("d1", "Warfarin", "d1"),
        ("d2", "", "p"),
    ]
    assert found.queries["q1"] == "question 1"
    assert found.qrels["q1"] == {"d2": 2}


def test_a_query_that_nobody_judged_is_left_out(folder: Path) -> None:
    assert "q8" not in load_collection(folder).queries


def test_gzipped_files_read_alike(folder: Path) -> None:
    plain = load_collection(folder)
    for name in ("corpus", "queries"):
        path = folder / f"{name}.jsonl"
        path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()

    assert load_collection(folder) == plain


def test_the_halves_part_the_queries_and_stay_what_they_are(folder: Path) -> None:
    tuning = load_collection(folder, "tuning-half").queries
    reporting = load_collection(folder, "reporting-half").queries

    assert tuning
    assert reporting
    assert not tuning.keys() & reporting.keys()
    assert tuning.keys() | reporting.keys() == load_collection(folder).queries.keys()
    assert load_collection(folder, "tuning-half").queries == tuning


def test_the_train_split_has_files_of_its_own(folder: Path) -> None:
    write(folder, "queries.train", [{"_id": "t1", "text": "a claim"}])
    (folder / "qrels.train.tsv").write_text("t1\td1\t1\n")

    assert load_collection(folder, "train").queries == {"t1": "a claim"}


def test_a_limit_keeps_the_same_queries_each_time_and_their_judgments(folder: Path) -> None:
    few = load_collection(folder).limited(3)

    assert len(few.queries) == 3
    assert few.queries.keys() == few.qrels.keys()
    assert few.queries.keys() <= load_collection(folder).limited(5).queries.keys()
    assert load_collection(folder).limited(None).queries == load_collection(folder).queries


def test_the_locales_are_those_of_the_texts(folder: Path) -> None:
    write(folder, "queries", [{"_id": f"q{n}", "text": PORTUGUESE} for n in range(8)])

    found = load_collection(folder)

    assert (found.corpus_locale, found.query_locale) == ("en", "pt-BR")


def test_a_document_becomes_a_card_with_its_text_whole(folder: Path) -> None:
    card, _ = load_collection(folder).cards()

    assert (card.id, card.title, card.locale) == ("d1", "Warfarin", "en")
    assert [section.text for section in card.sections] == [ENGLISH]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("corpus.jsonl", "{}\n", "corpus.jsonl:1"),
        ("corpus.jsonl", '{"_id": "d1", "text": "x"}\nnot json\n', "corpus.jsonl:2"),
        ("corpus.jsonl", '{"_id": "d1", "text": " "}\n', "text"),
        ("corpus.jsonl", '{"_id": "d1", "text": "x"}\n' * 2, "twice"),
        ("queries.jsonl", "[1]\n", "queries.jsonl:1"),
        ("queries.jsonl", '{"_id": "other", "text": "x"}\n', "'q0' is judged but not there"),
        ("qrels.tsv", "q1\td1\n", "qrels.tsv:1"),
        ("qrels.tsv", "query-id\tcorpus-id\tscore\nq1\td1\thigh\n", "qrels.tsv:2"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, name: str, content: str, message: str) -> None:
    (folder / name).write_text(content)

    with pytest.raises(InputError, match=message):
        load_collection(folder)


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl", "qrels.tsv"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()

    with pytest.raises(InputError, match=name):
        load_collection(folder)


@pytest.mark.parametrize(
    ("name", "documents", "queries", "locales"),
    [
        ("scifact", 5183, 300, ("en", "en")),
        ("faquad-pt", 249, 900, ("pt-BR", "pt-BR")),
        ("tico19-es-419-to-en", 985, 600, ("en", "es-419")),
        ("tico19-pt-br-to-en", 985, 600, ("en", "pt-BR")),
    ],
)
def test_the_collections_in_the_tree_are_whole(
    name: str, documents: int, queries: int, locales: tuple[str, str]
) -> None:
    found: Collection = load_collection(SHIPPED / name)

    assert (len(found.documents), len(found.queries)) == (documents, queries)
    assert (found.corpus_locale, found.query_locale) == locales
    known = {document.id for document in found.documents}
    assert all(gains.keys() <= known for gains in found.qrels.values())
    assert "icence" in (SHIPPED / name / "SOURCE.md").read_text("utf-8")
