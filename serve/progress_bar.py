"""Progress for a person to see."""

from __future__ import annotations

import sys


class Bar:
    """Show progress on a terminal as a bar, elsewhere as a line for each tenth."""

    def __init__(self) -> None:
        self._shown = ("", -1)

    def __call__(self, label: str, done: int, total: int) -> None:
        """Show ``done`` of ``total``."""
        share = done / total if total else 1.0
        if sys.stderr.isatty():
            filled = "#" * int(share * 30)
            end = "\n" if done >= total else ""
            sys.stderr.write(f"\r{label} [{filled:<30}] {share:4.0%} {end}")
            sys.stderr.flush()
        elif (now := (label, int(share * 10))) != self._shown:
            self._shown = now
            sys.stderr.write(f"{label} {share:.0%}\n")
