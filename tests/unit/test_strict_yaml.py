"""YAML that other readers accept without a word, and what an error says."""

from __future__ import annotations

import pytest

from kb.strict_yaml import MAX_DEPTH, YamlProblem, load_yaml


def _problem(text: str, *, aliases: bool = True) -> YamlProblem:
    with pytest.raises(YamlProblem) as caught:
        load_yaml(text, aliases=aliases)
    return caught.value


def test_plain_values_are_read() -> None:
    text = "a: [1, two, 2026-11-30]\nb: {c: null}\n"

    assert load_yaml(text)["b"] == {"c": None}
    assert load_yaml(text)["a"][:2] == [1, "two"]


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3", "- x: 1\n- y:\n    a: 1\n  a: 2\n  y: 3"])
def test_a_key_that_is_there_twice_is_refused_where_it_stands_again(text: str) -> None:
    problem = _problem(text)

    assert "there twice" in problem.problem
    assert problem.line == text.count("\n") + 1


def test_equal_keys_of_unlike_mappings_are_no_duplicates() -> None:
    assert load_yaml("- a: 1\n- a: 2") == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("value", ["2026-13-01", "!!int abc", "!!bool abc", "!!timestamp abc"])
def test_a_value_that_cannot_be_built_is_named_by_its_own_line_however_deep_it_is(
    value: str,
) -> None:
    assert _problem(f"a:\n  - b: 1\n    c: {value}\nd: 1").line == 3


def test_a_tag_that_would_run_code_is_refused() -> None:
    assert _problem("a: !!python/object/apply:os.getcwd []").line == 1


def test_aliases_are_for_the_reader_to_allow() -> None:
    text = "a: &x [1]\nb: *x"

    assert load_yaml(text) == {"a": [1], "b": [1]}
    assert _problem(text, aliases=False).line == 2


def test_nesting_ends_at_the_limit() -> None:
    assert load_yaml("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    assert "nested" in _problem("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)).problem


@pytest.mark.parametrize("text", ["a: [", "a: \x00", "a: b: c", "\t- a"])
def test_what_is_no_yaml_is_one_problem(text: str) -> None:
    assert _problem(text).problem.startswith("invalid YAML")
