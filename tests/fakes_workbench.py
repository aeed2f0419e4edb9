"""A workbench over fake stages: the pipeline is the real one, and so is what remembers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evals.memory import RememberedDense, RememberedLexical
from evals.pairs import CachedReranker
from evals.workbench import Workbench
from fakes_serve import (
    CANONICAL,
    FakeDenseLeg,
    FakeLeg,
    World,
    hits_of,
    make_chunk,
    make_generation,
)
from patience import PATIENT
from serve.settings import Settings
from serve.stages import Stages


def make_workbench(world: World, folder: Path, **settings: Any) -> Workbench:
    """Put a workbench over the stages of a world; scores are kept in the folder."""
    reranker = CachedReranker(world.reranker, folder)
    stages = Stages(RememberedLexical(world.bm25), RememberedDense(world.dense), reranker)
    shipped = Settings(**{**PATIENT, **CANONICAL, **settings})
    return Workbench(stages, reranker, make_generation(world.chunks), shipped, 80)


def world_of(bm25: str, dense: str) -> World:
    """Give a world whose legs find cards of one letter each, in the given orders."""
    cards = sorted({*bm25, *dense})
    return World(
        [make_chunk(f"{card}:en:1", f"text of {card}", title=card.upper()) for card in cards],
        FakeLeg("bm25", hits_of(*(f"{card}:en:1" for card in bm25))),
        FakeDenseLeg(hits=hits_of(*(f"{card}:en:1" for card in dense))),
    )
