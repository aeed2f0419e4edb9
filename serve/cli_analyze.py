"""The ``retrieval analyze`` command."""

from __future__ import annotations

import argparse
from typing import Any

from pydantic import ValidationError

from kb.errors import InputError
from kb.generations import LoadedGeneration
from kb.stores.factory import open_generations
from serve.analysis import TextAnalysis
from serve.cli_common import load_cli_settings
from serve.schemas import AnalyzeRequest
from serve.settings import Settings


def add_analyze_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to a parser's sub-commands."""
    analyze = commands.add_parser(
        "analyze", parents=[common], help="the tokens that the lexical leg makes of a text"
    )
    analyze.add_argument("text")
    analyze.add_argument("--locale", metavar="L")
    analyze.add_argument("--json", action="store_true", help="print the wire answer")
    analyze.set_defaults(run=_analyze)


def _analyze(parsed: argparse.Namespace) -> int:
    settings = load_cli_settings(parsed)
    try:
        request = AnalyzeRequest(text=parsed.text, locale=parsed.locale)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{first['loc'][0]}: {first['msg']}") from None
    answer = TextAnalysis()(request, settings.lexical_config(), _generation(settings))
    if parsed.json:
        print(answer.model_dump_json(indent=2))
        return 0
    print(*answer.tokens)
    if answer.added:
        print("added:", *answer.added)
    return 0


def _generation(settings: Settings) -> LoadedGeneration | None:
    """Load what is published where it is needed: words are added from a generation only."""
    if not settings.drug_name_expansion:
        return None
    generations = open_generations(settings.store_config())
    manifest = generations.current()
    return generations.load(manifest.id) if manifest else None
