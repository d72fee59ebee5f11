from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from moesim import yamlio
from moesim.errors import InputError

WORDS = st.text("abcdefgh", min_size=1, max_size=5)
SCALARS = WORDS.map(lambda word: f"v{word}") | st.integers(-(10**9), 10**9) | st.booleans() | st.none()
TREES = st.dictionaries(
    WORDS,
    st.recursive(
        SCALARS,
        lambda part: st.lists(part, max_size=4) | st.dictionaries(WORDS, part, max_size=4),
        max_leaves=15,
    ),
    min_size=1,
    max_size=5,
)


def leaves(part: Any, loc: yamlio.Loc = ()) -> Iterator[tuple[yamlio.Loc, Any]]:
    if isinstance(part, dict):
        for key, item in part.items():
            yield from leaves(item, (*loc, key))
    elif isinstance(part, list):
        for number, item in enumerate(part):
            yield from leaves(item, (*loc, number))
    else:
        yield loc, part


def block(part: Any, indent: int) -> str:
    if isinstance(part, dict) and part:
        return "".join(f"\n{'':{indent}}{key}: {block(item, indent + 2)}" for key, item in part.items())
    if isinstance(part, list) and part:
        return "".join(f"\n{'':{indent}}-   {block(item, indent + 4)}" for item in part)
    return json.dumps(part) if not isinstance(part, str) else part


@given(TREES, st.booleans())
def test_every_leaf_is_found_at_its_position(tree: dict[str, Any], flow: bool) -> None:
    text = json.dumps(tree, indent=1).replace('"', "") if flow else block(tree, 0)
    document = yamlio.loads(text)
    assert document.data == tree
    lines = text.split("\n")
    for loc, value in leaves(tree):
        line, column = document.position(loc)
        written = value if isinstance(value, str) else json.dumps(value)
        assert lines[line - 1][column - 1 :].startswith(written)


@settings(max_examples=300)
@given(st.text(max_size=60) | st.text("a:-[]{},'\"\\|>&*!%#?@`~ \n\t0", max_size=40) | st.binary(max_size=40))
def test_any_text_is_a_mapping_or_an_input_error(text: str | bytes) -> None:
    with contextlib.suppress(InputError):
        assert isinstance(yamlio.loads(text).data, dict)
