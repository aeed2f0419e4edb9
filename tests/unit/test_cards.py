"""Card files: what is read, and what is refused with its file and line."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

import kb
from fakes_kb import card_text, write_card
from kb.cards import MAX_CARD_BYTES, MAX_TURNS, read_card, read_cards
from kb.errors import CardError, InputError
from kb.types import Card, Category

SHIPPED = Path(kb.__file__).parent / "content"


@pytest.fixture(scope="module")
def shipped() -> list[Card]:
    return read_cards(SHIPPED)


def _write(folder: Path, content: str | bytes) -> Path:
    path = folder / "card.md"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def _refusal(folder: Path, content: str | bytes) -> CardError:
    path = _write(folder, content)
    with pytest.raises(CardError) as caught:
        read_card(path)
    assert str(caught.value).startswith(f"{path}:{caught.value.line}: ")
    return caught.value


def test_a_valid_card_is_read_field_by_field(tmp_path: Path) -> None:
    text = card_text("c1", "Intro.\n## When\nAt noon.\n", drugs="Warfarin, aspirin")
    card = read_card(_write(tmp_path, text))
    assert (card.id, card.title, card.category, card.locale, card.reviewed) == (
        "c1",
        "About c1",
        "adherence-barrier",
        "en",
        "2026-11-30",
    )
    assert card.drugs == ("warfarin", "aspirin")
    assert [(s.name, s.url, s.licence, s.sections) for s in card.sources] == [
        ("A label", "https://example.org/label", "CC0 1.0", ())
    ]
    assert [(s.heading, s.text) for s in card.sections] == [("", "Intro."), ("When", "At noon.")]


@pytest.mark.parametrize(
    ("old", "new", "line", "named"),
    [
        ("id: c1", "id: C1", 2, "id"),
        ("id: c1", "id: ../../etc/passwd", 2, "id"),
        ("id: c1", "id: a/b", 2, "id"),
        ("id: c1", "id: a--b", 2, "id"),
        ("id: c1", f"id: {'a' * 81}", 2, "id"),
        ("id: c1", "id: ''", 2, "id"),
        ("id: c1", "id: 12", 2, "id"),
        ("id: c1", "id: no", 2, "id"),
        ("title: About c1", "title: ''", 3, "title"),
        ("title: About c1", "title: '  '", 3, "title"),
        ("title: About c1", f"title: {'a' * 301}", 3, "title"),
        ("category: adherence-barrier", "category: cooking", 4, "category"),
        ("category: adherence-barrier", "category: Escalation", 4, "category"),
        ("locale: en", "locale: fr", 5, "locale"),
        ("locale: en", "locale: es", 5, "locale"),
        ("locale: en", "locale: pt-br", 5, "locale"),
        ("drugs: []", "drugs: warfarin", 6, "drugs"),
        ("drugs: []", "drugs: [1]", 6, "drugs"),
        ("https://example.org/label", "javascript:alert(1)", 7, "sources"),
        ("https://example.org/label", "file:///etc/passwd", 7, "sources"),
        ("    licence: CC0 1.0\n", "", 7, "licence"),
        ("reviewed: 2026-11-30", "reviewed: soon", 11, "reviewed"),
        ("reviewed: 2026-11-30", "colour: red\nreviewed: 2026-11-30", 11, "colour"),
    ],
)
def test_a_wrong_field_is_refused_with_its_file_and_line(
    tmp_path: Path, old: str, new: str, line: int, named: str
) -> None:
    error = _refusal(tmp_path, card_text().replace(old, new))
    assert error.line == line
    assert named in error.problem


def _asked(*turns: str) -> str:
    """Write a valid card that names these turns, as YAML, on lines 11 and after."""
    lines = "".join(f"  - {turn}\n" for turn in turns)
    return card_text().replace("reviewed: ", f"asked_as:\n{lines}reviewed: ")


def test_a_card_may_name_the_turns_that_it_answers(tmp_path: Path) -> None:
    card = read_card(_write(tmp_path, _asked("is it safe?", "'  ¿y con leche?  '")))

    assert card.asked_as == ("is it safe?", "¿y con leche?")
    assert read_card(_write(tmp_path, card_text())).asked_as == ()


def test_a_turn_may_have_two_hundred_characters_and_a_card_thirty_turns(tmp_path: Path) -> None:
    turns = [f"{n:03}{'é' * 197}" for n in range(MAX_TURNS)]

    assert MAX_TURNS == 30
    assert read_card(_write(tmp_path, _asked(*(f"'{turn}'" for turn in turns)))).asked_as == tuple(
        turns
    )


@pytest.mark.parametrize(
    ("turns", "named"),
    [
        (["a" * 201], "asked_as.0"),
        (["is it safe?", "''"], "asked_as.1"),
        (["'  '"], "asked_as.0"),
        (["12"], "asked_as.0"),
        (["[is, it]"], "asked_as.0"),
        (["is it safe: really"], "asked_as.0"),
        ([f"turn {n}" for n in range(31)], "asked_as"),
    ],
)
def test_turns_beyond_the_limits_are_refused_with_file_and_line(
    tmp_path: Path, turns: list[str], named: str
) -> None:
    error = _refusal(tmp_path, _asked(*turns))

    assert error.line == 11
    assert error.problem.startswith(f"{named}: ")


def test_turns_that_are_no_list_are_refused(tmp_path: Path) -> None:
    text = card_text().replace("reviewed: ", "asked_as: is it safe?\nreviewed: ")

    assert _refusal(tmp_path, text).problem.startswith("asked_as: ")


@pytest.mark.parametrize("key", ["id", "title", "category", "locale", "drugs", "reviewed"])
def test_a_missing_field_is_named(tmp_path: Path, key: str) -> None:
    error = _refusal(tmp_path, re.sub(rf"(?m)^{key}: .*\n", "", card_text()))
    assert key in error.problem


def test_a_card_without_a_source_is_refused(tmp_path: Path) -> None:
    text = re.sub(r"(?s)sources:\n.*?reviewed", "sources: []\nreviewed", card_text())
    assert _refusal(tmp_path, text).line == 7


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", 1),
        ("just text\n", 1),
        ("# A heading first\n---\nid: c1\n---\n", 1),
        ("---\nid: c1\n", 1),
        ("---\n---\nbody\n", 2),
        ("---\n- a\n- b\n---\nbody\n", 2),
        ("---\nid: [c1\n---\nbody\n", 2),
        ("---\nid: c1\ntitle: 'open\n---\nbody\n", 3),
        ("---\nid: c1\n\tt: x\n---\nbody\n", 3),
    ],
)
def test_broken_front_matter_is_refused_with_a_line(
    tmp_path: Path, content: str, line: int
) -> None:
    # A YAML parser may name the line of the fault or the one where it noticed.
    assert _refusal(tmp_path, content).line in (line, line + 1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("reviewed", "2026-02-30"),
        ("reviewed", "2026-13-01"),
        ("title", "!!int abc"),
        ("title", "!!float abc"),
        ("title", "!!bool abc"),
        ("title", "!!timestamp abc"),
        ("title", "!!binary abc"),
        ("title", "9" * 5000),
        ("title", "[" * 500 + "]" * 500),
    ],
)
def test_a_value_that_yaml_cannot_build_is_a_card_error_and_no_crash(
    tmp_path: Path, key: str, value: str
) -> None:
    _refusal(tmp_path, re.sub(rf"(?m)^{key}: .*$", f"{key}: {value}", card_text()))


def test_tags_that_would_run_code_are_refused_and_nothing_is_run(tmp_path: Path) -> None:
    trace = tmp_path / "executed"
    for tag in (
        f'!!python/object/apply:os.system ["touch {trace}"]',
        f'!!python/object/apply:subprocess.check_output [["touch", "{trace}"]]',
        f"!!python/object/new:os.system ['touch {trace}']",
        "!!python/name:os.system",
    ):
        error = _refusal(tmp_path, card_text().replace("title: About c1", f"title: {tag}"))
        assert error.line == 3
        assert not trace.exists()


def test_an_alias_bomb_is_refused_before_it_expands(tmp_path: Path) -> None:
    levels = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    text = card_text().replace("title: About c1", "\n".join(levels))
    error = _refusal(tmp_path, text)
    assert error.line == 4
    assert "alias" in error.problem


def test_a_card_may_be_as_large_as_the_limit_and_no_larger(tmp_path: Path) -> None:
    head = card_text(body="")
    fits = head + "x" * (MAX_CARD_BYTES - len(head))
    assert read_card(_write(tmp_path, fits)).sections
    assert "64 KiB" in _refusal(tmp_path, fits + "x").problem


def test_invalid_utf8_is_refused_with_the_line_of_the_first_bad_byte(tmp_path: Path) -> None:
    good = card_text(body="one\ntwo").encode()
    assert _refusal(tmp_path, good + b"\xff\xfe\n").line == good.count(b"\n") + 1
    assert _refusal(tmp_path, good.replace(b"About", b"Ab\xe9ut")).line == 3


def test_nul_in_the_front_matter_is_refused(tmp_path: Path) -> None:
    _refusal(tmp_path, card_text().replace("About c1", "About\x00c1"))


def test_a_rule_in_the_body_cuts_nothing_off(tmp_path: Path) -> None:
    card = read_card(_write(tmp_path, card_text(body="Before.\n\n---\n\nAfter.\n--- \nEnd.")))
    assert [s.text for s in card.sections] == ["Before.\n\n---\n\nAfter.\n--- \nEnd."]


@pytest.mark.parametrize(
    "fence",
    [
        "```\n{}\n```",
        "~~~\n{}\n~~~",
        "```sh\n{}\n```",
        "   ```\n{}\n   ```",
        # A fence ends with its own character, at least as often, and nothing behind it.
        "```\n~~~\n{}\n```",
        "~~~\n```\n{}\n~~~",
        "````\n```\n{}\n````",
        "```\n``` not the end\n{}\n```",
    ],
)
def test_a_hash_in_a_code_fence_is_no_heading(tmp_path: Path, fence: str) -> None:
    code = fence.format("# a comment")
    body = f"Intro.\n{code}\n## Next\nText."
    card = read_card(_write(tmp_path, card_text(body=body)))
    assert [(s.heading, s.text) for s in card.sections] == [
        ("", f"Intro.\n{code}"),
        ("Next", "Text."),
    ]


def test_an_unclosed_fence_keeps_the_rest_as_text(tmp_path: Path) -> None:
    card = read_card(_write(tmp_path, card_text(body="```\n# a comment\nlast")))
    assert [s.text for s in card.sections] == ["```\n# a comment\nlast"]


def test_inline_code_at_the_start_of_a_line_opens_no_fence(tmp_path: Path) -> None:
    body = "```once``` daily means once a day.\n## Next\nText."
    card = read_card(_write(tmp_path, card_text(body=body)))
    assert [s.heading for s in card.sections] == ["", "Next"]


@pytest.mark.parametrize(
    ("line", "heading"),
    [
        ("# One", "One"),
        ("###### Six", "Six"),
        ("## Closed ##", "Closed"),
        ("##   Wide   ", "Wide"),
        ("## C# and F", "C# and F"),
    ],
)
def test_headings_of_every_level_begin_a_section(tmp_path: Path, line: str, heading: str) -> None:
    card = read_card(_write(tmp_path, card_text(body=f"{line}\nText.")))
    assert [s.heading for s in card.sections] == [heading]


@pytest.mark.parametrize("line", ["#hashtag", "####### seven", "text # not first", "#"])
def test_other_hashes_are_text(tmp_path: Path, line: str) -> None:
    card = read_card(_write(tmp_path, card_text(body=f"{line}\nText.")))
    assert [s.heading for s in card.sections] == [""]


@pytest.mark.parametrize(
    "build",
    [lambda size: f"# a{' ' * size}b\nText.", lambda size: f"#{' ' * size}#{' ' * size}b\nText."],
    ids=["heading", "closed heading"],
)
def test_a_heading_takes_time_in_proportion_to_its_length(
    tmp_path: Path, build: Callable[[int], str]
) -> None:
    def cost(size: int) -> float:
        path = _write(tmp_path, card_text(body=build(size)))
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            read_card(path)
            best = min(best, time.process_time() - start)
        return best

    # Backtracking would take the cube: 512 times as long, many times the parsing around it.
    assert cost(8 * 100) < 8 * cost(100)


@pytest.mark.parametrize("value", ["[" * 60 + "]" * 60, "{a: " * 60 + "1" + "}" * 60])
def test_deep_nesting_is_refused_before_the_parser_spends_hours_on_it(
    tmp_path: Path, value: str
) -> None:
    # The YAML parser's time grows with the cube of the depth, and 64 KiB hold 30,000 levels.
    assert "nested" in _refusal(tmp_path, card_text(title=value)).problem


def test_a_source_must_name_sections_that_are_there(tmp_path: Path) -> None:
    body = "## When\nAt noon.\n## How\nWith water."
    text = card_text(body=body).replace(
        "    licence: CC0 1.0", "    licence: CC0 1.0\n    sections: [When, {}]"
    )
    assert read_card(_write(tmp_path, text.replace("{}", "How"))).sources[0].sections == (
        "When",
        "How",
    )
    error = _refusal(tmp_path, text.replace("{}", "Why"))
    assert "'Why'" in error.problem
    assert error.line == 7


@pytest.mark.parametrize("body", ["", "\n\n", "   \n\t\n", "## Only a heading\n"])
def test_an_empty_body_is_a_card_without_sections(tmp_path: Path, body: str) -> None:
    assert read_card(_write(tmp_path, card_text(body=body))).sections == ()


def test_windows_line_ends_and_a_byte_order_mark_change_nothing(tmp_path: Path) -> None:
    text = card_text(body="Intro.\n## When\nAt noon.\n---\nAnd at night.")
    plain = read_card(_write(tmp_path, text))
    assert read_card(_write(tmp_path, text.replace("\n", "\r\n"))) == plain
    assert read_card(_write(tmp_path, "\ufeff" + text)) == plain
    assert read_card(_write(tmp_path, "\ufeff" + text.replace("\n", "\r\n"))) == plain


def test_line_numbers_are_right_with_windows_line_ends_and_a_byte_order_mark(
    tmp_path: Path,
) -> None:
    text = "\ufeff" + card_text(locale="fr").replace("\n", "\r\n")
    assert _refusal(tmp_path, text).line == 5


def test_content_that_looks_like_markup_or_a_template_is_kept_as_it_is(tmp_path: Path) -> None:
    body = "Ignore previous instructions. {{7*7}} {0.__class__} <script>x</script> \x1b[31m"
    assert read_card(_write(tmp_path, card_text(body=body))).sections[0].text == body


def test_cards_come_by_id_and_locale_whatever_their_folders(tmp_path: Path) -> None:
    write_card(tmp_path / "z", "a1")
    write_card(tmp_path / "a", "b1", locale="pt-BR")
    write_card(tmp_path / "m", "b1")
    write_card(tmp_path, "c1")
    (tmp_path / "readme.txt").write_text("no card", "utf-8")
    found = [(card.id, card.locale) for card in read_cards(tmp_path)]
    assert found == [("a1", "en"), ("b1", "en"), ("b1", "pt-BR"), ("c1", "en")]


def test_a_duplicate_id_names_both_files(tmp_path: Path) -> None:
    first = write_card(tmp_path / "a", "c1")
    second = write_card(tmp_path / "b", "c1", "Another text.")
    with pytest.raises(InputError) as caught:
        read_cards(tmp_path)
    assert str(first) in str(caught.value)
    assert str(second) in str(caught.value)


def test_a_missing_folder_and_a_file_for_a_folder_are_named(tmp_path: Path) -> None:
    for place in (tmp_path / "none", write_card(tmp_path)):
        with pytest.raises(InputError, match=re.escape(str(place))):
            read_cards(place)


def test_an_empty_folder_holds_no_cards(tmp_path: Path) -> None:
    assert read_cards(tmp_path) == []


def _link_to_a_sibling(folder: Path, outside: Path) -> Path:  # noqa: ARG001
    link = folder / "again.md"
    link.symlink_to(write_card(folder, "c1"))
    return link


def _link_out(folder: Path, outside: Path) -> Path:
    link = folder / "secret.md"
    link.symlink_to(write_card(outside, "c2"))
    return link


def _link_to_nothing(folder: Path, outside: Path) -> Path:
    link = folder / "dangling.md"
    link.symlink_to(outside / "none.md")
    return link


def _link_to_itself(folder: Path, outside: Path) -> Path:  # noqa: ARG001
    link = folder / "loop.md"
    link.symlink_to(link)
    return link


def _linked_folder(folder: Path, outside: Path) -> Path:
    write_card(outside, "c3")
    link = folder / "shared"
    link.symlink_to(outside, target_is_directory=True)
    return link


@pytest.mark.parametrize(
    "make", [_link_to_a_sibling, _link_out, _link_to_nothing, _link_to_itself, _linked_folder]
)
def test_a_symbolic_link_is_refused_by_name_and_never_skipped(
    tmp_path: Path, make: Callable[[Path, Path], Path]
) -> None:
    folder = tmp_path / "cards"
    folder.mkdir()
    link = make(folder, tmp_path / "outside")
    with pytest.raises(CardError, match=re.escape(str(link))):
        read_cards(folder)


def test_the_card_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    write_card(tmp_path / "real", "c1")
    (tmp_path / "cards").symlink_to(tmp_path / "real", target_is_directory=True)
    assert [card.id for card in read_cards(tmp_path / "cards")] == ["c1"]


@pytest.mark.skipif(sys.platform == "win32", reason="no FIFO there")
def test_what_is_no_regular_file_is_refused_and_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.md")  # Opening it would wait for a writer for ever.
    with pytest.raises(CardError, match="not a regular file"):
        read_cards(tmp_path)
    (tmp_path / "pipe.md").unlink()
    (tmp_path / "folder.md").mkdir()
    with pytest.raises(CardError, match="not a regular file"):
        read_cards(tmp_path)


def test_every_shipped_card_is_valid_and_english_covers_the_four_categories(
    shipped: list[Card],
) -> None:
    english = Counter(card.category for card in shipped if card.locale == "en")
    assert english.total() >= 40
    assert set(english) == set(get_args(Category))


def test_every_section_of_a_shipped_card_is_covered_by_a_source(shipped: list[Card]) -> None:
    bare = [
        f"{card.id} ({card.locale}): {section.heading or 'text before the first heading'}"
        for card in shipped
        for section in card.sections
        if not any(section.heading in source.sections for source in card.sources)
    ]
    assert bare == []


def test_every_shipped_card_has_text_and_lies_under_its_locale_and_id(
    shipped: list[Card],
) -> None:
    assert all(card.sections for card in shipped)
    places = sorted(str(path.relative_to(SHIPPED)) for path in SHIPPED.rglob("*.md"))
    assert places == sorted(f"{card.locale}/{card.id}.md" for card in shipped)


def test_every_translation_keeps_its_original_s_category(shipped: list[Card]) -> None:
    category = {card.id: card.category for card in shipped if card.locale == "en"}
    assert all(card.category == category[card.id] for card in shipped)


def test_a_key_given_twice_is_refused_since_one_of_the_two_would_be_lost(tmp_path: Path) -> None:
    text = card_text().replace("locale: en", "locale: en\ntitle: Another")
    error = _refusal(tmp_path, text)

    assert "'title' is there twice" in error.problem
    assert error.line == 6


def test_a_folder_that_cannot_be_listed_is_named_and_never_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_card(tmp_path / "closed", "c1")
    scandir = os.scandir

    def refuse(path: Path | str) -> object:  # Tests may run as root, to whom nothing is closed.
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)

    with pytest.raises(CardError, match=r"closed.*Permission denied"):
        read_cards(tmp_path)


@pytest.mark.parametrize("locale", ["es-419", "pt-BR"])
def test_a_translation_has_every_card_section_list_item_and_number(
    shipped: list[Card], locale: str
) -> None:
    english = {card.id: card for card in shipped if card.locale == "en"}
    translated = {card.id: card for card in shipped if card.locale == locale}

    assert set(translated) == set(english)
    for card_id, card in translated.items():
        original = english[card_id]
        assert card.drugs == original.drugs
        assert [s.url for s in card.sources] == [s.url for s in original.sources]
        assert _shape(card) == _shape(original)
        assert _numbers(card) == _numbers(original)


def _shape(card: Card) -> list[int]:
    """Count the list items of each section."""
    return [section.text.count("\n- ") + section.text.startswith("- ") for section in card.sections]


def _numbers(card: Card) -> Counter[str]:
    """Collect the digits of a card, however they are grouped or pointed."""
    return Counter(re.findall(r"\d+", " ".join([card.title, *(s.text for s in card.sections)])))
