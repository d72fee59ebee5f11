"""Plans: legal orders only, and flow sets with the usual defaults."""

from __future__ import annotations

import numpy as np
import pytest

from moesim.plan import After, FlowSet, Local, Plan, Transfer


def local(name, *after):
    return Local(name, "sync", np.zeros(2), tuple(After(one) for one in after))


def test_a_plan_keeps_its_phases_in_order():
    plan = Plan(2, (local("a"), local("b", "a")), {"dispatch": "b"})
    assert [phase.name for phase in plan.phases] == ["a", "b"]


@pytest.mark.parametrize(
    ("phases", "ends", "message"),
    [
        ((local("a"), local("a")), {}, "appears twice"),
        ((local("b", "a"), local("a")), {}, "do not come before"),
        ((local("a", "a"),), {}, "do not come before"),
        ((local("a"),), {"dispatch": "b"}, "not phases"),
    ],
)
def test_an_illegal_plan_is_refused(phases, ends, message):
    with pytest.raises(ValueError, match=message):
        Plan(2, phases, ends)


def test_flows_by_default_carry_their_payload_in_one_message_and_no_core():
    flows = FlowSet.of(np.array([0, 1]), np.array([1, 0]), np.array([5, 7]))
    assert len(flows) == 2
    assert flows.wire.tolist() == flows.payload.tolist() == [5.0, 7.0]
    assert flows.messages.tolist() == [1.0, 1.0]
    assert flows.core.tolist() == [-1, -1]
    assert not flows.release.any()
    assert not flows.core_s.any()
    columns = (flows.src, flows.dst, flows.core), (flows.payload, flows.wire, flows.messages, flows.core_s)
    assert {column.dtype for column in columns[0]} == {np.dtype(np.int64)}
    assert {column.dtype for column in columns[1]} == {np.dtype(np.float64)}


def test_an_empty_transfer_is_a_phase_too():
    none = np.empty(0, dtype=np.int64)
    plan = Plan(1, (Transfer("send", "send", FlowSet.of(none, none, none)),), {"dispatch": "send"})
    assert len(plan.phases[0].flows) == 0
