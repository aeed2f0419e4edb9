"""Which rows a query in a locale looks at. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import get_args

from kb.types import Locale, SubChunk

LOCALES: tuple[Locale, ...] = get_args(Locale)
_FALLBACK: Locale = "en"


def view_of(chunks: Iterable[SubChunk], locale: Locale) -> frozenset[str]:
    """Give the ids of the rows that a query in ``locale`` looks at.

    Of each card only one version counts: the query's locale, or else English, or else the first
    that there is. So a card is found by the words that its reader will read, and the versions in
    other languages neither take places nor distort word statistics.
    """
    ids_of: defaultdict[str, defaultdict[Locale, list[str]]]
    ids_of = defaultdict(lambda: defaultdict(list))
    for chunk in chunks:
        ids_of[chunk.card_id][chunk.locale].append(chunk.id)
    return frozenset(
        chunk_id
        for versions in ids_of.values()
        for chunk_id in versions[_version(versions, locale)]
    )


def _version(versions: Iterable[Locale], wanted: Locale) -> Locale:
    there = set(versions)
    return next((locale for locale in (wanted, _FALLBACK) if locale in there), min(there))
