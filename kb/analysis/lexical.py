"""What can be set of the lexical leg."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kb.analysis.analyzer import analyze
from kb.analysis.published import analyze_published
from kb.types import Locale, SubChunk
from kb.views import LOCALES

if TYPE_CHECKING:
    from kb.analysis.drug_names import DrugNameExpansion

AnalyzerName = Literal["product", "published"]


@dataclass(frozen=True, slots=True)
class LexicalConfig:
    """How the lexical leg reads texts and scores them.

    Args:
        analyzer: "published" reads as the published BM25 baselines did (with k1 0.9 and b 0.4), to
            compare measurements with theirs.
        k1: how soon a repeated word stops to count; above 0.
        b: how much a long sub-chunk is held back, 0 to 1.
        stop_words: the product analyser drops function words.
        drug_names: a query's drug names bring their other names along.
    """

    analyzer: AnalyzerName = "product"
    k1: float = 1.5
    b: float = 0.75
    stop_words: bool = True
    drug_names: bool = False

    def analyze(self, text: str, locale: Locale) -> list[str]:
        """Give the tokens of a text, in order."""
        if self.analyzer == "published":
            return analyze_published(text)
        return analyze(text, locale, stop_words=self.stop_words)

    def expansion(self, chunks: Iterable[SubChunk]) -> DrugNameExpansion | None:
        """Make what expands queries over these sub-chunks; None where that is switched off."""
        if not self.drug_names:
            return None
        # The library and the names are loaded by those who switch it on.
        from kb.analysis.drug_names import DrugNameExpansion

        return DrugNameExpansion(chunks, self)

    def expansions(self, chunks: Sequence[SubChunk]) -> dict[Locale, DrugNameExpansion]:
        """Make what expands queries in each locale; nothing where that is switched off."""
        if not self.drug_names:
            return {}
        from kb.analysis.drug_names import DrugNameExpansion

        return {locale: DrugNameExpansion.of_view(chunks, locale, self) for locale in LOCALES}
