"""Which of the knowledge base's three locales a query is in."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from kb.types import Locale

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

DEFAULT_LOCALE: Locale = "en"
_LOCALE_OF_LANGUAGE: dict[str, Locale] = {"en": "en", "es": "es-419", "pt": "pt-BR"}

_SURE = 0.8
"""Below it the default stands: a drug's name alone looks like any of the three."""


def language_of(locale: Locale) -> str:
    """Give the language of a locale.

    >>> language_of("pt-BR")
    'pt'
    """
    return locale.partition("-")[0]


def match_locale(tag: str) -> Locale | None:
    """Map a BCP 47 tag to the locale that serves it; None when none does.

    >>> match_locale("es-MX"), match_locale("PT"), match_locale("de")
    ('es-419', 'pt-BR', None)
    """
    return _LOCALE_OF_LANGUAGE.get(tag.replace("_", "-").partition("-")[0].lower())


def detect_locale(text: str) -> Locale:
    """Guess the locale of a query; the default unless the guess is a sure one."""
    language, probability = _identifier().classify(text)
    return _LOCALE_OF_LANGUAGE[language] if probability >= _SURE else DEFAULT_LOCALE


@lru_cache(maxsize=1)
def _identifier() -> LanguageIdentifier:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    identifier.set_languages(list(_LOCALE_OF_LANGUAGE))
    return identifier
