from __future__ import annotations

import numpy as np
import pytest
import simpy

from moesim.network import Network, finish_times


class Sent:
    """Flows over ports: (up, down) resource pairs, grouped by their down port; when each group was told."""

    def __init__(
        self, network: Network, pairs: list[tuple[int, int]], size: list[float], latency: float = 0.0
    ) -> None:
        flows = len(pairs)
        ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        self.told: list[tuple[int, float]] = []
        self.env = network.env
        self.batch = network.join(
            np.arange(0, 2 * flows + 1, 2),
            ends.ravel(),
            np.ones(2 * flows),
            np.array(size, dtype=np.float64),
            np.full(flows, latency),
            np.array([np.full(flows, -1), ends[:, 1]]),
            lambda group: self.told.append((group, network.env.now)),
        )

    def start(self, chosen: list[int] | None = None, release: float | list[float] | None = None) -> Sent:
        """Some of the flows, or all, at ``release``, or now."""
        flows = np.arange(len(self.batch.finish)) if chosen is None else np.array(chosen)
        begin = self.env.now if release is None else release
        self.batch.start(flows, np.broadcast_to(np.asarray(begin, dtype=np.float64), len(flows)))
        return self

    @property
    def finish(self) -> list[float]:
        return self.batch.finish.tolist()


def _network(tolerance: float = 0.0, ports: int = 4) -> tuple[simpy.Environment, Network]:
    env = simpy.Environment()
    return env, Network(env, np.full(ports, 10.0), tolerance)


def test_a_group_is_told_when_its_last_flow_has_arrived() -> None:
    env, network = _network()
    sent = Sent(network, [(0, 2), (1, 2), (1, 3)], [10.0, 20.0, 5.0], latency=0.25).start()
    env.run()
    # Port 2 gives 5 B/s each until 2 s; port 1 gives the third flow 5 B/s until 1 s.
    assert sent.finish == [2.0, 3.0, 1.0]
    assert sent.told == [(3, 1.25), (2, 3.25)]


def test_the_last_to_finish_need_not_be_the_last_to_arrive() -> None:
    env, network = _network()
    told: list[float] = []
    batch = network.join(
        np.array([0, 1, 2]), np.array([0, 1]), np.ones(2), np.array([10.0, 20.0]), np.array([5.0, 0.5]),
        np.array([[0, 0], [-1, -1]]), lambda _: told.append(env.now),
    )  # fmt: skip
    batch.start(np.arange(2), np.zeros(2))
    env.run()
    assert batch.finish.tolist() == [1.0, 2.0]
    assert told == [6.0]


def test_a_group_waits_for_flows_that_start_later() -> None:
    env, network = _network()
    sent = Sent(network, [(0, 2), (1, 2)], [10.0, 10.0]).start([0])
    env.run()
    assert sent.told == []
    assert sent.finish[0] == 1.0
    env.run(until=5.0)
    sent.start([1])
    env.run()
    assert sent.told == [(2, 6.0)]
    assert sent.batch.release.tolist() == [0.0, 5.0]


def test_a_finish_is_known_as_soon_as_it_is_told() -> None:
    """Also when the step of the engine goes on: a merged step does not end with its first finish."""
    flows = 200
    env, network = _network(0.5, ports=2 * flows)
    size = np.linspace(1.0, 2.0, flows)
    sent = Sent(network, [(flow, flows + flow) for flow in range(flows)], size.tolist()).start()
    env.run(until=size[0] / 10.0 * (1 + 1e-6))
    assert [group for group, _ in sent.told] == [flows]
    assert sent.finish[0] == pytest.approx(size[0] / 10.0, rel=1e-6)
    assert np.isnan(sent.finish[-1])


def test_a_flow_starts_once() -> None:
    _, network = _network()
    sent = Sent(network, [(0, 2)], [10.0]).start()
    with pytest.raises(ValueError, match="twice"):
        sent.start()


@pytest.mark.parametrize("tolerance", [0.0, 0.1])
def test_a_later_start_slows_an_earlier_flow_from_then_on(tolerance: float) -> None:
    env, network = _network(tolerance)
    first, later = Sent(network, [(0, 2)], [20.0]).start(), Sent(network, [(1, 2)], [5.0])
    env.timeout(1.0).callbacks.append(lambda _: later.start())
    env.run()
    assert (first.finish, later.finish) == ([2.5], [2.0])
    assert later.batch.release.tolist() == [1.0]


def test_starts_of_one_instant_share_one_solve() -> None:
    env, network = _network()
    for up in (0, 1):
        Sent(network, [(up, 2)], [10.0]).start()
    env.run()
    assert env.now == 2.0
    assert network.fluid.solves == 1


def test_ranks_that_arrive_one_by_one_equal_the_engine_alone() -> None:
    ranks, rng = 12, np.random.default_rng(3)
    src, dst = np.divmod(np.arange(ranks**2), ranks)
    src, dst = src[src != dst], dst[src != dst]
    size, start = rng.lognormal(10, 1, len(src)), rng.uniform(0, 2e-4, ranks)
    index = np.stack([src, ranks + dst], axis=1).ravel()
    indptr = np.arange(0, 2 * len(src) + 1, 2)
    capacity = np.full(2 * ranks, 1e9)
    alone = finish_times(indptr, index, np.ones(len(index)), capacity, size, start[src], 0.0).finish
    for tolerance in (0.0, 0.003):
        env = simpy.Environment()
        network = Network(env, capacity, tolerance)
        sent = Sent(network, list(zip(src.tolist(), (ranks + dst).tolist(), strict=True)), size.tolist())
        for rank in range(ranks):
            mine = np.flatnonzero(src == rank).tolist()
            env.timeout(start[rank]).callbacks.append(lambda _, mine=mine, sent=sent: sent.start(mine))
        env.run()
        assert sent.batch.release.tolist() == start[src].tolist()
        within = max(tolerance * alone.max(), 1e-12)
        assert np.abs(sent.finish - alone).max() <= within
        # Each port is told of at the instant of its last flow.
        for port, time in sent.told:
            assert time == pytest.approx(max(np.array(sent.finish)[ranks + dst == port]), rel=1e-15)
        np.testing.assert_allclose(network.fluid.load, np.bincount(index, np.repeat(size, 2)), rtol=1e-12)


def test_a_flow_with_nothing_to_move_ends_at_its_release() -> None:
    env, network = _network()
    sent = Sent(network, [(0, 2), (1, 3)], [0.0, 10.0], latency=0.25).start(release=[0.5, 0.0])
    env.run()
    assert sent.finish == [0.5, 1.0]
    assert sent.told == [(2, 0.75), (3, 1.25)]


def test_a_tiny_flow_is_not_free() -> None:
    env, network = _network()
    sent = Sent(network, [(0, 2)], [1e-9]).start()
    env.run()
    assert sent.finish == [1e-10]


def test_a_batch_without_flows_tells_nothing() -> None:
    env, network = _network()
    sent = Sent(network, [], []).start()
    env.run()
    assert (sent.told, env.now) == ([], 0.0)


def test_idle_time_between_batches_costs_no_solve() -> None:
    env, network = _network()
    first, later = Sent(network, [(0, 2)], [10.0]).start(), Sent(network, [(0, 2)], [10.0])
    env.timeout(100.0).callbacks.append(lambda _: later.start())
    env.run()
    assert (first.finish, later.finish) == ([1.0], [101.0])
    assert network.fluid.solves == 2


def test_a_batch_may_join_while_another_is_under_way() -> None:
    env, network = _network()
    first = Sent(network, [(0, 2)], [20.0]).start()
    found: list[Sent] = []
    env.timeout(1.0).callbacks.append(lambda _: found.append(Sent(network, [(1, 2)], [5.0]).start()))
    env.run()
    assert (first.finish, found[0].finish) == ([2.5], [2.0])
    assert (first.told, found[0].told) == ([(2, 2.5)], [(2, 2.0)])


def test_a_release_in_the_past_is_refused() -> None:
    env, network = _network()
    env.run(until=1.0)
    with pytest.raises(ValueError, match="before now"):
        Sent(network, [(0, 2)], [1.0]).start(release=0.5)


def test_a_tolerance_that_is_no_share_is_refused() -> None:
    with pytest.raises(ValueError, match="tolerance"):
        _network(tolerance=1.5)


def test_equal_flows_end_at_one_instant() -> None:
    rng = np.random.default_rng(0)
    weight = np.repeat(rng.uniform(0.5, 2.0, 50), 20)
    index, indptr = np.repeat(np.arange(50), 20), np.arange(1001)
    found = finish_times(indptr, index, weight, np.full(50, 3.0), np.full(1000, 7.0), np.zeros(1000), 0.0)
    assert [len(set(part)) for part in found.finish.reshape(50, 20).tolist()] == [1] * 50


def test_an_equal_all_to_all_is_one_solve() -> None:
    src, dst = np.divmod(np.arange(72 * 72), 72)
    src, dst = src[src != dst], dst[src != dst]
    index = np.stack([src, 72 + dst], axis=1).ravel()
    flows = len(src)
    found = finish_times(
        np.arange(0, 2 * flows + 1, 2), index, np.ones(2 * flows), np.full(144, 900e9), np.full(flows, 1e6),
        np.zeros(flows), 0.0,
    )  # fmt: skip
    assert found.solves == 1
    assert len(set(found.finish.tolist())) == 1
    assert found.finish[0] == pytest.approx(71e6 / 900e9, rel=1e-14)
    assert found.error_estimate == 0.0
