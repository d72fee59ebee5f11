"""A topology file with one thing changed either loads or is refused with its place; it never crashes."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim import fabrics, resources, yamlio
from moesim.errors import InputError

PODS = {name: yamlio.load(resources.find("topology", name)).data for name in ("cloudmatrix384", "h100-ib")}
PODS["graph"] = {
    "fabric": {
        "kind": "graph",
        "source": "example",
        "grade": "spec",
        "devices": ["a", {"name": "b", "host": 1}],
        "switches": ["s"],
        "links": [
            {"a": "a", "b": "s", "capacity": "1GB/s"},
            {"a": "s", "b": "b", "capacity": "1GB/s", "count": 2},
        ],
    }
}
ODD: list[Any] = [
    None,
    0,
    -1,
    3,
    2.5,
    True,
    100_000,
    10**30,
    "",
    "x",
    "1",
    "1GB/s",
    "0us",
    "200%",
    [],
    ["x"],
    {},
    {"value": 1},
    {"x": {"y": 1}},
]


def places(part: Any, loc: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place of a document below the top."""
    items = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    return [found for key, value in items for found in ((*loc, key), *places(value, (*loc, key)))]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(PODS)), st.data())
def test_one_odd_value(name: str, data: st.DataObject) -> None:
    pod = copy.deepcopy(PODS[name])
    loc = data.draw(st.sampled_from(places(pod)))
    holder = pod
    for step in loc[:-1]:
        holder = holder[step]
    action = data.draw(st.sampled_from(["replace", "replace", "delete", "rename"]))
    if action == "replace":
        holder[loc[-1]] = data.draw(st.sampled_from(ODD))
    elif action == "delete" or isinstance(holder, list):
        del holder[loc[-1]]
    else:
        holder["renamed"] = holder.pop(loc[-1])
    # Any other exception is a crash.
    with contextlib.suppress(InputError):
        assert len(fabrics.load(pod).devices) >= 1


@pytest.mark.parametrize(
    "fabric",
    [
        {"kind": "clos", "hosts": 100_000, "devices_per_host": 100_000, "port": {}, "uplink": {}},
        {"kind": "planes", "hosts": 100_000, "devices_per_host": 100_000, "planes": 9, "lane": {}},
        {"kind": "rails", "hosts": 100_000, "devices_per_host": 100_000, "nic": {}},
        {"kind": "graph", "devices": ["a", "b"], "links": [{"a": "a", "b": "b", "count": 100_000}] * 21},
    ],
)
def test_a_pod_beyond_reason_is_refused_before_it_is_built(fabric: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="at most 2,000,000"):
        fabrics.load({"fabric": {**fabric, "source": "example", "grade": "spec"}})
