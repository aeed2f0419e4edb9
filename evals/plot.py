"""Draw how good each path is, a panel a result."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from evals.results import MAIN_MEASURE, Result, describe_models, paths_of
from kb.errors import WorkError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 2
_WIDTH_INCHES = 9.0
"""900 pixels of a page: a point is 1.4 of them."""
_ROW_INCHES = 2.2
_TITLE_CHARACTERS = 38
_NOTE_CHARACTERS = 52
"""A line, of the small print below a panel's title."""
_NOTE_POINTS = 8.0
_LEADING = 1.2
_POINTS_AN_INCH = 72
_MARKS = {
    "full": ("#0072B2", "o"),
    "rrf_only": ("#D55E00", "s"),
    "dense_only": ("#009E73", "^"),
    "bm25_only": ("#CC79A7", "D"),
}
"""Colours of Okabe and Ito, told apart with any colour vision; shapes tell them apart without."""
_OTHER_MARK = ("#000000", "v")
_STYLE = {
    "svg.hashsalt": "adherence-retrieval",  # Else the ids in the file are drawn at random.
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",  # Comes with the library: the same everywhere.
    "font.size": 9.5,
}


def write_plot(results: Sequence[Result], titles: Sequence[str], path: Path) -> None:
    """Draw nDCG@10 with its interval, by path, as SVG; the same results give the same bytes.

    Args:
        results: one a panel.
        titles: of the panels.
        path: the file, whose folder is there.

    Raises:
        WorkError: matplotlib is not installed.
    """
    try:
        from matplotlib import style
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise WorkError(
            f"a library is missing ({error}); pip install 'adherence-retrieval[evals]'"
        ) from None
    with style.context(["default", _STYLE], after_reset=True):
        rows = max(1, ceil(len(results) / _COLUMNS))
        notes = [_note(result) for result in results]
        lines = max((note.count("\n") + 1 for note in notes), default=0)
        height = rows * (_ROW_INCHES + lines * _NOTE_POINTS * _LEADING / _POINTS_AN_INCH)
        layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
        figure = Figure(figsize=(_WIDTH_INCHES, height), layout=layout)
        panels = figure.subplots(rows, _COLUMNS, squeeze=False).ravel()
        for panel in panels[len(results) :]:
            panel.set_axis_off()
        for panel, result, title, note in zip(panels, results, titles, notes, strict=False):
            _draw(panel, result)
            _name(panel, title, note)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def _draw(panel: Axes, result: Result) -> None:
    paths = paths_of(result)
    for place, path in enumerate(paths):
        found = result.paths[path].figures[MAIN_MEASURE]
        colour, shape = _MARKS.get(path, _OTHER_MARK)
        panel.errorbar(
            found.mean,
            place,
            xerr=[[max(0.0, found.mean - found.low)], [max(0.0, found.high - found.mean)]],
            color=colour,
            marker=shape,
            markersize=7,
            capsize=4,
            linewidth=2,
        )
        panel.text(
            1.02, place, f"{found.mean:.3f}", va="center", transform=panel.get_yaxis_transform()
        )
    panel.set_xlim(0, 1)
    panel.set_ylim(len(paths) - 0.5, -0.5)
    panel.set_yticks(range(len(paths)), paths)
    panel.set_xlabel(f"{MAIN_MEASURE}, mean and 95 % interval")
    panel.grid(axis="x", color="#dddddd")
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _note(result: Result) -> str:
    text = f"{result.queries} queries; {describe_models(result)}"
    return fill(text, _NOTE_CHARACTERS, break_on_hyphens=False)


def _name(panel: Axes, title: str, note: str) -> None:
    height = (note.count("\n") + 1) * _NOTE_POINTS * _LEADING
    panel.set_title(
        fill(title, _TITLE_CHARACTERS), loc="left", fontweight="bold", fontsize=10.5, pad=height + 8
    )
    panel.annotate(
        note,
        (0, 1),
        xycoords="axes fraction",
        xytext=(0, 5),
        textcoords="offset points",
        va="bottom",
        fontsize=_NOTE_POINTS,
        linespacing=_LEADING,
        color="#444444",
    )
