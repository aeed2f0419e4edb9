"""Write a folder of English cards of a wanted size from public drug labels and health topics.

The real text comes first; when it is used up, sentences of labels are recombined, and each card
made so says "Synthetic" in its title and its source. The cards are there to measure with: no person
has read them. A category follows from the kind of label section, so that filters have work to do.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from kb.cards import read_cards
from kb.chunking import sentences, split_card
from kb.errors import InputError, RetrievalError
from kb.types import Card, Category, Section, Source

LABELS = "kb-openfda-labels/label_sections.jsonl"
COMMON = "kb-openfda-labels/common_drugs_sections.jsonl"
TOPICS = "kb-medlineplus-en/topics.jsonl"
PAGE = "kb-fda-adherence/page.json"

MAX_CARD_CHUNKS = 20
"""Sub-chunks of one card at most; the shipped cards have about eight."""

SYNTHETIC = "Synthetic"
SYNTHETIC_SOURCE = Source(
    "Synthetic: sentences of unlike FDA labels recombined for measurements, not medical content",
    "https://open.fda.gov/license/",
    "CC0 1.0 (openFDA)",
)
ABOUT = f"""Cards made by loadtests.scale_cards to measure with. No person has read them: not for
patients.

The text is of FDA drug labels (openFDA, CC0) and of MedlinePlus and the FDA (public domain).
Cards titled "{SYNTHETIC} ..." are sentences of unlike labels in a random order; they mean nothing.

openFDA: do not rely on openFDA to make decisions regarding medical care. While every effort is made
to ensure that data is accurate, assume that all results are unvalidated.
"""

_CATEGORIES: dict[str, Category] = {
    "drug interactions": "drug-interaction",
    "contraindications": "drug-interaction",
    "warnings": "drug-interaction",
    "warnings and cautions": "drug-interaction",
    "warnings and precautions": "drug-interaction",
    "precautions": "drug-interaction",
    "general precautions": "drug-interaction",
    "boxed warning": "escalation",
    "overdosage": "escalation",
    "information for patients": "motivational-interviewing",
    "medication guide": "motivational-interviewing",
    "patient package insert": "motivational-interviewing",
    "patient medication information": "motivational-interviewing",
}
_OTHER: Category = "adherence-barrier"
_NAMES = {
    "spl medguide": "medication guide",
    "spl patient package insert": "patient package insert",
}
_READ = "2024-01-31"  # When openFDA was read; a date of today would make unlike files.
_DAILYMED = "https://dailymed.nlm.nih.gov/dailymed/drugInfo.cfm?setid="
_COMMON_URL = "https://github.com/angeloziletti/nlp-cas-dsmh"
_MAX_DRUGS = 8
_MAX_NAME = 60
_MAX_ID = 70
_SENTENCE_LENGTHS = range(20, 400)  # Shorter ones are headings, longer ones flattened tables.
_RUN = 3
_REPORT_EVERY = 10_000


@dataclass(frozen=True, slots=True)
class Text:
    """One text of the data: a label section, a health topic, or a page.

    ``base_id`` is what the ids of its cards begin with.
    """

    base_id: str
    name: str
    kind: str
    drugs: tuple[str, ...]
    source: Source
    body: str
    from_label: bool


def write_scale_cards(data: Path, out: Path, wanted: int, seed: int = 7) -> int:
    """Write cards of ``wanted`` sub-chunks into an empty folder, and give the sub-chunks counted.

    The same data and seed give the same bytes, and a larger folder holds the cards of a smaller
    one, but for its last card.

    Raises:
        InputError: the data is missing, the folder holds something, or there is too little text to
            recombine.
    """
    if wanted < 1:
        raise InputError("--sub-chunks must be at least 1")
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise InputError(f"{out}: is not empty; name a new folder")
    texts = list(read_texts(data))
    random.Random(seed).shuffle(texts)
    (out / "ABOUT.txt").write_text(ABOUT, "utf-8")
    chunks = synthetic = written = 0
    for card in chain(real_cards(texts), synthetic_cards(texts, seed)):
        if not (fitting := _at_most(card, wanted - chunks)):
            continue
        (out / f"{card.id}.md").write_text(render_card(fitting[0]), "utf-8")
        written += 1
        before, chunks = chunks, chunks + fitting[1]
        synthetic += fitting[1] if card.title.startswith(SYNTHETIC) else 0
        if before // _REPORT_EVERY != chunks // _REPORT_EVERY:
            _say(f"{chunks} sub-chunks in {written} cards, {synthetic} of them synthetic")
        if chunks >= wanted:
            return chunks
    raise InputError(
        f"{data}: has text for {chunks} sub-chunks and no two label sections to recombine"
    )


def read_texts(data: Path) -> Iterator[Text]:
    """Read the labels, and what there is of the other data. Raises InputError."""
    if not (data / LABELS).is_file() and not (data / f"{LABELS}.gz").is_file():
        raise InputError(f"{data / LABELS}[.gz]: no such file; name the folder that holds it")
    for row in _lines(data / LABELS):
        kind = _kind(row["section"])
        brand = _clean(", ".join(row["brand_name"])) or _clean(", ".join(row["generic_name"]))
        source = Source(
            f"FDA label: {brand[:200]} ({kind})", _DAILYMED + row["set_id"], "CC0 1.0 (openFDA)"
        )
        base_id = _slug(f"{row['set_id']}-{kind}")
        yield Text(base_id, brand, kind, _drugs(row["generic_name"]), source, row["text"], True)
    for row in _lines(data / COMMON):
        kind, drug = _kind(row["section"]), _clean(row["drug"])
        source = Source(f"FDA label: {drug} ({kind}, excerpt)", _COMMON_URL, "CC0 1.0 (openFDA)")
        base_id = _slug(f"{drug}-{kind}")
        yield Text(base_id, drug, kind, _drugs([drug]), source, row["text"], True)
    public = "Public domain (NLM, MedlinePlus)"
    for row in _lines(data / TOPICS):
        title = _clean(row["title"])
        source = Source(f"MedlinePlus: {title[:200]}", row["url"], public)
        base_id = _slug(f"medlineplus-{row['_id']}")
        yield Text(base_id, title, "summary", (), source, row["text"], False)
    if (data / PAGE).is_file():
        row = json.loads((data / PAGE).read_text("utf-8"))
        title = _clean(row["title"])
        source = Source(title[:200], row["url"], "Public domain (FDA)")
        yield Text(_slug(row["_id"]), title, "summary", (), source, row["text"], False)


def real_cards(texts: Iterable[Text]) -> Iterator[Card]:
    """Make one card of each text, or several where it is long."""
    parts = Counter[str]()
    for text in texts:
        passages = [c.text for c in split_card(_card(text, text.base_id, 1, text.body.split("\n")))]
        for start in range(0, len(passages), MAX_CARD_CHUNKS):
            parts[text.base_id] += 1
            part = parts[text.base_id]
            lines = passages[start : start + MAX_CARD_CHUNKS]
            yield _card(text, f"{text.base_id}-{part}", part, lines)


def synthetic_cards(texts: Iterable[Text], seed: int) -> Iterator[Card]:
    """Make cards without end from sentences of two or three labels' sections of one kind."""
    chooser = random.Random(f"{seed} synthetic")
    pools: dict[str, list[tuple[Text, list[str]]]] = {}
    for text in texts:
        kept = [s for s in sentences(text.body) if len(s) in _SENTENCE_LENGTHS]
        if text.from_label and kept:
            pools.setdefault(text.kind, []).append((text, kept))
    kinds = sorted(kind for kind, pool in pools.items() if len(pool) > 1)
    weights = [sum(len(kept) for _, kept in pools[kind]) for kind in kinds]
    number = 0
    while kinds:
        number += 1
        kind = chooser.choices(kinds, weights)[0]
        chosen = chooser.sample(pools[kind], min(len(pools[kind]), chooser.choice((2, 3))))
        drugs = tuple(dict.fromkeys(drug for text, _ in chosen for drug in text.drugs))
        lines = list[str]()
        for _ in range(chooser.randint(4, MAX_CARD_CHUNKS)):
            kept = chooser.choice(chosen)[1]
            start = chooser.randrange(len(kept))
            lines += kept[start : start + chooser.randint(1, _RUN)]
        yield replace(
            _card(chosen[0][0], f"synthetic-{_slug(kind)}-{number}", 1, lines),
            title=f"{SYNTHETIC} {kind} {number}",
            drugs=drugs[:_MAX_DRUGS],
            sources=(SYNTHETIC_SOURCE,),
        )


def render_card(card: Card) -> str:
    """Write a card as a file that `kb.cards.read_card` reads back alike.

    Texts are quoted as JSON, which is YAML too: a name may hold a colon, a date or a ``#``.
    """
    lines = [
        "---",
        f"id: {card.id}",
        f"title: {_quote(card.title)}",
        f"category: {card.category}",
        f"locale: {card.locale}",
        f"drugs: [{', '.join(_quote(drug) for drug in card.drugs)}]",
        "sources:",
    ]
    for source in card.sources:
        lines += [
            f"  - name: {_quote(source.name)}",
            f"    url: {_quote(source.url)}",
            f"    licence: {_quote(source.licence)}",
        ]
    lines += [f"reviewed: {card.reviewed}", "---"]
    for section in card.sections:
        lines += [f"## {section.heading}"] if section.heading else []
        lines += [section.text, ""]
    return "\n".join(lines)


def _card(text: Text, card_id: str, part: int, lines: Sequence[str]) -> Card:
    kept = (_clean(line).lstrip("#`~ ") for line in lines)  # No heading, no fence of code.
    return Card(
        id=card_id,
        title=f"{text.name[:_MAX_NAME].strip()}: {text.kind}, part {part}",
        category=_CATEGORIES.get(text.kind, _OTHER),
        locale="en",
        drugs=text.drugs,
        sources=(text.source,),
        reviewed=_READ,
        sections=(Section("", "\n".join(line for line in kept if line)),),
    )


def _at_most(card: Card, room: int) -> tuple[Card, int] | None:
    """Shorten a card to the sub-chunks that there is room for, and count them."""
    limit = min(room, MAX_CARD_CHUNKS)
    chunks = split_card(card)
    keep = limit
    while len(chunks) > limit:  # Cut again, a text may fall into other sub-chunks.
        text = "\n".join(chunk.text for chunk in chunks[:keep])
        card = replace(card, sections=(Section("", text),))
        chunks, keep = split_card(card), keep - 1
    return (card, len(chunks)) if chunks else None


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Read a file of JSON lines, plain or gzipped; nothing where there is none."""
    packed = path.with_name(f"{path.name}.gz")
    if packed.is_file():
        with gzip.open(packed, "rt", encoding="utf-8") as file:
            yield from map(json.loads, file)
    elif path.is_file():
        with path.open(encoding="utf-8") as file:
            yield from map(json.loads, file)


def _kind(section: str) -> str:
    words = section.lower().replace("_", " ")
    return _NAMES.get(words, words)


def _drugs(names: Iterable[str]) -> tuple[str, ...]:
    parts = (
        _clean(part).lower() for name in names for part in re.split(r",|\band\b", name.lower())
    )
    return tuple(dict.fromkeys(part[:300] for part in parts if part))[:_MAX_DRUGS]


def _clean(text: str) -> str:
    """Leave printable characters, and single blanks between words."""
    shown = text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)
    return " ".join(shown.split())


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:_MAX_ID].strip("-")


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and give its exit code: 0 done, 2 the call or the data is wrong."""
    parser = argparse.ArgumentParser("python -m loadtests.scale_cards", description=__doc__)
    parser.add_argument("data", type=Path, metavar="DATA_DIR", help=f"holds {LABELS}[.gz]")
    parser.add_argument("out", type=Path, metavar="OUT_DIR", help="an empty or a new folder")
    parser.add_argument("--sub-chunks", type=int, default=100_000, metavar="N")
    parser.add_argument("--seed", type=int, default=7, metavar="N")
    parsed = parser.parse_args(arguments)
    began = time.monotonic()
    try:
        counted = write_scale_cards(parsed.data, parsed.out, parsed.sub_chunks, parsed.seed)
        _say(f"written in {time.monotonic() - began:.0f} s; reading them back")
        read = read_cards(parsed.out)
    except RetrievalError as error:
        print(f"scale_cards: {error}", file=sys.stderr)
        return 2
    found = sum(len(split_card(card)) for card in read)
    synthetic = sum(card.title.startswith(SYNTHETIC) for card in read)
    print(
        f"{found} sub-chunks in {len(read)} cards ({synthetic} synthetic) in {parsed.out}, "
        f"{time.monotonic() - began:.0f} s"
    )
    return 0 if found == counted else 1


if __name__ == "__main__":
    sys.exit(main())
