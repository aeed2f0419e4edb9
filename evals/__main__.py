"""The evaluation command: ``python -m evals run | compare | tune | golden | report``.

Exit codes: 0 done, 1 the work failed, 2 the call or the input is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from evals.collection import SPLITS, load_collection
from evals.evaluate import DEFAULT_PATHS, evaluate
from evals.results import read_result, table, write_result
from evals.workbench import NO_HURRY, open_workbench
from kb.chunking import MAX_TOKENS
from kb.errors import InputError
from serve.cli_common import common_flags, exit_code, load_cli_settings
from serve.progress_bar import Bar
from serve.schemas import HybridPath
from serve.settings import Settings

DEFAULT_CACHE = Path(".evals")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and give its exit code."""
    parsed = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.ERROR, format="%(message)s", stream=sys.stderr)
    return exit_code("evals", parsed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("evals", description="Measure what the service finds.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    common = common_flags()
    common.add_argument(
        "--cache", type=Path, default=DEFAULT_CACHE, metavar="DIR", help="kept between runs"
    )

    run = commands.add_parser("run", parents=[common], help="evaluate a collection")
    run.add_argument("collection", type=Path, metavar="DIR", help="a folder in BEIR layout")
    run.add_argument("--paths", type=_paths, default=DEFAULT_PATHS, metavar="PATH,…")
    run.add_argument("--split", choices=SPLITS, default="test")
    run.add_argument("--locale", metavar="L", help="of the queries; 'detect' leaves it to each")
    run.add_argument("--unit", choices=("document", "parent"), default="document")
    run.add_argument("--chunk-tokens", type=_count, default=MAX_TOKENS, metavar="N")
    run.add_argument("--limit", type=_count, metavar="N", help="only N queries, by a hash")
    run.add_argument("--json", type=Path, metavar="FILE", help="write figures per path and query")
    run.set_defaults(run=_run)

    compare = commands.add_parser("compare", help="compare two runs of one collection")
    compare.add_argument("a", type=Path, metavar="A.json")
    compare.add_argument("b", type=Path, metavar="B.json")
    compare.set_defaults(run=_compare)

    tune = commands.add_parser("tune", parents=[common], help="try settings on tuning splits")
    tune.add_argument("collections", nargs="+", metavar="DIR:SPLIT", help="or golden:en")
    tune.add_argument("--try", action="append", default=[], dest="tries", metavar="NAME=V,V,…")
    tune.add_argument("--path", choices=DEFAULT_PATHS, default="rrf_only")
    tune.add_argument("--limit", type=_count, metavar="N", help="only N queries, by a hash")
    tune.set_defaults(run=_tune)

    golden = commands.add_parser("golden", parents=[common], help="evaluate the golden set")
    golden.add_argument("--calibrate", type=Path, metavar="FILE", help="write the fitted curves")
    golden.set_defaults(run=_golden)

    report = commands.add_parser(
        "report", parents=[common], help="measure everything and write docs/quality.md"
    )
    report.add_argument(
        "--data", type=Path, metavar="DIR", help="holds liveqa-med-free, which is not in the tree"
    )
    report.add_argument("--docs", type=Path, default=Path("docs"), metavar="DIR")
    report.set_defaults(run=_report)

    gate = commands.add_parser(
        "gate", parents=[common], help="fail when answers got worse than those kept"
    )
    gate.add_argument("--keep", action="store_true", help="keep the figures of now")
    gate.set_defaults(run=_gate)
    return parser


def _run(parsed: argparse.Namespace) -> int:
    collection = load_collection(parsed.collection, parsed.split).limited(parsed.limit)
    bar = Bar()
    workbench = open_workbench(
        collection, _settings(parsed), _cache(parsed), parsed.chunk_tokens, bar
    )
    result = asyncio.run(
        evaluate(
            collection,
            workbench,
            parsed.paths,
            locale=parsed.locale,
            unit=parsed.unit,
            progress=bar,
        )
    )
    print(table(result))
    if parsed.json:
        write_result(result, parsed.json)
    return 0


def _tune(parsed: argparse.Namespace) -> int:
    from evals.tune import summary, tune, tuning_set

    settings, cache, bar = _settings(parsed), _cache(parsed), Bar()
    sets = [tuning_set(name, settings, cache, parsed.limit, bar) for name in parsed.collections]
    tries = dict(_pair(text) for text in parsed.tries)
    print(summary(asyncio.run(tune(sets, tries, parsed.path, bar))))
    return 0


def _golden(parsed: argparse.Namespace) -> int:
    from evals.golden import read_golden
    from evals.golden_report import golden_sections
    from evals.golden_run import calibration_of, detected, relevances, run_golden

    queries = read_golden()
    runs = asyncio.run(run_golden(queries, _settings(parsed), _cache(parsed), Bar()))
    relevance = relevances(runs)
    print("\n\n".join(golden_sections(runs, relevance, detected(queries))))
    if parsed.calibrate:
        parsed.calibrate.write_text(calibration_of(relevance).model_dump_json(indent=2) + "\n")
    return 0


def _report(parsed: argparse.Namespace) -> int:
    from evals.regenerate import regenerate

    asyncio.run(regenerate(_settings(parsed), _cache(parsed), parsed.docs, parsed.data, Bar()))
    print(f"{parsed.docs / 'quality.md'} written")
    return 0


def _gate(parsed: argparse.Namespace) -> int:
    from evals.gate import compare_with_kept, keep, measure_subset

    results = asyncio.run(measure_subset(_settings(parsed), _cache(parsed), Bar()))
    if parsed.keep:
        keep(results)
        return 0
    text, worse = compare_with_kept(results)
    print(text)
    if worse:
        print(f"evals: {worse} figures are worse than those kept", file=sys.stderr)
    return 1 if worse else 0


def _compare(parsed: argparse.Namespace) -> int:
    from evals.compare import compare

    print(compare(read_result(parsed.a), read_result(parsed.b)))
    return 0


def _settings(parsed: argparse.Namespace) -> Settings:
    given: dict[str, Any] = dict(NO_HURRY)
    return load_cli_settings(parsed, given)


def _cache(parsed: argparse.Namespace) -> Path:
    cache: Path = parsed.cache
    return cache.absolute()


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, not {text!r}")
    return int(text)


def _pair(text: str) -> tuple[str, list[str]]:
    name, equals, values = text.partition("=")
    if not equals or not values:
        raise InputError(f"--try wants NAME=VALUE,VALUE, not {text!r}")
    return name, values.split(",")


def _paths(text: str) -> tuple[HybridPath, ...]:
    paths = tuple(text.split(","))
    if unknown := set(paths) - set(get_args(HybridPath)) | {"no_match"} & set(paths):
        raise argparse.ArgumentTypeError(f"unknown path {min(unknown)!r}")
    return paths  # type: ignore[return-value]  # Each was just looked up among the paths.


if __name__ == "__main__":
    sys.exit(main())
