"""The slow planner gives what MoonEP gave, so that it can judge the fast one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from reference.moonep_twin import plan_slowly

VECTORS = json.loads((Path(__file__).parent.parent / "data" / "moonep.json").read_text())["vectors"]


@pytest.mark.parametrize("vector", [v for v in VECTORS if v["inputs"]["topk"]], ids=lambda v: v["name"])
def test_slow_planner_equals_the_recorded_one(vector):
    inputs, outputs = vector["inputs"], vector["outputs"]
    twin = plan_slowly(inputs["topk"], inputs["E"], inputs["token_padding"])
    assert twin["rank_moves"] == outputs["moves_home_dest_tokens"]
    assert twin["alloc"] == outputs["alloc_dest_by_expert"]
    assert twin["experts_to_copy"] == outputs["experts_to_copy"]
    assert twin["cu_seqlens"] == outputs["cu_seqlens"]
    assert twin["zero_fill_ranges"] == outputs["zero_fill_ranges"]
    assert twin["static_rows"] == inputs["NvS"]
    assert twin["dst"] == outputs["dst"]
