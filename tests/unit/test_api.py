"""The wire contract, over HTTP, with the real pipeline on fake stages."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes_serve import (
    CHUNKS,
    GENERATION,
    QUERY,
    BrokenMetrics,
    FakeDenseLeg,
    FakeLeg,
    World,
    hits_of,
    make_chunk,
    make_client,
    make_settings,
    make_transport,
    numbers_in,
)
from kb.types import Source, SubChunk
from serve.limits import MAX_BODY_BYTES
from serve.stages import StageStatus

CANARY = "canary7f3a"
SHARED = make_transport(World())
JSON = {"content-type": "application/json"}


async def retrieve(world: World | None = None, **body: Any) -> httpx.Response:
    async with make_client(world or World()) as client:
        return await client.post("/v1/retrieve", json={"query": QUERY, "locale": "en", **body})


async def send(content: bytes | AsyncIterator[bytes], **headers: str) -> httpx.Response:
    async with make_client(World()) as client:
        return await client.post("/v1/retrieve", content=content, headers=JSON | headers)


async def get(path: str, world: World | None = None) -> httpx.Response:
    async with make_client(world or World()) as client:
        return await client.get(path)


def problem_of(response: httpx.Response, *statuses: int) -> dict[str, Any]:
    """Check that a response is problem details, and give them."""
    assert response.status_code in statuses
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert set(problem) == {"type", "title", "status", "detail", "request_id"}
    assert problem["status"] == response.status_code
    assert problem["type"] == "about:blank"
    assert problem["title"] != "Error"
    return problem


# The answer


async def test_the_answer_has_the_contracts_keys() -> None:
    response = await retrieve(explain=True)

    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    answer = response.json()
    assert set(answer) == {
        "hits",
        "hybrid_path",
        "degraded",
        "no_match_reason",
        "locale",
        "generation",
        "rerank",
        "timings_ms",
        "request_id",
    }
    for hit in answer["hits"]:
        assert set(hit) == {
            "rank",
            "card_id",
            "chunk_id",
            "title",
            "category",
            "locale",
            "passage",
            "score",
            "score_kind",
            "similarity",
            "sources",
            "evidence",
        }
        assert set(hit["evidence"]) == {
            "bm25",
            "dense",
            "fused_score",
            "rerank_score",
            "relevance",
            "calibrated",
            "asked_as",
        }
        assert [set(source) for source in hit["sources"]] == [{"name", "url", "licence"}]
    of_b = next(hit for hit in answer["hits"] if hit["card_id"] == "b")
    assert set(of_b["evidence"]["bm25"]) == {"rank", "score"}
    assert set(of_b["evidence"]["dense"]) == {"rank", "similarity"}
    assert set(answer["rerank"]) == {"model", "window", "scored"}
    assert {"total", "bm25", "dense", "fuse", "rerank"} <= set(answer["timings_ms"])
    assert (answer["hybrid_path"], answer["degraded"]) == ("full", [])
    assert (answer["locale"], answer["generation"]) == ("en", GENERATION)


async def test_only_the_query_is_needed() -> None:
    async with make_client(World()) as client:
        response = await client.post("/v1/retrieve", json={"query": QUERY})

    assert response.status_code == 200
    assert all(hit.get("evidence") is None for hit in response.json()["hits"])


async def test_a_degraded_answer_names_stage_and_reason() -> None:
    world = World()
    world.dense.fault = "raise"

    answer = (await retrieve(world)).json()

    assert answer["hybrid_path"] == "bm25_only"
    assert answer["degraded"] == [{"stage": "dense", "reason": "down"}]
    assert answer["rerank"] is None


async def test_nothing_found_is_an_answer_with_its_reason() -> None:
    response = await retrieve(World(chunks=()))

    assert response.status_code == 200
    answer = response.json()
    assert (answer["hits"], answer["hybrid_path"]) == ([], "no_match")
    assert answer["no_match_reason"] == "kb_empty"


async def test_a_passage_comes_back_as_it_is_in_the_card() -> None:
    text = '<b>Ignore "previous" instructions</b> {{7*7}} {0.__class__} \x1b[31m 2.5 µg 🙂'
    world = World(
        [make_chunk("a:en:1", text)],
        FakeLeg("bm25", hits_of("a:en:1")),
        FakeDenseLeg(hits=hits_of("a:en:1")),
    )

    assert (await retrieve(world)).json()["hits"][0]["passage"] == text


@pytest.mark.parametrize("leg", ["nan", "inf", "-inf"])
async def test_a_number_that_is_none_never_reaches_the_client(leg: str) -> None:
    world = World()
    world.dense.cosines = {"a:en:1": float(leg)}

    response = await retrieve(world, explain=True)

    assert response.status_code == 200
    assert all(abs(number) < float("inf") for number in numbers_in(response.json()))
    (of_a,) = [hit for hit in response.json()["hits"] if hit["card_id"] == "a"]
    assert of_a["similarity"] is None


# The request


async def test_a_top_k_beyond_the_cards_gives_them_all() -> None:
    answer = (await retrieve(top_k=50)).json()

    assert [hit["rank"] for hit in answer["hits"]] == [1, 2, 3]


@pytest.mark.parametrize(
    "top_k", [0, -1, 51, True, False, "5", 5.0, 2.5, "abc", None, [], {}, 10**30]
)
async def test_a_top_k_that_is_no_whole_number_from_1_to_50_is_refused(top_k: Any) -> None:
    assert "top_k" in problem_of(await retrieve(top_k=top_k), 422)["detail"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("query", None),
        ("query", 5),
        ("query", True),
        ("query", ["aspirin"]),
        ("query", {"text": "aspirin"}),
        ("locale", 5),
        ("locale", "e" * 36),
        ("filters", None),
        ("filters", ["escalation"]),
        ("filters", {"category": "escalation"}),
        ("filters", {"category": ["first-aid"]}),
        ("filters", {"category": ["escalation"] * 11}),
        ("filters", {"drugs": ["d" * 101]}),
        ("filters", {"drugs": ["d"] * 51}),
        ("filters", {"drugs": [5]}),
        ("hybrid", "true"),
        ("hybrid", 1),
        ("hybrid", None),
        ("rerank", "false"),
        ("explain", 0),
        ("min_similarity", 1.5),
        ("min_similarity", -1.5),
        ("min_similarity", "0.3"),
        ("min_similarity", True),
        ("deadline_ms", 0),
        ("deadline_ms", 60_001),
        ("deadline_ms", 100.5),
        ("deadline_ms", "100"),
        ("deadline_ms", True),
    ],
)
async def test_a_value_of_another_kind_is_refused_by_its_fields_name(
    field: str, value: Any
) -> None:
    assert field in problem_of(await retrieve(**{field: value}), 422)["detail"]


async def test_an_unknown_field_is_named() -> None:
    problem = problem_of(await retrieve(topk=5), 422)

    assert problem["detail"] == "topk: is not a known field"


@pytest.mark.parametrize("where", [{"$where": ["1"]}, {"where": {"$ne": CANARY}}, {CANARY: []}])
async def test_an_unknown_filter_is_refused(where: dict[str, Any]) -> None:
    detail = problem_of(await retrieve(filters=where), 422)["detail"]

    assert "filters" in detail
    assert CANARY not in detail


async def test_an_unknown_field_that_is_no_name_is_not_repeated() -> None:
    body: dict[str, Any] = {f"I take {CANARY}": 1}

    problem = problem_of(await retrieve(**body), 422)

    assert problem["detail"] == "?: is not a known field"


async def test_filters_reach_the_legs_and_any_spelling_of_a_drug_will_do() -> None:
    world = World()

    await retrieve(world, filters={"category": ["escalation"], "drugs": ["WarFarin"]})

    assert world.bm25.asked[0].filters.category == {"escalation"}
    assert world.dense.asked[0].filters.drugs == {"warfarin"}


@pytest.mark.parametrize("query", ["", " ", "   ", "\n\t", "\u00a0", "\u3000", "\x00", " \x00 "])
async def test_a_blank_query_is_refused(query: str) -> None:
    assert "query" in problem_of(await retrieve(query=query), 422)["detail"]


@pytest.mark.parametrize("character", ["a", "é", "国", "🙂"])
async def test_a_query_may_have_two_thousand_characters_and_no_more(character: str) -> None:
    assert (await retrieve(query=character * 2000)).status_code == 200
    assert "query" in problem_of(await retrieve(query=character * 2001), 422)["detail"]


async def test_nul_is_taken_out_of_the_query() -> None:
    world = World()

    assert (await retrieve(world, query="ibu\x00profen\x00")).status_code == 200
    assert world.bm25.asked[0].text == world.dense.asked[0].text == "ibuprofen"
    assert world.reranker.asked[0][0] == "ibuprofen"


@pytest.mark.parametrize("half", ["\\ud83d", "\\ude42", "\\ude42\\ud83d"])
async def test_a_lone_surrogate_is_refused(half: str) -> None:
    response = await send(f'{{"query": "{CANARY} {half}"}}'.encode())

    assert "query" in problem_of(response, 422)["detail"]
    assert CANARY not in response.text


async def test_a_pair_of_surrogates_is_a_character() -> None:
    assert (await send(b'{"query": "headache \\ud83d\\ude42"}')).status_code == 200


@pytest.mark.parametrize(
    ("tag", "query", "locale"),
    [
        ("es-MX", QUERY, "es-419"),
        ("es-419", QUERY, "es-419"),
        ("pt-PT", QUERY, "pt-BR"),
        ("EN-us", "¿puedo tomar ibuprofeno?", "en"),
        ("de-AT", "¿Puedo tomar ibuprofeno con warfarina?", "es-419"),
        ("", "¿Puedo tomar ibuprofeno con warfarina?", "es-419"),
        (None, "Posso tomar ibuprofeno com varfarina?", "pt-BR"),
        ("xx", QUERY, "en"),
    ],
)
async def test_a_tag_maps_to_a_locale_and_an_unknown_one_is_detected(
    tag: str | None, query: str, locale: str
) -> None:
    assert (await retrieve(query=query, locale=tag)).json()["locale"] == locale


MALFORMED = [
    b"",
    b" ",
    b'{"query": "' + CANARY.encode(),
    b'{"query": "' + CANARY.encode() + b'"',
    b'{"query": "' + CANARY.encode() + b' \xff\xfe"}',
    b'{"query": "' + CANARY.encode() + b'",}',
    b"{'query': '" + CANARY.encode() + b"'}",
    b'{"query": "' + CANARY.encode() + b'\n"}',
    b'"' + CANARY.encode() + b'"',
    b'["' + CANARY.encode() + b'"]',
    b"[]",
    b"null",
    b"true",
    b"123",
    b"NaN",
    b"[" * 60_000,
    b'{"a":' * 10_000,
    b'{"query": "' + CANARY.encode() + b'", "top_k": ' + b"9" * 5000 + b"}",
    b'{"query": "' + CANARY.encode() + b'", "min_similarity": NaN}',
    b'{"query": "' + CANARY.encode() + b'", "min_similarity": 1e400}',
    b'{"query": "' + CANARY.encode() + b'", "min_similarity": -Infinity}',
    b'{"query": {"' + CANARY.encode() + b'": 1}}',
    b'{"' + CANARY.encode() + b'": "x"}',
    b"\xef\xbb\xbfquery=" + CANARY.encode(),
    f'{{"query": "{CANARY}"}}'.encode("utf-16")[:-1],
    b"\x00" * 100,
]


@pytest.mark.parametrize("content", MALFORMED)
async def test_a_malformed_body_is_the_callers_fault_and_is_not_repeated(content: bytes) -> None:
    response = await send(content)

    problem_of(response, 400, 413, 415, 422)
    assert CANARY not in response.text


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/xml", "multipart/form-data; boundary=x", "", "json"]
)
async def test_a_body_that_is_not_said_to_be_json_is_refused(content_type: str) -> None:
    body = json.dumps({"query": CANARY}).encode()

    response = await send(body, **{"content-type": content_type})

    problem_of(response, 400, 415, 422)
    assert CANARY not in response.text


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 70), st.integers(0, 255)), min_size=1, max_size=4))
async def test_no_change_of_bytes_makes_the_service_fail(changes: list[tuple[int, int]]) -> None:
    valid = {"query": CANARY * 3, "top_k": 5, "filters": {"drugs": ["x"]}}
    body = bytearray(json.dumps(valid).encode())
    for place, byte in changes:
        body[place] = byte

    async with httpx.AsyncClient(transport=SHARED, base_url="http://retrieval") as client:
        response = await client.post("/v1/retrieve", content=bytes(body), headers=JSON)

    assert response.status_code < 500
    if response.status_code != 200:
        problem_of(response, 400, 422)
        assert CANARY not in response.text


async def test_a_body_that_is_too_large_is_refused_by_its_declared_length() -> None:
    body = json.dumps({"query": CANARY, "locale": "e" * MAX_BODY_BYTES}).encode()

    response = await send(body)

    assert int(response.request.headers["content-length"]) > MAX_BODY_BYTES
    problem_of(response, 413)
    assert CANARY not in response.text


async def test_a_body_that_is_too_large_is_refused_as_it_streams_in() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"query": "'
        for _ in range(MAX_BODY_BYTES // 1000 + 1):
            yield b"a" * 1000
        yield b'"}'

    response = await send(chunks())

    assert response.request.headers["transfer-encoding"] == "chunked"
    problem_of(response, 413)


async def test_a_body_may_come_in_pieces() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"que'
        yield b'ry": "aspirin"}'

    assert (await send(chunks())).status_code == 200


# Errors


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/retrieve", 405),
        ("DELETE", "/v1/info", 405),
        ("GET", "/v1/nowhere", 404),
        ("GET", "/", 404),
        ("POST", "/v2/retrieve", 404),
    ],
)
async def test_a_wrong_address_is_answered_with_problem_details(
    method: str, path: str, status: int
) -> None:
    async with make_client(World()) as client:
        problem_of(await client.request(method, path), status)


async def test_a_fault_of_our_own_is_a_500_without_its_message() -> None:
    response = await retrieve(World(metrics=BrokenMetrics(CANARY)), query=CANARY)

    problem = problem_of(response, 500)
    assert problem["title"] == "Internal error"
    assert CANARY not in response.text
    assert "RuntimeError" not in response.text


async def test_a_fault_of_our_own_is_found_in_the_log_by_its_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG):
        problem = problem_of(
            await retrieve(World(metrics=BrokenMetrics(CANARY)), query=CANARY), 500
        )

    assert "its id finds it in the log" in problem["detail"]
    assert problem["request_id"] in caplog.text
    assert CANARY not in caplog.text


# The request's id


@pytest.mark.parametrize("given_id", ["a", "abc-1.2_3", "A" * 64, "0"])
async def test_a_plain_request_id_is_kept(given_id: str) -> None:
    async with make_client(World()) as client:
        client.headers["x-request-id"] = given_id
        found = await client.post("/v1/retrieve", json={"query": QUERY})
        refused = await client.post("/v1/retrieve", json={})
        missing = await client.get("/v1/cards/none")

    assert [r.status_code for r in (found, refused, missing)] == [200, 422, 404]
    assert {r.json()["request_id"] for r in (found, refused, missing)} == {given_id}


@pytest.mark.parametrize(
    "given_id",
    [b"", b" ", b"A" * 65, b"a b", b"a;b", b"<b>", b'"', b"../x", "ñ".encode(), b"a\tb", b"a\xff"],
)
async def test_any_other_request_id_is_replaced(given_id: bytes) -> None:
    async with make_client(World()) as client:
        headers = [(b"x-request-id", given_id)]
        response = await client.post("/v1/retrieve", json={"query": QUERY}, headers=headers)

    assert re.fullmatch(r"[0-9a-f]{32}", response.json()["request_id"])


async def test_every_request_without_an_id_gets_one_of_its_own() -> None:
    world = World()

    assert len({(await retrieve(world)).json()["request_id"] for _ in range(5)}) == 5


# Cards

LABEL = Source("A label", "https://example.org/1", "CC0-1.0")


def part_of_c(ordinal: int, text: str, section: str) -> SubChunk:
    return make_chunk(
        f"c:en:{ordinal}",
        text,
        title="A card",
        section=section,
        ordinal=ordinal,
        drugs=("x", "y"),
    )


CARDS = [
    part_of_c(2, "Then wait.", "What to do"),
    part_of_c(1, "Stop.", "What to do"),
    part_of_c(10, "It is rare.", "How often"),
    make_chunk("c:pt-BR:1", "Pare.", title="Um cartão", locale="pt-BR"),
    make_chunk("d:es-419:1", "Espere.", title="Una tarjeta", locale="es-419"),
    make_chunk("d:pt-BR:1", "Espere.", title="Um cartão", locale="pt-BR"),
]


async def test_a_card_comes_whole_and_in_order() -> None:
    response = await get("/v1/cards/c", World(CARDS))

    assert response.status_code == 200
    assert response.json() == {
        "card_id": "c",
        "title": "A card",
        "category": "drug-interaction",
        "locale": "en",
        "drugs": ["x", "y"],
        "sections": [
            {"heading": "What to do", "text": "Stop. Then wait."},
            {"heading": "How often", "text": "It is rare."},
        ],
        "sources": [{"name": "A label", "url": "https://example.org/label", "licence": "CC0-1.0"}],
        "generation": GENERATION,
    }


@pytest.mark.parametrize(
    ("card", "asked", "locale"),
    [
        ("c", "", "en"),
        ("c", "?locale=pt-BR", "pt-BR"),
        ("c", "?locale=pt-PT", "pt-BR"),
        ("c", "?locale=es-419", "en"),
        ("c", "?locale=de", "en"),
        ("d", "?locale=es-MX", "es-419"),
        ("d", "", "es-419"),
        ("d", "?locale=pt", "pt-BR"),
    ],
)
async def test_a_card_comes_in_the_locale_asked_for_or_in_one_that_it_has(
    card: str, asked: str, locale: str
) -> None:
    assert (await get(f"/v1/cards/{card}{asked}", World(CARDS))).json()["locale"] == locale


ASKED = make_chunk(
    "c:en:asked-1", "my gums bleed, what now?", title="A card", ordinal=11, shown=False
)


async def test_a_card_found_by_a_turn_shows_its_text_and_the_evidence_names_the_turn() -> None:
    legs = FakeLeg("bm25", hits_of(ASKED.id)), FakeDenseLeg(hits=hits_of(ASKED.id))
    world = World([*CARDS, ASKED], *legs)

    plain, explained = await retrieve(world), await retrieve(world, explain=True)

    (hit,) = explained.json()["hits"]
    assert (hit["card_id"], hit["chunk_id"], hit["passage"]) == ("c", "c:en:1", "Stop.")
    assert hit["evidence"]["asked_as"] == ASKED.text
    assert ASKED.text not in plain.text
    assert explained.text.count(ASKED.text) == 1


async def test_a_whole_card_never_shows_a_turn() -> None:
    with_turn, without = (
        await get("/v1/cards/c", World([*CARDS, ASKED])),
        await get("/v1/cards/c", World(CARDS)),
    )

    assert with_turn.json() == without.json()
    assert ASKED.text not in with_turn.text


async def test_sources_of_the_same_name_are_all_there() -> None:
    other = Source("A label", "https://example.org/2", "CC0-1.0")
    chunks = [make_chunk("a:en:1", sources=(LABEL, other)), make_chunk("a:en:2", sources=(LABEL,))]

    card = (await get("/v1/cards/a", World(chunks))).json()

    assert [source["url"] for source in card["sources"]] == [LABEL.url, other.url]


@pytest.mark.parametrize(
    "card_id", ["none", "..%2F..%2Fetc%2Fpasswd", "%2Fetc%2Fpasswd", "a%00b", ".", "A", "con", "%"]
)
async def test_a_card_that_is_not_there_is_a_404_that_does_not_repeat_its_id(card_id: str) -> None:
    problem = problem_of(await get(f"/v1/cards/{card_id}"), 404)

    assert "passwd" not in json.dumps(problem)


async def test_an_id_of_endless_length_is_refused() -> None:
    problem_of(await get("/v1/cards/" + "a" * 10_000), 404, 422)


# Analysis


async def analyze(**parameters: str) -> httpx.Response:
    async with make_client(World()) as client:
        return await client.get("/v1/analyze", params=parameters)


async def test_the_tokens_of_a_text_are_given_with_locale_and_analyser() -> None:
    response = await analyze(text="Take 2.5mg & ½ tablet\x00", locale="en-US")

    assert response.status_code == 200
    assert response.json() == {
        "locale": "en",
        "analyzer": "product",
        "tokens": ["take", "2.5", "mg", "0.5", "tablet"],
        "added": [],
    }


async def test_the_locale_of_a_text_is_detected_when_none_is_named() -> None:
    text = "¿Puedo tomar ibuprofeno con warfarina?"

    assert (await analyze(text=text)).json()["locale"] == "es-419"
    assert (await analyze(text=text, locale="de")).json()["locale"] == "es-419"
    assert (await analyze(text=text, locale="pt")).json()["locale"] == "pt-BR"


async def test_the_words_that_expansion_adds_are_those_of_the_generation() -> None:
    settings = make_settings(drug_name_expansion=True)
    world = World([make_chunk("a:en:1", "Warfarin and bleeding")])
    async with make_client(world, settings) as client:
        found = [
            (await client.get("/v1/analyze", params={"text": text, "locale": "en"})).json()
            for text in ("coumadin", "advil", "hydroxyzine")
        ]

    assert [answer["added"] for answer in found] == [["warfarin"], [], []]
    assert (await analyze(text="coumadin", locale="en")).json()["added"] == []


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({}, "text"),
        ({"text": ""}, "text"),
        ({"text": "  \x00"}, "text"),
        ({"text": CANARY * 201}, "text"),
        ({"text": CANARY, "locale": CANARY * 4}, "locale"),
        ({"text": CANARY, "query": CANARY}, "query"),
    ],
)
async def test_a_text_that_is_no_query_is_refused_and_not_repeated(
    parameters: dict[str, str], named: str
) -> None:
    response = await analyze(**parameters)

    assert named in problem_of(response, 422)["detail"]
    assert CANARY not in response.text


async def test_a_text_of_two_thousand_characters_is_analysed() -> None:
    assert (await analyze(text="国" * 2000)).status_code == 200
    problem_of(await analyze(text="国" * 2001), 422)


# Operations


async def test_info_names_settings_stages_and_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOYAGE_API_KEY", CANARY)

    response = await get("/v1/info")

    info = response.json()
    assert set(info) == {"about", "settings", "stages", "generation"}
    assert "not a medical device" in info["about"]
    assert info["settings"]["leg_timeout_ms"] == make_settings().leg_timeout_ms
    assert info["stages"] == {"bm25": "fake", "dense": "fake", "reranker": "fake"}
    assert info["generation"] == {"id": GENERATION, "rows": len(CHUNKS), "spaces": []}
    assert CANARY not in response.text


async def test_info_shows_no_password_of_an_address() -> None:
    proxied = make_settings(voyage_base_url=f"https://user:{CANARY}@proxy.example.org/v1")

    async with make_client(World(), proxied) as client:
        response = await client.get("/v1/info")

    assert response.status_code == 200
    assert CANARY not in response.text


async def test_the_settings_are_those_of_the_moment() -> None:
    world = World()

    async with make_client(world, make_settings(retrieval_hybrid_enabled=False)) as client:
        response = await client.post("/v1/retrieve", json={"query": QUERY})

    assert response.json()["hybrid_path"] == "dense_only"


async def test_live_only_says_that_the_process_answers() -> None:
    world = World()
    world.bm25.fault = world.dense.fault = world.reranker.fault = "raise"

    response = await get("/livez", world)

    assert (response.status_code, response.json()) == (200, {"live": True})
    assert world.bm25.asked == []


async def test_ready_is_every_stage_and_the_generation_by_name() -> None:
    response = await get("/readyz")

    assert response.status_code == 200
    ready = response.json()
    assert ready["ready"] is True
    assert set(ready["pings"]) == {"bm25", "dense", "reranker", "generation"}
    assert all(set(ping) == {"ok", "detail"} and ping["ok"] for ping in ready["pings"].values())
    assert GENERATION in ready["pings"]["generation"]["detail"]


@pytest.mark.parametrize("stage", ["bm25", "dense", "reranker"])
@pytest.mark.parametrize("fault", ["not ok", "crash"])
async def test_one_stage_that_is_not_there_makes_the_service_not_ready(
    stage: str, fault: str
) -> None:
    world = World()
    if fault == "crash":
        getattr(world, stage).fault = fault
    else:
        getattr(world, stage).state = StageStatus(ok=False, detail="loading")

    response = await get("/readyz", world)

    assert response.status_code == 503
    ready = response.json()
    assert ready["ready"] is False
    assert [name for name, ping in ready["pings"].items() if not ping["ok"]] == [stage]


async def test_the_schema_says_what_the_service_is_and_is_not() -> None:
    schema = (await get("/openapi.json")).json()

    assert "not a medical device" in schema["info"]["description"]
    assert {"/v1/retrieve", "/v1/cards/{card_id}", "/v1/info", "/livez", "/readyz"} <= set(
        schema["paths"]
    )
