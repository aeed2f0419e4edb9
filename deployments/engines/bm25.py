"""The lexical leg: rank-bm25's BM25Okapi over the sub-chunks of one generation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain

import numpy as np
from rank_bm25 import BM25Okapi

from deployments.engines.selection import select_hits
from kb.analysis.lexical import LexicalConfig
from kb.errors import StageUnavailable
from kb.types import Hit, LegQuery, Ranking, SubChunk
from kb.views import LOCALES, view_of


class Bm25Engine:
    """An index a locale, built from rows and never stored, so that the legs cannot drift apart."""

    def __init__(
        self, chunks: Sequence[SubChunk], generation: str, config: LexicalConfig | None = None
    ) -> None:
        config = config or LexicalConfig()
        self._generation = generation
        self.rows = len(chunks)
        built: dict[frozenset[str], _Index] = {}
        self._indexes = {}
        for locale in LOCALES:
            view = view_of(chunks, locale)
            if view not in built:  # One language alone looks alike from all three.
                built[view] = _Index([chunk for chunk in chunks if chunk.id in view], config)
            self._indexes[locale] = built[view]

    def search(self, query: LegQuery) -> Ranking:
        """Rank the sub-chunks that share a token with the query, by score, then by id.

        Raises:
            StageUnavailable: the index is empty.
        """
        hits, filtered_out = self._indexes[query.locale].search(query)
        return Ranking(hits, self._generation, filtered_out)


class _Index:
    """The index of one view.

    BM25Okapi gives real matches 0 or less when a term is in half of a small collection or more,
    and gives every other sub-chunk 0; so who is a hit is decided by token overlap, and the score
    only orders the hits (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009;
    the epsilon floor is rank-bm25's).
    """

    def __init__(self, chunks: Sequence[SubChunk], config: LexicalConfig) -> None:
        self._config = config
        analysed = [(chunk, config.analyze(chunk.passage, chunk.locale)) for chunk in chunks]
        # A sub-chunk without tokens can never match, and a collection of such ones has no mean
        # length to divide by.
        indexed = [(chunk, tokens) for chunk, tokens in analysed if tokens]
        self._chunks = [chunk for chunk, _ in indexed]
        self._bm25 = (
            BM25Okapi([tokens for _, tokens in indexed], k1=config.k1, b=config.b)
            if indexed
            else None
        )
        self._expansion = config.expansion(self._chunks)
        self._places: defaultdict[str, list[int]] = defaultdict(list)
        for place, (_, tokens) in enumerate(indexed):
            for token in set(tokens):
                self._places[token].append(place)

    def search(self, query: LegQuery) -> tuple[tuple[Hit, ...], int]:
        """Give the hits, and how many the filters kept out. Raises StageUnavailable."""
        if self._bm25 is None:
            raise StageUnavailable("bm25", "index_empty")
        tokens = self._config.analyze(query.text, query.locale)
        drugs = self._expansion.alternatives(query.text, query.locale) if self._expansion else []
        named = [*tokens, *chain.from_iterable(drugs)]
        places = set(chain.from_iterable(self._places.get(token, ()) for token in named))
        if not places:
            return (), 0
        one_of = set(chain.from_iterable(drugs))
        scores = self._bm25.get_scores([token for token in tokens if token not in one_of])
        for names in drugs:
            scores = scores + np.max([self._bm25.get_scores([name]) for name in names], axis=0)
        kept = [place for place in places if query.filters.accept(self._chunks[place])]
        kept.sort(key=lambda place: (-scores[place], self._chunks[place].id))
        order = (
            (Hit(self._chunks[place].id, float(scores[place])), self._chunks[place].card_id)
            for place in kept
        )
        return select_hits(order, query.depth, query.min_cards), len(places) - len(kept)
