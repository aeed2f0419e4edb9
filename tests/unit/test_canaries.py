"""``canaries.yaml``: read strictly, and every fault named by file and entry."""

from __future__ import annotations

from pathlib import Path

import pytest

from kb.canaries import Canary, read_canaries
from kb.errors import CardError, InputError

CARDS = {"c1", "c2"}
SOUND = "- {query: Can I?, card: c1, locale: en}\n"


def _write(folder: Path, text: str | bytes) -> Path:
    path = folder / "canaries.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_without_a_file_there_are_none(tmp_path: Path) -> None:
    assert read_canaries(tmp_path, CARDS) == []
    (tmp_path / "canaries.yaml").mkdir()
    assert read_canaries(tmp_path, CARDS) == []


def test_an_empty_list_is_no_canaries(tmp_path: Path) -> None:
    _write(tmp_path, "[]\n")
    assert read_canaries(tmp_path, CARDS) == []


def test_canaries_come_in_their_order_and_say_where_they_stand(tmp_path: Path) -> None:
    path = _write(tmp_path, SOUND + "- locale: pt-BR\n  card: c2\n  query: 'Posso: «não»?'\n")
    assert read_canaries(tmp_path, CARDS) == [
        Canary("Can I?", "c1", "en", f"{path} (entry 1)"),
        Canary("Posso: «não»?", "c2", "pt-BR", f"{path} (entry 2)"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must be a list"),
        ("query: a\ncard: c1\nlocale: en\n", "must be a list"),
        ("just words\n", "must be a list"),
        ("- [\n", "invalid YAML"),
        ("- {query: a, query: b, card: c1, locale: en}\n", "query"),
        ("- !!python/object/apply:os.getcwd []\n", "invalid YAML"),
        (b"- {query: \xff, card: c1, locale: en}\n", "cannot be read"),
        ("- words\n", "(entry 1)"),
        (SOUND + "- {query: a, card: c1}\n", "(entry 2)"),
        (SOUND + "- {query: a, card: c1, locale: en, more: x}\n", "(entry 2)"),
        (SOUND + "- {query: '', card: c1, locale: en}\n", "(entry 2)"),
        (SOUND + "- {query: ' \t', card: c1, locale: en}\n", "(entry 2)"),
        (SOUND + "- {query: 5, card: c1, locale: en}\n", "each a text"),
        (SOUND + "- {query: a, card: null, locale: en}\n", "each a text"),
        (SOUND + "- {query: a, card: c9, locale: en}\n", "(entry 2):1: names the card 'c9'"),
        (SOUND + "- {query: a, card: c1, locale: es}\n", "en, es-419, pt-BR"),
        (SOUND + "- {query: a, card: c1, locale: fr}\n", "(entry 2)"),
    ],
)
def test_what_is_wrong_is_named_by_file_and_entry(
    tmp_path: Path, text: str | bytes, said: str
) -> None:
    path = _write(tmp_path, text)
    with pytest.raises(CardError) as caught:
        read_canaries(tmp_path, CARDS)
    assert str(caught.value).startswith(str(path))
    assert said in str(caught.value)
    assert isinstance(caught.value, InputError)


def test_a_fault_of_the_syntax_is_named_by_its_line(tmp_path: Path) -> None:
    path = _write(tmp_path, SOUND * 3 + "- {query: [a, card: c1}\n")
    with pytest.raises(CardError) as caught:
        read_canaries(tmp_path, CARDS)
    assert str(caught.value).startswith(f"{path}:4: ")
