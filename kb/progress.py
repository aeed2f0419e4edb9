"""How far a long run is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Told what is done so far, and how much there is in all."""
