"""Bring a drug's other names, and the right spelling of a mistyped one, into a query."""

from __future__ import annotations

import gzip
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from rapidfuzz.distance import DamerauLevenshtein

from kb.analysis.analyzer import fold_accents
from kb.analysis.forms import one_form
from kb.analysis.lexical import LexicalConfig
from kb.types import Locale, SubChunk
from kb.views import view_of

_LETTERS = re.compile(r"[^\W\d_]{5,}")
_SHORTEST_CORRECTED = 6
_LONGEST_FOR_ONE_EDIT = 8

# What Spanish, Portuguese and hurried English write otherwise in the same international name.
_SOUNDS = (("ph", "f"), ("th", "t"), ("rh", "r"), ("ch", "c"), ("y", "i"), ("w", "v"), ("k", "c"))
_DOUBLED = re.compile(r"(.)\1+")
_SHORTEST_SOUND = 5


@dataclass(frozen=True, slots=True)
class KnownName:
    """A name, how it sounds (`sound_of`) and what it is a name of."""

    name: str
    sound: str
    ingredient: str


@dataclass(frozen=True, slots=True)
class DrugNames:
    """Names of drugs, in lower case and without accents.

    ``ingredients`` holds brands and generic names; ``sounds`` how a generic name sounds, where
    that stands for one ingredient only; ``by_letter`` all names by their first letter.
    """

    ingredients: Mapping[str, str]
    sounds: Mapping[str, str]
    by_letter: Mapping[str, Sequence[KnownName]]

    def ingredient_of(self, word: str) -> str | None:
        """Give the ingredient of a name, also of its Spanish or Portuguese form; None of others."""
        if word in self.ingredients:
            return self.ingredients[word]
        # A plural would sound like an enzyme: penicilinas, penicillinase.
        return None if word.endswith("s") else self.sounds.get(sound_of(word))


@lru_cache(maxsize=1)
def load_drug_names() -> DrugNames:
    """Read the names that are part of this package."""
    packed = resources.files("kb.analysis").joinpath("drug_names.tsv.gz").read_bytes()
    rows = [line.split("\t") for line in gzip.decompress(packed).decode().splitlines()]
    of_sound: defaultdict[str, set[str]] = defaultdict(set)
    for name, ingredient, kind in rows:
        if kind == "generic" and len(sound_of(name)) >= _SHORTEST_SOUND:
            of_sound[sound_of(name)].add(ingredient)
    return DrugNames(
        ingredients={name: ingredient for name, ingredient, _ in rows},
        sounds={sound: next(iter(of)) for sound, of in of_sound.items() if len(of) == 1},
        by_letter=_by_letter((name, ingredient) for name, ingredient, _ in rows),
    )


def _by_letter(names: Iterable[tuple[str, str]]) -> Mapping[str, Sequence[KnownName]]:
    found: defaultdict[str, list[KnownName]] = defaultdict(list)
    for name, ingredient in names:
        found[name[0]].append(KnownName(name, sound_of(name), ingredient))
    return found


def sound_of(name: str) -> str:
    """Write a drug's name as English, Spanish and Portuguese have it in common.

    >>> {sound_of(name) for name in ("warfarin", "warfarina", "varfarina")}
    {'varfarin'}
    """
    for written, common in _SOUNDS:
        name = name.replace(written, common)
    return _DOUBLED.sub(r"\1", name).rstrip("aeo")


class DrugNameExpansion:
    """Expand queries over sub-chunks: only words that these hold are ever added.

    A name brings the other names of its ingredient: brand and generic, English and Spanish. A word
    that is no known name, and that no sub-chunk has, brings the nearest name that one has: within
    one edit, or two from nine letters on, the first letter right, and only when no other drug, here
    or anywhere, is as near by letters or by sound. A known name is never taken for another.
    """

    def __init__(
        self, chunks: Iterable[SubChunk], config: LexicalConfig, names: DrugNames | None = None
    ) -> None:
        self._names = names or load_drug_names()
        self._config = config
        words: set[tuple[str, Locale]] = set()
        drugs: set[str] = set()
        for chunk in chunks:
            words.update((word, chunk.locale) for word in _words(chunk.passage))
            drugs.update(fold_accents(drug.casefold()) for drug in chunk.drugs)
        self._ingredient_of: dict[str, str] = {}
        self._indexed: set[str] = set()
        tokens_of: defaultdict[str, set[str]] = defaultdict(set)
        for word, locale in words:
            tokens = config.analyze(word, locale)
            self._indexed.update(tokens)
            own = word if word in drugs else None
            if ingredient := self._names.ingredient_of(word) or own:
                self._ingredient_of[word] = ingredient
                tokens_of[ingredient].update(tokens)
        self._here = _by_letter(self._ingredient_of.items())
        self._tokens_of = {ingredient: sorted(of) for ingredient, of in tokens_of.items()}

    @classmethod
    def of_view(
        cls, chunks: Sequence[SubChunk], locale: Locale, config: LexicalConfig
    ) -> DrugNameExpansion:
        """Expand as the index does that a query in ``locale`` looks at."""
        view = view_of(chunks, locale)
        return cls((chunk for chunk in chunks if chunk.id in view), config)

    def added(self, text: str, locale: Locale) -> list[str]:
        """Give the tokens that the text lacks of its drugs' names, each once, in order."""
        typed = set(self._config.analyze(text, locale))
        found = (token for word in _words(text) for token in self._added_by(word, locale))
        return [token for token in dict.fromkeys(found) if token not in typed]

    def alternatives(self, text: str, locale: Locale) -> list[tuple[str, ...]]:
        """Give the names of each drug in the text, as typed and as added: any one says it all.

        Scored one by one, a sub-chunk that names one drug twice would outdo one that names both.
        """
        typed = set(self._config.analyze(text, locale))
        found: dict[tuple[str, ...], None] = {}
        for word in _words(text):
            if added := tuple(self._added_by(word, locale)):
                own = (token for token in self._config.analyze(word, locale) if token in typed)
                found[tuple(sorted({*own, *added}))] = None
        return list(found)

    def with_names(self, text: str, locale: Locale) -> str:
        """Give the text with the added words behind it, for a model to read."""
        added = self.added(text, locale)
        return f"{text} ({', '.join(added)})" if added else text

    def _added_by(self, word: str, locale: Locale) -> Iterator[str]:
        ingredient = self._ingredient_of.get(word) or self._names.ingredient_of(word)
        if ingredient is None and not self._indexed.intersection(
            self._config.analyze(word, locale)
        ):
            ingredient = self._nearest(word)
        if ingredient is None:
            return
        yield from self._tokens_of.get(ingredient, ())
        if " " in ingredient:  # Insulin glargine: what is said of insulin is said of it.
            for part in ingredient.split():
                yield from self._tokens_of.get(part, ())

    def _nearest(self, word: str) -> str | None:
        """Give the ingredient of the one name that a mistyped word must be; None when unsure."""
        if len(word) < _SHORTEST_CORRECTED:
            return None
        limit = 1 if len(word) <= _LONGEST_FOR_ONE_EDIT else 2
        known = [*self._here.get(word[0], ()), *self._names.by_letter.get(word[0], ())]
        distances = [DamerauLevenshtein.distance(word, k.name, score_cutoff=limit) for k in known]
        nearest = min(distances, default=limit + 1)
        if nearest > limit:
            return None
        found = [k for k, distance in zip(known, distances, strict=True) if distance == nearest]
        here = next((k for k in found if k.name in self._ingredient_of), None)
        if here is None or any(k.ingredient != here.ingredient for k in found):
            return None
        sound = sound_of(word)
        limit = DamerauLevenshtein.distance(sound, here.sound)
        alone = all(
            DamerauLevenshtein.distance(sound, k.sound, score_cutoff=limit) > limit
            for k in known
            if k.ingredient != here.ingredient
        )
        return here.ingredient if alone else None


def _words(text: str) -> list[str]:
    return list(dict.fromkeys(_LETTERS.findall(fold_accents(one_form(text)))))
