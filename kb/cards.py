"""Read and validate cards: Markdown files with YAML front matter."""

from __future__ import annotations

import datetime as dt
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from kb.errors import CardError, InputError
from kb.strict_yaml import FastLoader, YamlProblem, load_yaml
from kb.types import Card, Category, Locale, Section, Source

MAX_CARD_BYTES = 64 * 1024
MAX_TURNS = 30
LOCALES: tuple[Locale, ...] = get_args(Locale)

_FENCE = re.compile(r" {0,3}(?P<mark>`{3,}|~{3,})(?P<rest>.*)")
_HEADING = re.compile(r"#{1,6}[ \t]+(.*)")

_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=300)]
_Turn = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]
_Id = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=80)]
_Url = Annotated[str, StringConstraints(pattern=r"^https?://[^\s]+$", max_length=500)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _SourceMeta(_Strict):
    name: _Text
    url: _Url
    licence: _Text
    sections: list[_Text] = []


class _CardMeta(_Strict):
    id: _Id
    title: _Text
    category: Category
    locale: Locale
    drugs: list[_Text]
    sources: Annotated[list[_SourceMeta], Field(min_length=1)]
    reviewed: dt.date
    asked_as: Annotated[list[_Turn], Field(max_length=MAX_TURNS)] = []


def read_cards(folder: Path) -> list[Card]:
    """Read every ``*.md`` below ``folder``, by id and locale ascending.

    Raises:
        InputError: the folder is missing, or two files hold the same card in the same locale
            (the message names both).
        CardError: a card is invalid; the message names file and line.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such card folder; name it with --cards or KB_CARDS")
    first_at: dict[tuple[str, str], Path] = {}
    cards: list[Card] = []
    for path in _card_files(folder):
        card = read_card(path)
        key = (card.id, card.locale)
        if key in first_at:
            raise InputError(
                f"{path}: card id {card.id!r} ({card.locale}) is already taken by "
                f"{first_at[key]}; give one of them another id"
            )
        first_at[key] = path
        cards.append(card)
    return sorted(cards, key=lambda card: (card.id, card.locale))


def read_card(path: Path) -> Card:
    """Read one card file. Raises CardError naming file and line."""
    text = _read_text(path)
    header, body, body_line = _split(path, text)
    meta = _parse_header(path, header)
    sections = tuple(_sections(body))
    headings = {section.heading for section in sections}
    for source in meta.sources:
        for heading in source.sections:
            if heading not in headings:
                raise CardError(
                    str(path),
                    _key_lines(header).get("sources", 1),
                    f"source {source.name!r} supports section {heading!r}, which the body "
                    f"(from line {body_line}) does not have",
                )
    return Card(
        id=meta.id,
        title=meta.title,
        category=meta.category,
        locale=meta.locale,
        drugs=tuple(drug.lower() for drug in meta.drugs),
        sources=tuple(Source(s.name, s.url, s.licence, tuple(s.sections)) for s in meta.sources),
        reviewed=meta.reviewed.isoformat(),
        sections=sections,
        asked_as=tuple(meta.asked_as),
    )


def _card_files(folder: Path) -> Iterator[Path]:
    """Find the card files, by path ascending; refuse links, which could lead anywhere."""

    def refuse(error: OSError) -> None:
        raise CardError(str(error.filename), 1, f"cannot be read: {error.strerror}")

    for parent, folders, files in os.walk(folder, onerror=refuse):
        folders.sort()
        for name in sorted([*folders, *files]):
            path = Path(parent) / name
            if path.is_symlink():
                target = path.readlink()
                raise CardError(
                    str(path), 1, f"is a symbolic link to {target}; put the card itself here"
                )
            if name.endswith(".md"):
                yield path


def _read_text(path: Path) -> str:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise CardError(str(path), 1, "is not a regular file")
        if status.st_size > MAX_CARD_BYTES:
            raise CardError(str(path), 1, f"is larger than {MAX_CARD_BYTES // 1024} KiB")
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise CardError(str(path), line, "is not valid UTF-8") from None
    except OSError as error:
        raise CardError(str(path), 1, f"cannot be read: {error.strerror}") from None


def _split(path: Path, text: str) -> tuple[str, str, int]:
    """Cut the front matter from the body; only the first two ``---`` lines count."""
    lines = text.split("\n")
    if lines[0].rstrip() != "---":
        raise CardError(str(path), 1, "must begin with a '---' line and YAML front matter")
    for number, line in enumerate(lines[1:], start=1):
        if line.rstrip() == "---":
            return "\n".join(lines[1:number]), "\n".join(lines[number + 1 :]), number + 2
    raise CardError(str(path), 1, "front matter has no closing '---' line")


def _parse_header(path: Path, header: str) -> _CardMeta:
    try:
        data = load_yaml(header, aliases=False)
    except YamlProblem as error:
        raise CardError(str(path), error.line + 1, error.problem) from None
    if not isinstance(data, dict):
        raise CardError(str(path), 2, "front matter must be a mapping of keys to values")
    try:
        return _CardMeta.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        line = _key_lines(header).get(str(first["loc"][0]), 1) if first["loc"] else 1
        raise CardError(str(path), line, f"{where}: {first['msg']}") from None


def _key_lines(header: str) -> dict[str, int]:
    """Map each top-level key to its 1-based line in the file."""
    node = yaml.compose(header, Loader=FastLoader)
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {key.value: key.start_mark.line + 2 for key, _ in node.value}


def _sections(body: str) -> Iterator[Section]:
    """Split at headings; a ``#`` line inside a code fence is text (CommonMark 4.2, 4.5)."""
    heading, lines, fence = "", list[str](), ""
    for line in body.split("\n"):
        fence = _fence_after(line, fence)
        match = None if fence else _HEADING.fullmatch(line)
        if match is None:
            lines.append(line)
            continue
        if any(part.strip() for part in lines):
            yield Section(heading, "\n".join(lines).strip())
        title = match[1].strip()
        closed = title.rstrip("#")
        heading = closed.rstrip() if closed.endswith((" ", "\t")) else title
        lines = []
    if any(part.strip() for part in lines):
        yield Section(heading, "\n".join(lines).strip())


def _fence_after(line: str, fence: str) -> str:
    """Give the fence that is open after a line; the empty string when none is."""
    match = _FENCE.fullmatch(line)
    if match is None:
        return fence
    mark, rest = match["mark"], match["rest"]
    if not fence:
        return "" if mark[0] == "`" and "`" in rest else mark
    closes = mark[0] == fence[0] and len(mark) >= len(fence) and not rest.strip()
    return "" if closes else fence
