from __future__ import annotations

from math import comb
from typing import Any

import pytest

from moesim import explain, scenario, simulate
from moesim.console_explain import explain_report

BASE: dict[str, Any] = {
    "moesim": 1,
    "topology": {"name": "h100-ib", "hosts": 2},
    "ranks": {"ep": 16},
    "model": "deepseek-v2-lite",
    "workload": {"phase": "decode", "tokens_per_rank": 64, "layers": 1},
    "routing": {"kind": "uniform"},
    "strategies": [{"name": "nccl", "protocol": "nccl-alltoall"}],
}


def explained(**changes: Any) -> dict[str, Any]:
    return explain.explain(scenario.from_mapping({**BASE, **changes}))


def ceiling(document: dict[str, Any], stage: str = "dispatch") -> dict[str, Any]:
    found: dict[str, Any] = document["strategies"][0]["ceilings"][stage]
    return found


def test_two_hosts_are_bound_by_the_network_card_as_by_hand() -> None:
    # Half of the entries leave the host, 50 GB/s a card at 96 %: 64 x 6 x 4096 B / 2 / 48 GB/s.
    found = ceiling(explained())
    assert found["floor_s"] == pytest.approx(64 * 6 * 4096 / 2 / 48e9, rel=1e-3)
    assert found["wire_B"] == pytest.approx(64 * 6 * 4096 * 15 / 16, rel=0.02)
    assert found["bottleneck"] == found["fabric_bottleneck"]
    assert found["wire_Bps"] == pytest.approx(found["wire_B"] / found["floor_s"])
    assert found["logical_Bps"] == pytest.approx(found["logical_B"] / found["floor_s"])
    assert found["logical_B"] == pytest.approx(64 * 6 * 4096, rel=1e-3)
    assert found["library_Bps"] == pytest.approx(found["library_B"] / found["floor_s"])


def test_one_host_is_not_bound_by_the_network_card() -> None:
    found = ceiling(explained(topology={"name": "h100-ib", "hosts": 1}, ranks={"ep": 8}))
    assert found["floor_s"] < 64 * 6 * 4096 / 2 / 48e9
    assert found["wire_Bps"] <= 450e9


def test_floor_is_in_proportion_to_tokens_and_the_bound_keeps_its_fixed_costs() -> None:
    few, many = (
        ceiling(explained(workload={**BASE["workload"], "tokens_per_rank": count})) for count in (64, 640)
    )
    assert many["floor_s"] == pytest.approx(10 * few["floor_s"], rel=0.01)
    assert few["bound_s"] > few["floor_s"]
    assert many["bound_s"] < 10 * few["bound_s"]


def test_no_tokens_leave_only_fixed_costs() -> None:
    strategies = [{"name": "ll", "protocol": "deepep-ll"}]
    document = explained(workload={**BASE["workload"], "tokens_per_rank": 0}, strategies=strategies)
    found = ceiling(document)
    assert (found["floor_s"], found["wire_B"], found["bottleneck"], found["wire_Bps"]) == (
        0.0,
        0.0,
        None,
        None,
    )
    assert found["bound_s"] > 0
    assert "no tokens: only fixed costs remain" in document["warnings"]
    assert "nothing is sent" in "\n".join(explain_report(document, 100))


def test_a_fault_raises_the_floor_and_is_said() -> None:
    broken = explained(faults=[{"nic": "0", "capacity": "50%"}])
    assert ceiling(broken)["floor_s"] > 1.5 * ceiling(explained())["floor_s"]
    assert any("broken" in text for text in broken["warnings"])
    assert broken["pod"]["faults"]


def test_links_have_raw_and_effective_rates_per_device() -> None:
    document = explained()
    nvlink = next(row for row in document["links"] if row["kind"] == "nvlink")
    access = document["strategies"][0]["access"]
    assert nvlink["per_device_Bps"] == pytest.approx(450e9)
    assert nvlink["effective_Bps"][access] == pytest.approx(
        nvlink["capacity_Bps"] * nvlink["efficiency"][access]
    )


def test_model_and_ranks_are_the_scenario_s() -> None:
    document = explained()
    assert document["ranks"] == {
        "ep": 16,
        "hosts": 2,
        "domains": 2,
        "first": "gpu0",
        "last": "gpu15",
        "entries_share": pytest.approx({"rank": 1 / 16, "host": 7 / 16, "domain": 0.0, "beyond": 0.5}),
    }
    assert document["model"]["experts_per_rank"] == 4
    assert document["model"]["weights_B"] == 4 * 26 * 3 * 2048 * 1408 * 2


def test_balancer_with_copies_needs_more_memory() -> None:
    plain = {"name": "plain", "protocol": "nccl-alltoall"}
    balanced = {"name": "moonep", "protocol": "nccl-alltoall", "balancer": "moonep", "assume": ["multicast"]}
    first, second = explained(strategies=[plain, balanced])["strategies"]
    assert second["buffers_B"]["weight_slots"] == 4 * 3 * 2048 * 1408 * 2
    assert sum(second["buffers_B"].values()) > sum(first["buffers_B"].values())


def test_static_rows_of_many_tokens_are_scaled_up() -> None:
    balanced = [
        {"name": "moonep", "protocol": "nccl-alltoall", "balancer": "moonep", "assume": ["multicast"]}
    ]
    small, large = (
        explained(strategies=balanced, workload={**BASE["workload"], "tokens_per_rank": count})
        for count in (2048, 8192)
    )
    rows = [document["strategies"][0]["buffers_B"]["expert_rows"] for document in (small, large)]
    assert rows[1] == pytest.approx(4 * rows[0], rel=0.1)


def test_every_constant_has_a_source_that_is_listed() -> None:
    document = explained()
    listed = {source["key"] for source in document["sources"]}
    assert {item["source"] for item in document["cited"]} <= listed
    assert len({(item["where"], item["value"]) for item in document["cited"]}) == len(document["cited"])


def test_report_puts_assumed_constants_before_all_others() -> None:
    lines = explain_report(explained(), 80)
    titles = [line for line in lines if " constants (" in line]
    assert titles[0].startswith("assumed constants (")
    assert len(titles) == len({item["grade"] for item in explained()["cited"]})


@pytest.mark.parametrize("width", [80, 120])
def test_report_fits_the_screen(width: int) -> None:
    strategies = [{"name": f"strategy-{n}", "protocol": "deepep-ll"} for n in range(6)]
    for line in explain_report(explained(strategies=strategies), width):
        assert len(line) <= width or "/" in line, line


def test_what_constants_were_fitted_to_is_said() -> None:
    document = explained(strategies=[{"name": "ht", "protocol": "deepep-ht"}])
    fit = document["strategies"][0]["fit"]
    assert fit["rows"].startswith("264 rows: ")
    assert 0 < fit["median"] < fit["p90"] < 0.2
    text = " ".join(" ".join(explain_report(document, 100)).split())
    names = ", ".join(fit["constants"])
    assert f"fitted to {fit['rows']}: {names}; median error" in text
    none = explained(strategies=[{"name": "push", "protocol": "rank-dedup-push", "assume": ["multicast"]}])
    assert none["strategies"][0]["fit"] is None


def test_a_default_calibration_is_said() -> None:
    notes = explained(topology={"fabric": _crossbar(16)})["strategies"][0]["notes"]
    assert any("is not calibrated on" in text for text in notes)


@pytest.mark.parametrize("protocol", ["deepep-ht", "ubep"])
def test_run_warns_of_all_that_explain_says_of_a_strategy(protocol: str) -> None:
    one = {"name": "one", "protocol": protocol, "assume": ["atomic-512B", "peer-memory"]}
    spec = {**BASE, "topology": "gb200-nvl72", "strategies": [one], "fidelity": "bound"}
    asked = scenario.from_mapping(spec)
    notes = explain.explain(asked)["strategies"][0]["notes"]
    assert notes
    assert simulate.run(asked).to_json()["strategies"][0]["warnings"] == notes


def test_relays_cross_the_network_once_a_domain_and_the_report_shows_it() -> None:
    strategies = [{"name": name, "protocol": name} for name in ("nccl-alltoall", "deepep-ht")]
    document = explained(ranks={"ep": 32}, topology={"name": "h100-ib", "hosts": 4}, strategies=strategies)
    plain, relayed = (item["ceilings"]["dispatch"]["crossed_B"] for item in document["strategies"])
    assert plain["payload"]["scale_out"] == pytest.approx(32 * 64 * 6 * 0.75 * 4096, rel=1e-3)
    # A host without any of the 6 experts: C(48, 6) / C(64, 6). FP8: half the bytes.
    reached = 3 * (1 - comb(48, 6) / comb(64, 6))
    assert relayed["payload"]["scale_out"] == pytest.approx(32 * 64 * reached * 2048, rel=0.02)
    assert relayed["wire"]["scale_out"] > 1.03 * relayed["payload"]["scale_out"]
    lines = explain_report(document, 80)
    start = lines.index("bytes over each tier, dispatch and combine, all ranks: payload / wire [MiB]")
    assert " ".join(lines[start + 2].split()) == "format of a row, out / back bf16 / bf16 fp8 / bf16"
    tier = next(line for line in lines[start:] if line.startswith("  scale-out"))
    both = sum(
        document["strategies"][1]["ceilings"][stage]["crossed_B"]["wire"]["scale_out"] for stage in STAGES
    )
    assert float(tier.split()[-1]) == pytest.approx(both / 2**20, rel=1e-3)


STAGES = ("dispatch", "combine")


def _crossbar(devices: int) -> dict[str, Any]:
    port = {"capacity": "900GB/s", "latency": "0us", "efficiency": 1, "source": "example", "grade": "assumed"}
    return {"kind": "crossbar", "devices": devices, "port": port}


def test_ideal_crossbar_gives_its_port_rate_as_the_ceiling() -> None:
    found = ceiling(explained(topology={"fabric": _crossbar(16)}))
    assert found["fabric_s"] == pytest.approx(found["wire_B"] / 900e9, rel=0.02)
