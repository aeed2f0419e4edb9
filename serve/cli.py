"""The ``retrieval`` command.

Exit codes: 0 done, 1 the work failed, 2 the call or the input is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import socket
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kb.cards import read_cards
from kb.embedders.factory import ids_at_hand
from kb.errors import InputError, SettingsError
from kb.models import ModelStore, catalogue, find_spec
from kb.stores.factory import open_generations
from serve.cli_analyze import add_analyze_command
from serve.cli_common import common_flags, exit_code, load_cli_settings
from serve.cli_generations import add_generations_command
from serve.progress_bar import Bar
from serve.schemas import RetrieveRequest
from serve.settings import LIVE_SETTINGS, Settings

ABOUT = (
    "Ground an agent for medication adherence in knowledge-base cards. A reference implementation "
    "on public-domain and synthetic content; not a medical device."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and give its exit code."""
    parsed = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    return exit_code("retrieval", parsed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("retrieval", description=ABOUT)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    common = common_flags()

    ingest = commands.add_parser("ingest", parents=[common], help="build and publish a generation")
    ingest.set_defaults(run=_ingest)

    search = commands.add_parser(
        "search", parents=[common], help="retrieve in one process, by the served pipeline"
    )
    search.add_argument("query")
    search.add_argument("--top-k", type=int, default=5, metavar="N")
    search.add_argument("--locale", metavar="L")
    search.add_argument("--explain", action="store_true", help="add every stage's evidence")
    search.add_argument("--json", action="store_true", help="print the wire answer")
    search.set_defaults(run=_search)

    add_analyze_command(commands, common)

    models = commands.add_parser("models", help="the model store")
    actions = models.add_subparsers(required=True, metavar="ACTION")
    for name, run, text in (
        ("list", _models_list, "every model of the catalogue, a line each"),
        ("pull", _models_pull, "fetch models; without a name those in the box"),
        ("verify", _models_verify, "compare the files with their sums"),
    ):
        action = actions.add_parser(name, parents=[common], help=text)
        if name != "list":
            action.add_argument("names", nargs="*", metavar="NAME")
        action.set_defaults(run=run)

    add_generations_command(commands, common)

    doctor = commands.add_parser(
        "doctor", parents=[common], help="check configuration, port, cards and models"
    )
    doctor.add_argument("--config", type=Path, metavar="FILE", help="a serve_config.yaml")
    doctor.add_argument(
        "--running", action="store_true", help="the service runs: its port is taken by itself"
    )
    doctor.set_defaults(run=_doctor)

    settings = commands.add_parser("settings", parents=[common], help="every setting in force")
    settings.set_defaults(run=_settings)
    return parser


def _ingest(parsed: argparse.Namespace) -> int:
    from serve.knowledge import ingest_cards

    report = ingest_cards(load_cli_settings(parsed), Bar())
    done = "unchanged, nothing to do" if report.unchanged else "published"
    print(f"{report.rows} rows upserted; generation {report.generation} ({done})")
    print(f"embedders: {report.embedders}; {report.embedded} vectors made anew")
    return 0


def _search(parsed: argparse.Namespace) -> int:
    from serve.local import build_pipeline

    settings = load_cli_settings(parsed)
    try:
        request = RetrieveRequest(
            query=parsed.query, top_k=parsed.top_k, locale=parsed.locale, explain=parsed.explain
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{first['loc'][0]}: {first['msg']}") from None
    pipeline = build_pipeline(settings)
    answer = asyncio.run(pipeline.retrieve(request, settings, uuid.uuid4().hex))
    if parsed.json:
        print(answer.model_dump_json(indent=2))
        return 0
    why = f" ({answer.no_match_reason})" if answer.no_match_reason else ""
    print(f"{answer.hybrid_path}{why}  {answer.timings_ms['total']:.0f} ms  {answer.generation}")
    for item in answer.degraded:
        print(f"degraded: {item.stage} ({item.reason})")
    for hit in answer.hits:
        print(f"\n{hit.rank}. {hit.title}  [{hit.card_id}]  {hit.score_kind} {hit.score:.3f}")
        print(f"   {hit.passage}")
        if hit.evidence:
            print(f"   {hit.evidence.model_dump_json()}")
    return 0


def _models_list(parsed: argparse.Namespace) -> int:
    store = ModelStore(load_cli_settings(parsed).model_home)
    for spec in catalogue().values():
        state = "api" if spec.source is None else "present" if store.is_present(spec) else "absent"
        languages = ",".join(sorted(spec.languages)) or "any"
        print(f"{spec.id}\t{spec.role}\t{spec.runtime}\t{languages}\t{state}\t{spec.licence}")
    return 0


def _models_pull(parsed: argparse.Namespace) -> int:
    store = ModelStore(load_cli_settings(parsed).model_home)
    specs = [find_spec(name) for name in parsed.names] or [
        spec for spec in catalogue().values() if spec.in_the_box
    ]
    for spec in specs:
        was_present = store.is_present(spec)
        store.pull(spec, Bar())
        print(f"{spec.id}\t{'already there' if was_present else 'pulled'}\t{store.folder(spec)}")
    return 0


def _models_verify(parsed: argparse.Namespace) -> int:
    store = ModelStore(load_cli_settings(parsed).model_home)
    specs = [find_spec(name) for name in parsed.names] or [
        spec for spec in catalogue().values() if store.is_present(spec)
    ]
    for spec in specs:
        store.verify(spec)
        print(f"{spec.id}\tsound" if spec.files else f"{spec.id}\tpresent (no sums to compare)")
    return 0


def _doctor(parsed: argparse.Namespace) -> int:
    given: dict[str, Any] = {}
    if parsed.config:
        from serve.config_check import check_config

        settings, port = check_config(parsed.config)
        if not parsed.running:
            _check_port(port)
        given = settings.model_dump(exclude_unset=True)
        state = "in use by the service" if parsed.running else "free"
        print(f"config\t{parsed.config}: sound; port {port} is {state}")
    settings = load_cli_settings(parsed, given)
    print(f"cards\t{len(read_cards(settings.kb_cards))} valid in {settings.kb_cards}")
    manifest = open_generations(settings.store_config()).current()
    first = "the first start ingests" if settings.ingest_on_start else "run `retrieval ingest`"
    print(f"kb\t{manifest.id if manifest else f'none yet: {first}'}")
    print(f"embedders\t{', '.join(ids_at_hand(settings.embedder_config())) or 'none at hand'}")
    store = ModelStore(settings.model_home)
    present = (n for n in settings.reranker_models if store.is_present(find_spec(n)))
    print(f"reranker\t{next(present, 'none present')}")
    return 0


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise SettingsError(
                f"port {port} on 127.0.0.1 is in use; stop what holds it, "
                "or change http_options.port"
            ) from None


def _settings(parsed: argparse.Namespace) -> int:
    settings = load_cli_settings(parsed)
    for name, field in Settings.model_fields.items():
        live = " (live)" if name in LIVE_SETTINGS else ""
        value = json.dumps(settings.model_dump(mode="json")[name])
        print(f"{name}\t{value}\t{field.description or ''}{live}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
