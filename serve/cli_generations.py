"""The ``retrieval generations`` command."""

from __future__ import annotations

import argparse
from typing import Any

from kb.errors import StoreError
from kb.generations import Generations, Manifest
from kb.stores.factory import open_generations
from serve.cli_common import load_cli_settings


def add_generations_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command and its actions to a parser's sub-commands."""
    generations = commands.add_parser("generations", help="versions of the knowledge base")
    actions = generations.add_subparsers(required=True, metavar="ACTION")
    for name, run, text in (
        ("list", _list, "every finished generation, a line each; * marks the served one"),
        ("show", _show, "what one holds (the served one, unless named)"),
        ("publish", _publish, "serve another one; replicas change over within seconds"),
        ("rollback", _rollback, "serve the one before the served one"),
        ("prune", _prune, "delete all but the newest and the served one"),
        ("verify", _verify, "compare every byte with its sum (all of them, unless named)"),
    ):
        action = actions.add_parser(name, parents=[common], help=text)
        if name in {"show", "verify"}:
            action.add_argument("id", nargs="?", metavar="ID")
        elif name == "publish":
            action.add_argument("id", metavar="ID")
        elif name == "prune":
            action.add_argument("--keep", type=int, metavar="N", help="how many (keep_generations)")
        action.set_defaults(run=run)


def _list(parsed: argparse.Namespace) -> int:
    generations = _open(parsed)
    current = generations.current_id()
    for generation_id in generations.ids():
        mark = "*" if generation_id == current else " "
        try:
            manifest = generations.read(generation_id)
        except StoreError as error:
            print(f"{mark} {generation_id}\tdamaged: {error}")
        else:
            print(f"{mark} {generation_id}\t{manifest.rows} rows\t{manifest.embedders}")
    return 0


def _show(parsed: argparse.Namespace) -> int:
    generations = _open(parsed)
    manifest = generations.read(parsed.id) if parsed.id else _current(generations)
    loaded = generations.load(manifest.id)
    cards = {chunk.card_id for chunk in loaded.chunks}
    versions = {(chunk.card_id, chunk.locale) for chunk in loaded.chunks}
    print(f"id\t{manifest.id}")
    print(f"created\t{manifest.created}")
    print(f"rows\t{manifest.rows} of {len(cards)} cards in {len(versions)} versions")
    print(f"content\tsha256 {manifest.content_hash}")
    for space in manifest.spaces:
        languages = ", ".join(space.languages) or "any language"
        print(f"space\t{space.name}\t{space.fingerprint}\t{space.rows} rows\t{languages}")
    return 0


def _publish(parsed: argparse.Namespace) -> int:
    generations = _open(parsed)
    with generations.lock():
        generations.publish(parsed.id)
    print(f"{parsed.id}\tpublished")
    return 0


def _rollback(parsed: argparse.Namespace) -> int:
    generations = _open(parsed)
    with generations.lock():
        print(f"{generations.rollback()}\tpublished")
    return 0


def _prune(parsed: argparse.Namespace) -> int:
    generations = _open(parsed)
    keep = load_cli_settings(parsed).keep_generations if parsed.keep is None else parsed.keep
    with generations.lock():
        dropped = [*generations.discard_unfinished(), *generations.prune(max(keep, 1))]
    for generation_id in dropped:
        print(f"{generation_id}\tdeleted")
    return 0


def _verify(parsed: argparse.Namespace) -> int:
    generations = _open(parsed)
    failed = 0
    for generation_id in [parsed.id] if parsed.id else generations.ids():
        try:
            generations.verify(generation_id)
        except StoreError as error:
            failed = 1
            print(f"{generation_id}\tdamaged: {error}")
        else:
            print(f"{generation_id}\tsound")
    return failed


def _open(parsed: argparse.Namespace) -> Generations:
    return open_generations(load_cli_settings(parsed).store_config())


def _current(generations: Generations) -> Manifest:
    manifest = generations.current()
    if manifest is None:
        raise StoreError("no knowledge base yet; run `retrieval ingest`")
    return manifest
