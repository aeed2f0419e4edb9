"""Write what was measured into the documentation: ``quality.md`` and its picture."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from evals.bootstrap import RESAMPLES
from evals.plot import write_plot
from evals.results import (
    MAIN_MEASURE,
    PATHS,
    Result,
    best_leg,
    counts_text,
    describe_models,
    measures_of,
    paths_of,
    steps_of,
)
from kb.errors import InputError, WorkError

COLLECTIONS = Path(__file__).parent / "collections"
_TEXT = "quality.md"
_PICTURE = "quality.svg"
_NO_SOURCE = "local, not in this repository"

_HOW_TO_READ = f"""**How to read it.** A figure is the mean over the queries, its 95 % interval in
brackets: percentile bootstrap over the queries, {RESAMPLES:,} resamples, a fixed seed. Differences
are taken query by query and resampled in pairs: **better** and **worse** mean that the interval
leaves out 0, **alike** that it does not, which is no proof that two are the same. Nothing is
corrected for the number of comparisons. What was not judged counts as not relevant; Judged@10 says
how many of the first ten were judged. A path is the one that was asked for; the last columns say
which one the service then took, and how many candidates a query the reranker scored. Time limits
are lifted: how much of this there is time for is another question."""
_ON_ORDERING = """Each path should be no worse than the one below it: full ≥ rrf_only ≥ the better
of the two legs. That leg is chosen on these same queries, which flatters it a little."""
_ON_METHOD = """Documents are ingested as cards, and cut into sub-chunks as cards are. The queries
go through the service's own pipeline in one process: ten cards each, and a hundred without
reranking for R@100. The measures are those of trec_eval, by ir-measures."""


@dataclass(frozen=True, slots=True)
class _Source:
    name: str
    link: str
    licence: str


def write_report(
    results: Sequence[Result],
    sections: Sequence[str],
    docs: Path,
    collections: Path = COLLECTIONS,
) -> None:
    """Write ``quality.md`` and ``quality.svg``; the same input gives the same bytes.

    Args:
        results: a table and a panel each, in this order.
        sections: ready Markdown, each with its heading, that follows the tables.
        docs: the folder that they are written to.
        collections: where each collection's ``SOURCE.md`` says what it is called and its licence.

    Raises:
        InputError: there is no result, or a ``SOURCE.md`` names no licence.
        WorkError: the files cannot be written, or matplotlib is not installed.
    """
    if not results:
        raise InputError("a report needs a result")
    sources = {
        result.collection: _read_source(collections, result.collection) for result in results
    }
    titles = _distinct([_title(result, sources[result.collection]) for result in results])
    parts = [
        _opening(results, titles),
        _ordering(results, titles),
        _measured(results, sources),
        *(_section(result, title) for result, title in zip(results, titles, strict=True)),
        *(section.strip() for section in sections),
    ]
    try:
        docs.mkdir(parents=True, exist_ok=True)
        write_plot(results, titles, docs / _PICTURE)
        (docs / _TEXT).write_text("\n\n".join(parts) + "\n", "utf-8")
    except OSError as error:
        raise WorkError(f"{docs}: the report cannot be written ({error.strerror})") from None


def _opening(results: Sequence[Result], titles: Sequence[str]) -> str:
    figures = "; ".join(
        f"{title}: "
        + ", ".join(
            f"{path} {result.paths[path].figures[MAIN_MEASURE].mean:.3f}"
            for path in paths_of(result)
        )
        for result, title in zip(results, titles, strict=True)
    )
    return f"""# Quality

Written by `python -m evals report` from what the commands below measured; edit those, not this.

![{MAIN_MEASURE} of each path with 95 % intervals. {figures}.]({_PICTURE})

{_HOW_TO_READ}"""


def _ordering(results: Sequence[Result], titles: Sequence[str]) -> str:
    rows = []
    for result, title in zip(results, titles, strict=True):
        leg = best_leg(result)
        pairs = [("full", "rrf_only"), *([("rrf_only", leg)] if leg else [])]
        rows += [
            [title, f"{step.upper} − {step.lower}", str(step.difference), step.difference.verdict]
            for step in steps_of(result, pairs)
        ]
    table = markdown_table(["Collection", "Paths", f"{MAIN_MEASURE}, difference", "Upper is"], rows)
    return f"""## Does each stage earn its place?

{_ON_ORDERING}

{table}"""


def _measured(results: Sequence[Result], sources: dict[str, _Source]) -> str:
    seen = {(result.collection, result.split): result for result in results}
    rows = [
        [
            sources[result.collection].link,
            result.split,
            f"{result.queries:,} ({result.query_locale})",
            f"{result.documents:,} ({result.corpus_locale})",
            sources[result.collection].licence,
        ]
        for result in seen.values()
    ]
    heads = ["Collection", "Split", "Queries", "Documents", "Licence"]
    commands = "\n".join(dict.fromkeys(map(_command, results)))
    return f"""## What was measured, and how

{markdown_table(heads, rows)}

{_ON_METHOD}

```sh
{commands}
```"""


def _section(result: Result, title: str) -> str:
    measures = measures_of(result)
    rows = [
        [
            path,
            *(str(found.figures[name]) for name in measures),
            counts_text(found.taken),
            f"{found.scored:.1f}",
        ]
        for path in paths_of(result)
        for found in [result.paths[path]]
    ]
    steps = [
        [f"{step.upper} − {step.lower}", str(step.difference), step.difference.verdict]
        for step in steps_of(result)
    ]
    degraded = [
        f"Degraded on {path}: {counts_text(result.paths[path].degraded)}."
        for path in paths_of(result)
        if result.paths[path].degraded
    ]
    made = (
        f"{result.queries:,} queries ({result.query_locale}), {result.documents:,} documents "
        f"({result.corpus_locale}) in {result.rows:,} sub-chunks, by {result.unit}. "
        f"{describe_models(result)}."
    )
    parts = [f"## {title}", made, markdown_table(["Path", *measures, "Taken", "Reranked"], rows)]
    if steps:
        parts.append(markdown_table(["Paths", f"{MAIN_MEASURE}, difference", "Upper is"], steps))
    return "\n\n".join([*parts, *degraded])


def _title(result: Result, source: _Source) -> str:
    by = "" if result.unit == "document" else f", by {result.unit}"
    return f"{source.name} ({result.split}{by})"


def _distinct(titles: Sequence[str]) -> list[str]:
    seen = Counter[str]()
    distinct = []
    for title in titles:
        seen[title] += 1
        distinct.append(title if seen[title] == 1 else f"{title}, run {seen[title]}")
    return distinct


def _command(result: Result) -> str:
    locale = "detect" if result.query_locale == "detected" else result.query_locale
    there = (COLLECTIONS / result.collection).is_dir()
    folder = f"{'evals/collections' if there else 'DIR'}/{result.collection}"
    words = ["python", "-m", "evals", "run", folder]
    words += ["--split", result.split, "--locale", locale, "--unit", result.unit]
    if (paths := paths_of(result)) != list(PATHS):
        words += ["--paths", ",".join(paths)]
    for name, value in sorted(result.settings.items()):
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        words += ["--chunk-tokens", text] if name == "chunk_tokens" else ["--set", f"{name}={text}"]
    return shlex.join(words)


def _read_source(collections: Path, name: str) -> _Source:
    path = collections / name / "SOURCE.md"
    if not path.is_file():
        return _Source(name, name, _NO_SOURCE)
    text = path.read_text("utf-8")
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    # A bullet ends where the next begins, or at a blank line.
    licence = re.search(r"^- Licence: (.+?)(?=\n- |\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    if not heading or not licence:
        raise InputError(f"{path} must have a heading, and a bullet that begins with 'Licence:'")
    title = heading[1].strip()
    link = f"[{title}](../evals/collections/{name}/SOURCE.md)"
    return _Source(title, link, " ".join(licence[1].split()))


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write rows of cells as a table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
