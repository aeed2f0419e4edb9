"""Cut cards into sub-chunks. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from kb.types import Card, SubChunk

MAX_TOKENS = 80
"""About the longest passage, title and section included: a cross-encoder pays for each token."""

_SENTENCE_END = re.compile(r"(?<=[.!?…。！？])\s+(?=[^\s])")
_ABBREVIATION = re.compile(
    r"(?:^|\s|\()(?:e\.g|i\.e|etc|vs|dr|mr|mrs|ms|no|approx|st)\.$", re.IGNORECASE
)
_PIECE = re.compile(r"\w+|[^\w\s]")
_LONG_WORD = 6


def split_cards(cards: Iterable[Card], max_tokens: int = MAX_TOKENS) -> list[SubChunk]:
    """Cut cards into sub-chunks, by id ascending, as every reader gives them back."""
    chunks = (chunk for card in cards for chunk in split_card(card, max_tokens))
    return sorted(chunks, key=lambda chunk: chunk.id)


def split_card(card: Card, max_tokens: int = MAX_TOKENS) -> list[SubChunk]:
    """Cut a card into sub-chunks of whole sentences, and one for each turn that it answers.

    Joined, those that are shown hold the whole body.

    A section is never mixed with the next. A single sentence that is too long is cut between
    words.
    """
    chunks: list[SubChunk] = []
    for section in card.sections:
        room = max_tokens - estimate_tokens(f"{card.title} - {section.heading}: ")
        for text in _pack(section.text, max(room, max_tokens // 4)):
            ordinal = len(chunks) + 1
            chunks.append(
                SubChunk(
                    id=f"{card.id}:{card.locale}:{ordinal}",
                    card_id=card.id,
                    locale=card.locale,
                    ordinal=ordinal,
                    title=card.title,
                    category=card.category,
                    section=section.heading,
                    text=text,
                    drugs=card.drugs,
                    sources=tuple(
                        source
                        for source in card.sources
                        if not source.sections or section.heading in source.sections
                    )
                    or card.sources,
                )
            )
    # A card without text has nothing to show for a turn.
    return [*chunks, *_turns(card, len(chunks))] if chunks else []


def _turns(card: Card, after: int) -> Iterator[SubChunk]:
    for number, turn in enumerate(card.asked_as, 1):
        yield SubChunk(
            id=f"{card.id}:{card.locale}:asked-{number}",
            card_id=card.id,
            locale=card.locale,
            ordinal=after + number,
            title=card.title,
            category=card.category,
            section="",
            text=turn,
            drugs=card.drugs,
            sources=card.sources,
            shown=False,
        )


def estimate_tokens(text: str) -> int:
    """Estimate a sub-word tokenizer's count without loading one.

    >>> estimate_tokens("Take 2.5 mg.")
    6
    """
    return sum(1 + (len(piece) - 1) // _LONG_WORD for piece in _PIECE.findall(text))


def sentences(text: str) -> Iterator[str]:
    """Yield sentences and list items, in order, without blanks around them."""
    for line in text.split("\n"):
        kept = ""
        for part in _SENTENCE_END.split(line.strip()):
            kept = f"{kept} {part}" if kept else part
            if not _ABBREVIATION.search(kept):
                if kept:
                    yield kept
                kept = ""
        if kept:
            yield kept


def _pack(text: str, room: int) -> Iterator[str]:
    """Join neighbouring sentences while they fit into ``room`` estimated tokens."""
    packed, used = list[str](), 0
    for sentence in sentences(text):
        for part, cost in _cut(sentence, room):
            if packed and used + cost > room:
                yield " ".join(packed)
                packed, used = [], 0
            packed.append(part)
            used += cost
    if packed:
        yield " ".join(packed)


def _cut(sentence: str, room: int) -> Iterator[tuple[str, int]]:
    """Cut a sentence between words so that each part fits, as far as words allow.

    Gives each part with its estimated tokens.
    """
    if (whole := estimate_tokens(sentence)) <= room:
        yield sentence, whole
        return
    words, used = list[str](), 0
    for word in sentence.split():
        cost = estimate_tokens(word)
        if words and used + cost > room:
            yield " ".join(words), used
            words, used = [], 0
        words.append(word)
        used += cost
    yield " ".join(words), used
