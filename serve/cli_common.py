"""What the commands have in common: flags, settings and exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from kb.errors import InputError, SettingsError, WorkError
from serve.settings import Settings, load_settings


def exit_code(name: str, parsed: argparse.Namespace) -> int:
    """Run the chosen command; what fails is one line on standard error.

    Exit codes: 0 done, 1 the work failed, 2 the call or the input is wrong.

    Args:
        name: of the command, before the line.
        parsed: its arguments; ``run`` is the function of the chosen sub-command.
    """
    run: Callable[[argparse.Namespace], int] = parsed.run
    try:
        return run(parsed)
    except InputError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    except WorkError as error:
        print(f"{name}: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
    return 1


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
