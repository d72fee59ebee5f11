"""What UltraEP costs in a layer: the reroute beside the push, and all senders at the rate of relays."""

from __future__ import annotations

import numpy as np
import pytest
from small_cases import layer

EXPERT_B = 3 * 1024 * 256 * 2


def on_rack(ids, ep, **more):
    one = layer(
        "rank-dedup-push", "ultraep", pod_name="gb200-nvl72", ep=ep, experts=ep, top_k=1, ids=ids, **more
    )
    return one, one.fluid().spans


def test_reroute_is_exposed_where_no_weights_move():
    ids = np.arange(8).repeat(4)[:, None]
    one, spans = on_rack(ids, 8)
    assert len(one.case.assignment.moves) == 0
    decided = spans["plan"].end.max()
    assert spans["plan.reroute"].end == pytest.approx(decided + one.strategy.moving["reroute"])
    begin = min(span.start.min() for name, span in spans.items() if name.startswith("dispatch"))
    assert begin == pytest.approx(decided + one.strategy.moving["reroute"])


def test_reroute_hides_behind_weights():
    hot = np.zeros((8 * 64, 1), dtype=np.int64)
    wide = {"hidden": 4096, "intermediate": 2048}
    _, spans = on_rack(hot, 8, **wide)
    _, without = on_rack(hot, 8, **wide, off=["serialisation"])
    sent = spans["weights.push"].end[0]
    assert sent > spans["plan.reroute"].end[0] > spans["plan"].end[0]
    assert spans["dispatch.send"].start[0] >= sent
    assert "plan.reroute" not in without


def test_all_senders_slow_down_where_there_are_relays():
    """Expert 0 has a tree, expert 1 has two copies: its home sends them at the rate of relays, too."""
    ids = np.where(np.arange(16 * 64) < 850, 0, 1)[:, None]
    one, spans = on_rack(ids, 16)
    moves, relayed = one.case.assignment.moves, one.case.assignment.relayed
    assert relayed.any()
    expert = one.case.assignment.placement.slot_expert[moves[:, 0]]
    assert (expert == 1).sum() == 2
    assert not relayed[expert == 1].any()
    direct = np.bincount(moves[~relayed, 1], minlength=16)
    took = spans["weights.push"].end - spans["weights.launch"].end
    rate = one.strategy.moving["relay_rate"]
    assert (took[direct > 0] >= direct[direct > 0] * EXPERT_B / rate * (1 - 1e-9)).all()
