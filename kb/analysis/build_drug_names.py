"""Make ``drug_names.tsv.gz`` from the FDA's lists; ``drug_names.md`` beside it says of which.

Run as ``python -m kb.analysis.build_drug_names PRODUCTS OFFICIAL OUT``.
"""

from __future__ import annotations

import csv
import gzip
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

_SALTS = frozenset(
    """acetate aluminum anhydrous arginine benzoate besylate bisulfate bitartrate bromide
    calcium carbonate chloride citrate cypionate decanoate dihydrate dihydrochloride
    dimeglumine dipropionate disodium enanthate erbumine estolate ethylsuccinate
    fumarate furoate gluceptate gluconate hemihydrate hydrate hydrobromide hydrochloride
    hyclate iodide lactate magnesium malate maleate medoxomil meglumine mesylate
    methylbromide monohydrate monosodium napsylate nitrate olamine pamoate pentahydrate
    phosphate polistirex potassium propionate proxetil recombinant salicylate
    sesquihydrate sodium strontium succinate sulfate tartrate tetrahydrate tosylate
    trihydrate tromethamine valerate zinc""".split()
)
_FORMS = frozenset(
    """aq cd cr dr ec er fc hfa iv la lar lp mr nf odt pf sa sr td xl xr diskus handihaler
    injectable intensol kwikpen pediatric preservative free pump respimat solostar
    tablets turbuhaler""".split()
)
# Brands that are words of everyday English, Spanish or Portuguese, found by comparing the brands
# with the words of our collections.
_EVERYDAY = frozenset(
    """actos android antitussive banan cambia camila compro cortan doral genesa heather
    intermezzo metra mitigo nikita phenazine pseudo rayos renova sojourn sonata sulla
    thrive""".split()
)
_SHORTEST = 5
_LONGEST_INGREDIENT = 3
_WORD = re.compile(r"[a-z]+")
_BRACKETED = re.compile(r"\([^)]*\)|\*+")


def main(arguments: Sequence[str]) -> int:
    """Read the two lists and write the names, one a line: name, ingredient, brand or generic."""
    products, official, out = map(Path, arguments)
    rows = list(_rows(products))
    generics = _generics(_rows(official), rows)
    lines = [f"{name}\t{ingredient}\tgeneric\n" for name, ingredient in generics.items()]
    lines += [f"{name}\t{of}\tbrand\n" for name, of in _brands(rows, generics).items()]
    # Without a time and a file's name in it, the same names are the same bytes.
    out.write_bytes(gzip.compress("".join(sorted(lines)).encode(), mtime=0))
    print(f"{len(lines)} names of {len(generics)} generic ones")  # noqa: T201  # A command prints.
    return 0


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)


def _generics(
    official: Iterable[dict[str, str]], products: Iterable[dict[str, str]]
) -> dict[str, str]:
    """Map a generic name to the FDA's name of the same substance (paracetamol, acetaminophen)."""
    generics: dict[str, str] = {}
    for row in official:
        name, preferred = _ingredient(row["name"]), _ingredient(row["display_name"])
        if " " not in name and len(name) >= _SHORTEST:
            one_word = preferred and " " not in preferred
            generics[name] = preferred if one_word else generics.get(name, name)
    for row in products:
        name = _ingredient(row["active_ingredient"])
        drug_name = row["drug_name"].lower()
        for word in (name, drug_name if drug_name in name.split() else ""):
            if " " not in word and len(word) >= _SHORTEST:
                generics.setdefault(word, word)
    for name, preferred in list(generics.items()):
        generics[name] = generics.setdefault(preferred, preferred)
    return dict(sorted(generics.items()))


def _brands(rows: Iterable[dict[str, str]], generics: dict[str, str]) -> dict[str, str]:
    """Map a brand to its ingredient, where all products of that name have the same single one.

    A name that is part of its ingredient's (insulin, of insulin pork) is no brand.
    """
    found: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        words = _WORD.findall(row["drug_name"].lower())
        while words and words[-1] in _FORMS:
            words.pop()
        if len(words) == 1 and len(words[0]) >= _SHORTEST:
            ingredient = _ingredient(row["active_ingredient"])
            found[words[0]].add(generics.get(ingredient, ingredient))
    return {
        name: ingredient
        for name, (ingredient, *others) in sorted(found.items())
        if ingredient
        and not others
        and name not in generics
        and name not in ingredient.split()
        and name not in _EVERYDAY
    }


def _ingredient(name: str) -> str:
    """Take the salt off a substance's name; empty when it is several substances, or no plain words.

    What is salts only (calcium carbonate) is a substance of its own.
    """
    name = _BRACKETED.sub(" ", name.lower()).strip()
    words = name.split()
    if not words or not all(map(_WORD.fullmatch, words)):
        return ""
    kept = list(words)
    while kept and kept[-1] in _SALTS:
        kept.pop()
    kept = kept if kept and not (set(kept) & {"ferrous", "ferric"}) else words
    return " ".join(kept) if len(kept) <= _LONGEST_INGREDIENT else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
