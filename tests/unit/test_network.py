from __future__ import annotations

import numpy as np
import pytest
import simpy

from moesim.network import Batch, Network, finish_times


def _submit(
    network: Network,
    pairs: list[tuple[int, int]],
    size: list[float],
    release: float | list[float] = 0.0,
    latency: float = 0.0,
) -> Batch:
    """Flows over ports: (up, down) resource pairs, grouped by their down port."""
    flows = len(pairs)
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return network.submit(
        np.arange(0, 2 * flows + 1, 2),
        ends.ravel(),
        np.ones(2 * flows),
        np.array(size, dtype=np.float64),
        np.broadcast_to(np.asarray(release, dtype=np.float64), flows),
        np.full(flows, latency),
        np.full(flows, -1),
        ends[:, 1],
        len(network.load),
    )


def _network(tolerance: float = 0.0, ports: int = 4) -> tuple[simpy.Environment, Network]:
    env = simpy.Environment()
    return env, Network(env, np.full(ports, 10.0), tolerance)


def test_a_group_is_done_when_its_last_flow_has_arrived() -> None:
    env, network = _network()
    batch = _submit(network, [(0, 2), (1, 2), (1, 3)], [10.0, 20.0, 5.0], latency=0.25)
    env.run()
    # Port 2 gives 5 B/s each until 2 s; port 1 gives the third flow 5 B/s until 1 s.
    assert batch.finish.tolist() == [2.0, 3.0, 1.0]
    assert {group: event.value for group, event in batch.done.items()} == {2: 3.25, 3: 1.25}
    assert {group: event.value for group, event in batch.first.items()} == {2: 2.25, 3: 1.25}
    assert env.now == 3.25


def test_events_fire_at_their_time() -> None:
    env, network = _network()
    batch = _submit(network, [(0, 2), (1, 3)], [10.0, 25.0], latency=0.5)
    seen: list[tuple[int, float]] = []
    for group, event in batch.done.items():
        event.callbacks.append(lambda _, group=group: seen.append((group, env.now)))
    env.run()
    assert seen == [(2, 1.5), (3, 3.0)]


@pytest.mark.parametrize("tolerance", [0.0, 0.1])
def test_a_later_batch_slows_an_earlier_one_from_its_start_on(tolerance: float) -> None:
    env, network = _network(tolerance)
    first = _submit(network, [(0, 2)], [20.0])
    later: list[Batch] = []

    def other() -> simpy.events.ProcessGenerator:
        yield env.timeout(1.0)
        later.append(_submit(network, [(1, 2)], [5.0], env.now))

    env.process(other())
    env.run()
    assert first.finish.tolist() == [2.5]
    assert later[0].finish.tolist() == [2.0]
    assert later[0].start.tolist() == [1.0]


def test_submissions_of_one_instant_share_one_solve() -> None:
    env, network = _network()
    for up in (0, 1):
        _submit(network, [(up, 2)], [10.0])
    env.run()
    assert env.now == 2.0
    assert network.solves == 1


def test_ranks_that_arrive_one_by_one_equal_the_engine_alone() -> None:
    ranks, rng = 12, np.random.default_rng(3)
    src, dst = np.divmod(np.arange(ranks**2), ranks)
    src, dst = src[src != dst], dst[src != dst]
    size, start = rng.lognormal(10, 1, len(src)), rng.uniform(0, 2e-4, ranks)
    for tolerance in (0.0, 0.003):
        env = simpy.Environment()
        network = Network(env, np.full(2 * ranks, 1e9), tolerance)
        found = np.zeros(len(src))

        def arrive(rank: int, env=env, network=network, found=found) -> simpy.events.ProcessGenerator:  # type: ignore[no-untyped-def]
            yield env.timeout(start[rank])
            mine = np.flatnonzero(src == rank)
            pairs = list(zip(src[mine].tolist(), (ranks + dst[mine]).tolist(), strict=True))
            batch = _submit(network, pairs, size[mine].tolist(), env.now)
            yield simpy.AllOf(env, list(batch.done.values()))
            found[mine] = batch.finish

        for rank in range(ranks):
            env.process(arrive(rank))
        env.run()
        index = np.stack([src, ranks + dst], axis=1).ravel()
        indptr = np.arange(0, 2 * len(src) + 1, 2)
        alone = finish_times(
            indptr, index, np.ones(len(index)), np.full(2 * ranks, 1e9), size, start[src], 0.0
        )
        within = max(tolerance * alone.finish.max(), 1e-12)
        assert np.abs(found - alone.finish).max() <= within
        np.testing.assert_allclose(network.load, np.bincount(index, np.repeat(size, 2)), rtol=1e-12)


def test_a_flow_with_nothing_to_move_ends_at_its_release() -> None:
    env, network = _network()
    batch = _submit(network, [(0, 2), (1, 2)], [0.0, 10.0], [0.5, 0.0], latency=0.25)
    env.run()
    assert batch.finish.tolist() == [0.5, 1.0]
    assert batch.first[2].value == 0.75


def test_a_tiny_flow_is_not_free() -> None:
    env, network = _network()
    batch = _submit(network, [(0, 2)], [1e-9])
    env.run()
    assert batch.finish.tolist() == [1e-10]


def test_a_batch_without_flows_is_done() -> None:
    env, network = _network()
    batch = _submit(network, [], [])
    env.run()
    assert batch.done == {}
    assert env.now == 0.0


def test_idle_time_between_batches_costs_no_solve() -> None:
    env, network = _network()
    batches = [_submit(network, [(0, 2)], [10.0])]

    def later() -> simpy.events.ProcessGenerator:
        yield env.timeout(100.0)
        batches.append(_submit(network, [(0, 2)], [10.0], env.now))

    env.process(later())
    env.run()
    assert batches[1].finish.tolist() == [101.0]
    assert network.solves == 2


def test_a_release_in_the_past_is_refused() -> None:
    env, network = _network()
    env.run(until=1.0)
    with pytest.raises(ValueError, match="before now"):
        _submit(network, [(0, 2)], [1.0], 0.5)


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
