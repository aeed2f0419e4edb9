"""What the commands have in common: flags and settings."""

from __future__ import annotations

import argparse
from typing import Any

from kb.errors import SettingsError
from serve.settings import Settings, load_settings


def common_flags() -> argparse.ArgumentParser:
    """Give the flags that every command takes."""
    flags = argparse.ArgumentParser(add_help=False)
    flags.add_argument("--cards", metavar="DIR", help="the cards (KB_CARDS)")
    flags.add_argument("--kb-home", metavar="DIR", help="store and generations (KB_HOME)")
    flags.add_argument(
        "--models", metavar="DIR", dest="model_home", help="model store (MODEL_HOME)"
    )
    flags.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="any setting"
    )
    return flags


def load_cli_settings(parsed: argparse.Namespace, given: dict[str, Any] | None = None) -> Settings:
    """Read the settings, flags winning over all else. Raises SettingsError."""
    flags = {"kb_cards": parsed.cards, "kb_home": parsed.kb_home, "model_home": parsed.model_home}
    overrides = {name: value for name, value in flags.items() if value is not None}
    for pair in parsed.set:
        name, equals, value = pair.partition("=")
        if not equals:
            raise SettingsError(f"--set wants NAME=VALUE, not {pair!r}")
        overrides[name] = value
    return load_settings(given, overrides=overrides)
