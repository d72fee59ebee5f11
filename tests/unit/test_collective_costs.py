"""What TensorRT-LLM's kernels, NCCL's all-to-all and all-gather with reduce-scatter charge, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from small_cases import layer

from moesim.moe import load
from moesim.plan import When
from moesim.protocols import build

HIDDEN, TOKENS, TOP_K, RANKS = 1024, 12, 4, 8
NVL72 = {"pod_name": "gb200-nvl72", "ep": RANKS}
# A token goes to its own rank and the next three, one expert on each.
ROUND_ROBIN = (2 * ((np.arange(RANKS).repeat(TOKENS)[:, None] + np.arange(TOP_K)) % RANKS)).astype(np.int64)


def phases(one):
    return {phase.name: phase for phase in one.plan.phases}


def waits(phase):
    return {(dep.phase, dep.when) for dep in phase.after}


def copied(one, moved):
    device = one.case.device
    return moved / (device.hbm_rate * device.hbm_efficiency)


class TestOneSided:
    def test_rows_carry_numbers_and_weights_and_share_the_port(self):
        one = layer("trtllm-onesided", **NVL72, ids=ROUND_ROBIN)
        flows = phases(one)["dispatch.send"].flows
        row = HIDDEN / 2 + HIDDEN / 16 + 8 * TOP_K  # NVFP4, a scale a 16 values; 8 B an expert
        assert len(flows) == RANKS * 3
        assert flows.messages.tolist() == [TOKENS] * len(flows)
        assert flows.wire == pytest.approx(np.full(len(flows), TOKENS * row))
        assert flows.payload == pytest.approx(np.full(len(flows), TOKENS * HIDDEN / 2))
        assert flows.core_s == pytest.approx(flows.wire / one.case.calibration["port_rate"])
        assert set(flows.core.tolist()) == {0}

    def test_a_token_costs_a_store_a_remote_row_and_flags_follow_the_rows(self):
        one = layer("trtllm-onesided", **NVL72, ids=ROUND_ROBIN)
        c, found = one.case.calibration, phases(one)
        assert found["dispatch.first token"].duration == pytest.approx(3 * c["store"])
        assert found["dispatch.flags"].duration == pytest.approx(RANKS * c["flag"])
        assert waits(found["dispatch.flags"]) == {("dispatch.send", When.MINE)}
        assert found["dispatch.flag flight"].duration == pytest.approx(0.865e-6)
        assert waits(found["dispatch.flag flight"]) == {
            ("dispatch.flags", When.ALL),
            ("dispatch.send", When.INBOUND),
        }

    def test_combine_begins_behind_flags_of_all_and_ends_with_round_trips(self):
        one = layer("trtllm-onesided", **NVL72, ids=ROUND_ROBIN)
        found = phases(one)
        assert waits(found["combine.flag flight"]) == {("combine.flags", When.ALL)}
        assert waits(found["combine.send"]) == {("combine.flag flight", When.MINE)}
        assert found["combine.last token"].duration == pytest.approx(3 * 2 * 0.865e-6)
        # Own rows are read and the sums written; rows of others come through the port.
        assert found["combine.reduce"].duration == pytest.approx(copied(one, 2 * TOKENS * 2 * HIDDEN))
        assert waits(found["combine.reduce"]) == {("combine.send", When.STREAM)}

    def test_a_token_sends_one_row_to_a_rank_with_several_of_its_experts(self):
        ids = np.tile(np.arange(TOP_K), (RANKS * TOKENS, 1))  # two experts on each of ranks 0 and 1
        one = layer("trtllm-onesided", **NVL72, ids=ids)
        assert one.strategy.protocol.rows(one.case)[5].tolist() == [TOKENS, TOKENS, *[0] * 6]
        assert phases(one)["dispatch.first token"].duration[[0, 5]] == pytest.approx(
            np.array([1, 2]) * one.case.calibration["store"]
        )

    def test_the_workspace_grows_with_ranks_and_capacity(self):
        sizes = layer("trtllm-onesided", **NVL72, capacity=100).buffers()
        row = HIDDEN / 2 + HIDDEN / 16 + 8 * TOP_K
        assert sizes == {"dispatch": RANKS * 100 * row, "combine": RANKS * 100 * 2 * HIDDEN, "flags": 64}


class TestTwoSided:
    def test_prepare_lists_entries_and_exchanges_counts(self):
        one = layer("trtllm-twosided", **NVL72, ids=ROUND_ROBIN)
        c, found = one.case.calibration, phases(one)
        assert found["dispatch.indices"].duration == pytest.approx(TOKENS * TOP_K * c["index"])
        flows = found["dispatch.counts"].flows
        assert len(flows) == RANKS * (RANKS - 1)
        assert flows.wire == pytest.approx(np.full(len(flows), 4.0 * 2))  # two experts a rank

    def test_operations_are_timed_apart_but_a_layer_pays_all(self):
        one = layer("trtllm-twosided", **NVL72)
        protocol, case = one.strategy.protocol, one.case
        prepare, dispatch = (protocol.operation(name, case) for name in ("prepare", "dispatch"))
        assert [p.name for p in (*prepare, *dispatch)] == [p.name for p in protocol.dispatch(case, ())]
        assert dispatch[0].name == "dispatch.launch"
        assert protocol.operation("alltoall", case) is None
        assert build("trtllm-onesided").operation("prepare", case) is None

    def test_a_row_takes_issue_of_one_core_and_its_share_of_the_port(self):
        one = layer({"kind": "trtllm-twosided", "dispatch": "bf16"}, **NVL72, ids=ROUND_ROBIN)
        c, flows = one.case.calibration, phases(one)["dispatch.send"].flows
        assert flows.core_s == pytest.approx(
            TOKENS * np.full(len(flows), c["issue"] / c["cores"] + 2 * HIDDEN / c["port_rate"])
        )

    def test_fp4_combine_converts_every_row_also_those_that_stay(self):
        one = layer({"kind": "trtllm-twosided", "combine": "nvfp4"}, **NVL72, ids=ROUND_ROBIN)
        plain = phases(layer("trtllm-twosided", **NVL72, ids=ROUND_ROBIN))
        c, found = one.case.calibration, phases(one)
        converted = TOP_K * TOKENS * 2 * HIDDEN / c["quantise_rate"]
        assert found["combine.quantise"].duration == pytest.approx(c["launch"] + converted)
        assert "combine.quantise" not in plain
        assert found["combine.send"].flows.wire == pytest.approx(
            found["combine.send"].flows.messages * (HIDDEN / 2 + HIDDEN / 16)
        )
        # The sum reads rows that were widened again.
        read_and_written = (TOP_K + 1) * TOKENS * 2 * HIDDEN
        assert found["combine.reduce"].duration == pytest.approx(copied(one, read_and_written))
        assert plain["combine.reduce"].duration == pytest.approx(found["combine.reduce"].duration)


class TestNccl:
    ROW = 2 * HIDDEN
    SENT = TOKENS * TOP_K * ROW  # 96 KiB a rank, its own part included

    def call(self, **constants):
        return phases(layer("nccl-alltoall", pod_name="b200-hgx", ep=8, ids=ROUND_ROBIN, constants=constants))

    def test_own_rows_pass_the_channels_but_not_the_port(self):
        wide = self.call(cores=10, core_rate=1e9, port_rate=1e12)["combine.send"].flows
        assert np.bincount(wide.src, wide.core_s) == pytest.approx(self.SENT / 10e9)
        narrow = self.call(cores=10, core_rate=1e12, port_rate=1e9)["combine.send"].flows
        assert np.bincount(narrow.src, narrow.core_s) == pytest.approx(self.SENT * 3 / 4 / 1e9)

    def test_small_calls_have_flagged_words_and_large_ones_a_handshake_and_a_last_chunk(self):
        small = self.call(cores=32, flagged_most=self.SENT / 32, flagged_rate=1e9, handshake=7e-6)
        assert small["combine.flagged"].duration == pytest.approx(self.SENT / 8 / 1e9)
        assert "combine.handshake" not in small
        assert not small["combine.copy out"].duration.any()
        large = self.call(cores=32, flagged_most=self.SENT / 32 - 1, handshake=7e-6, chunk=1024)
        assert "combine.flagged" not in large
        assert large["combine.handshake"].duration == pytest.approx(7e-6)
        one = layer("nccl-alltoall", pod_name="b200-hgx", ep=8)
        assert large["combine.copy out"].duration == pytest.approx(copied(one, 2 * 32 * 1024))

    def test_alltoall_is_the_bare_collective(self):
        one = layer("nccl-alltoall", pod_name="b200-hgx", ep=8, ids=ROUND_ROBIN)
        names = [phase.name for phase in one.strategy.protocol.operation("alltoall", one.case)]
        assert "alltoall.send" in names
        assert all(name.startswith("alltoall.") for name in names)


class TestAllGather:
    def test_every_rank_sends_all_its_tokens_to_all_others(self):
        one = layer("allgather-reducescatter", **NVL72)
        flows = phases(one)["dispatch.send"].flows
        assert len(flows) == RANKS * (RANKS - 1)
        assert flows.messages.tolist() == [TOKENS] * len(flows)
        row = 2 * HIDDEN + 8 * TOP_K
        # Few bytes: half of each word is a flag.
        assert flows.wire == pytest.approx(np.full(len(flows), 2 * TOKENS * row))
        assert phases(one)["dispatch.steps"].duration == pytest.approx(7 * 0.6e-6)

    def test_many_bytes_take_a_handshake_a_step_and_no_flags(self):
        one = layer("allgather-reducescatter", **NVL72, tokens=2048)
        flows = phases(one)["dispatch.send"].flows
        assert flows.wire == pytest.approx(np.full(len(flows), 2048.0 * (2 * HIDDEN + 8 * TOP_K)))
        assert phases(one)["dispatch.steps"].duration == pytest.approx(7 * 3.4e-6)

    def test_partial_outputs_of_all_tokens_are_written_before_they_are_scattered(self):
        one = layer("allgather-reducescatter", **NVL72, ids=ROUND_ROBIN)
        moved = (TOKENS * TOP_K + RANKS * TOKENS) * 2 * HIDDEN
        assert phases(one)["combine.partial sums"].duration == pytest.approx(copied(one, moved))

    def test_a_ring_enters_a_domain_once_and_goes_on_inside(self):
        one = layer("allgather-reducescatter", pod_name="rails", tokens=4096)
        flows, case = phases(one)["dispatch.send"].flows, one.case
        row = 2 * HIDDEN + 8 * TOP_K
        beyond = case.traffic.domain[flows.src] != case.traffic.domain[flows.dst]
        received = np.bincount(flows.dst, flows.wire)
        # Two domains of four: each rank has all rows in the end, a NIC has carried those of its peer.
        assert received == pytest.approx(np.full(8, 7 * 4096 * row))
        assert sorted(zip(flows.src[beyond], flows.dst[beyond], strict=True)) == sorted(
            (r, (r + 4) % 8) for r in range(8)
        )
        assert np.bincount(flows.src[beyond], flows.wire[beyond]) == pytest.approx(np.full(8, 4096.0 * row))
        assert (flows.payload <= flows.wire * (1 + 1e-12)).all()
        back = phases(one)["combine.send"].flows
        assert sorted(zip(back.dst, back.src, strict=True)) == sorted(zip(flows.src, flows.dst, strict=True))
        # 6 hops of 3.4 us inside and one of 14 us over a NIC.
        assert phases(one)["dispatch.steps"].duration == pytest.approx(6 * 3.4e-6 + 14e-6)

    def test_multicast_saves_the_steps_and_no_bytes(self):
        ring = phases(layer("allgather-reducescatter", **NVL72, tokens=2048))
        one = layer({"kind": "allgather-reducescatter", "algorithm": "nvls"}, **NVL72, tokens=2048)
        nvls = phases(one)
        assert nvls["dispatch.steps"].duration == pytest.approx(3.5e-6)
        assert nvls["dispatch.send"].flows.wire == pytest.approx(ring["dispatch.send"].flows.wire)
        assert one.strategy.protocol.needs() == {"multicast"}


BALANCED = ["trtllm-onesided", "trtllm-twosided", "nccl-alltoall", "allgather-reducescatter"]


@pytest.mark.parametrize("protocol", BALANCED)
@pytest.mark.parametrize("pod", ["h100-ib", "b200-hgx", "gb200-nvl72"])
@pytest.mark.parametrize("tokens", [1, 128, 4096])
def test_where_nothing_contends_the_bound_is_the_fluid_time(protocol, pod, tokens):
    ids = (2 * ((np.arange(RANKS).repeat(tokens)[:, None] + np.arange(TOP_K)) % RANKS)).astype(np.int64)
    one = layer(protocol, pod_name=pod, ep=RANKS, tokens=tokens, ids=ids, hidden=7168)
    for stage in ("dispatch", "expert", "combine"):
        fluid, bound = one.fluid().end(stage).max(), one.bound().end(stage).max()
        assert bound <= fluid * (1 + 1e-9)
        assert fluid == pytest.approx(bound, rel=0.03)


class TestDefinitionsOfBandwidth:
    """Each library's own byte count, against numbers that were published with it (to half a percent)."""

    @pytest.mark.parametrize(("form", "row"), [("bf16", 14336), ("mxfp8", 7392), ("nvfp4", 4032)])
    @pytest.mark.parametrize("protocol", ["trtllm-onesided", "trtllm-twosided"])
    @pytest.mark.parametrize("ep", [4, 8, 16])
    def test_tensorrt_llm_counts_min_ranks_top_k_rows_a_token_its_own_rank_included(
        self, protocol, form, row, ep
    ):
        k = 8
        home = np.arange(ep).repeat(TOKENS)[:, None]
        ids = ((home + np.arange(k)) % ep) * 2 + (np.arange(k) >= ep)
        one = layer(
            {"kind": protocol, "dispatch": form}, pod_name="gb200-nvl72", ep=ep, experts=2 * ep, top_k=k,
            hidden=7168, ids=ids,
        )  # fmt: skip
        counted = one.strategy.protocol
        assert load("deepseek-v3").row_bytes(form) == row
        assert counted.logical_bytes(one.case) == TOKENS * min(ep, k) * row
        assert counted.logical_bytes(one.case, "combine") == TOKENS * min(ep, k) * 14336
        if ep <= k:
            # The table's own count has the remote rows only, T (min(K, P) - 1) x bytes: what the fabric carries.
            flows = phases(one)["dispatch.send"].flows
            remote = flows.messages[flows.src == 0].sum() * row
            assert remote == TOKENS * (min(ep, k) - 1) * row

    @pytest.mark.parametrize(("microseconds", "busbw"), [(1468.6, 320), (834.17, 563)])
    def test_nccl_tests_count_what_leaves_the_rank(self, microseconds, busbw):
        """All-to-all of 512 MiB on 8 x H100 and 8 x B200."""
        one = layer("nccl-alltoall", pod_name="b200-hgx", ep=8, ids=ROUND_ROBIN)
        sent = float(TOKENS * TOP_K * 2 * HIDDEN)
        assert one.strategy.protocol.logical_bytes(one.case) == pytest.approx(sent * 7 / 8)
        share = one.strategy.protocol.logical_bytes(one.case) / sent
        assert 2**29 * share / (microseconds * 1e-6) == pytest.approx(busbw * 1e9, rel=0.005)

    def test_an_all_gather_counts_the_gathered_buffer_less_what_was_there(self):
        one = layer("allgather-reducescatter", **NVL72)
        gathered = RANKS * TOKENS * (2 * HIDDEN + 8 * TOP_K)
        assert one.strategy.protocol.logical_bytes(one.case) == pytest.approx(gathered * 7 / 8)
        scattered = RANKS * TOKENS * 2 * HIDDEN
        assert one.strategy.protocol.logical_bytes(one.case, "combine") == pytest.approx(scattered * 7 / 8)
