"""Read YAML safely, and refuse what is accepted without a word elsewhere."""

from __future__ import annotations

from typing import Any

import yaml

MAX_DEPTH = 12
"""Levels of lists and mappings. The parser's time grows with the cube of the depth."""


FastLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The safe loader, on libyaml where PyYAML has it: five times as fast on thousands of cards."""


class YamlProblem(Exception):
    """A text is not acceptable YAML; its readers translate this into an error of their own.

    Args:
        line: 1-based line of the text.
        problem: what is wrong there.
    """

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"{line}: {problem}")
        self.line = line
        self.problem = problem


def load_yaml(text: str, *, aliases: bool = True) -> Any:
    """Read one document of plain values.

    Args:
        text: the document.
        aliases: whether ``*name`` may repeat ``&name``; an alias can make a small text expand
            without bound.

    Raises:
        YamlProblem: the syntax is wrong, a value cannot be built (a date in month 13), a key is
            there twice, lists and mappings are nested deeply, or there is an alias.
    """
    try:
        _refuse_bombs(text, aliases=aliases)
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506  # Its base is the SafeLoader.
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        last = len(text.splitlines()) or 1  # libyaml tells an end that is missing behind it.
        raise YamlProblem(min(line, last), f"invalid YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise YamlProblem(1, f"invalid YAML: {type(error).__name__}") from None


def _refuse_bombs(text: str, *, aliases: bool) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=FastLoader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent) and not aliases:
            raise YamlProblem(line, "YAML aliases are not allowed")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise YamlProblem(line, f"YAML is nested more than {MAX_DEPTH} deep")


class _StrictLoader(FastLoader):  # type: ignore[misc]
    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Build a value; what building it raises beside YAML's own errors gets the value's line."""
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, KeyError, AttributeError) as error:
            problem = f"{type(error).__name__}: {error}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a mapping; YAML itself would let the last of two equal keys win."""
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key.value!r} is there twice", key.start_mark
                )
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping
