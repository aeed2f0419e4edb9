"""Say how the lexical leg reads a text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kb.analysis.lexical import LexicalConfig
from kb.generations import LoadedGeneration
from kb.types import Locale
from serve.languages import detect_locale, match_locale
from serve.schemas import AnalyzeRequest, AnalyzeResponse

if TYPE_CHECKING:
    from kb.analysis.drug_names import DrugNameExpansion


class TextAnalysis:
    """Analyse texts as queries over a generation.

    The words of a generation are kept for the next text, since gathering them reads every row.
    """

    def __init__(self) -> None:
        self._expansions: dict[tuple[str, Locale], DrugNameExpansion] = {}

    def __call__(
        self, request: AnalyzeRequest, config: LexicalConfig, generation: LoadedGeneration | None
    ) -> AnalyzeResponse:
        """Give the tokens; ``added`` is empty without a generation, whose words it comes from."""
        tag = request.locale
        locale = (match_locale(tag) if tag else None) or detect_locale(request.text)
        added: list[str] = []
        if config.drug_names and generation is not None:
            added = self._expansion(generation, locale, config).added(request.text, locale)
        return AnalyzeResponse(
            locale=locale,
            analyzer=config.analyzer,
            tokens=config.analyze(request.text, locale),
            added=added,
        )

    def _expansion(
        self, generation: LoadedGeneration, locale: Locale, config: LexicalConfig
    ) -> DrugNameExpansion:
        from kb.analysis.drug_names import DrugNameExpansion

        # Replaced as a whole and keyed by generation: threads may meet here, and a switch between.
        key = (generation.manifest.id, locale)
        made = self._expansions.get(key)
        if made is None:
            made = DrugNameExpansion.of_view(generation.chunks, locale, config)
            kept = {k: v for k, v in self._expansions.items() if k[0] == key[0]}
            self._expansions = {**kept, key: made}
        return made
