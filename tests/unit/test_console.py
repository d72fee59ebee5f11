from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from moesim.comparison import compare
from moesim.console import comparison_report, run_report
from moesim.outcome import StrategyOutcome
from moesim.result import Result

Make = Callable[..., Result]
MakeOutcome = Callable[..., StrategyOutcome]


def section(lines: list[str], title: str) -> list[str]:
    """The lines under a heading, up to the next blank line."""
    start = next(number for number, line in enumerate(lines) if line.startswith(title))
    return lines[start + 1 : lines.index("", start) if "" in lines[start:] else None]


def words(line: str) -> list[str]:
    return re.split(r" {2,}", line.strip())


def test_comparison_of_strategies_comes_first_with_speed_up_against_the_first(make_result: Make) -> None:
    document = make_result().to_json()
    rows = section(run_report(document, 120), "critical time of one MoE layer")
    assert words(rows[0]) == [
        "strategy",
        "layer",
        "speed-up",
        "dispatch",
        "expert",
        "combine",
        "bound",
        "bottleneck",
    ]
    first, second = (words(row) for row in rows[1:3])
    metrics = document["strategies"][0]["metrics"]
    assert first[1] == f"{metrics['layer_s']['critical'] * 1e6:.1f}"
    assert first[3] == f"{metrics['dispatch_s']['critical'] * 1e6:.2f}"
    assert (first[2], second[2]) == ("1.00x", "2.00x")
    assert (first[7], second[7]) == ("host1 up, 83% busy", "rank 3 send engine, 97% busy")


def test_header_names_what_was_run(make_result: Make) -> None:
    text = "\n".join(run_report(make_result().to_json(), 200))
    for part in (
        "h100-ib (hosts 8), EP 4, packed",
        "deepseek-v3, decode: 64 tokens a rank, 2 layers, 1 step",
        "realistic (sigma 0.7), seed 0",
        "fluid, tolerance 0.3%, 642 solves, estimated error of a finish 150 ns; a polite network",
        "overrides  seed=0",
    ):
        assert part in text


def test_a_run_without_error_says_so(make_result: Make, make_outcome: Make) -> None:
    exact = make_result(tolerance=0.0, strategies=(make_outcome("baseline", error_estimate=0.0),))
    assert "321 solves, every finish is exact" in "\n".join(run_report(exact.to_json(), 200))


def test_bound_says_so_and_counts_no_solves(make_result: Make) -> None:
    text = "\n".join(run_report(make_result(fidelity="bound").to_json(), 200))
    assert "bound: a closed form" in text
    assert "solves" not in text


def test_every_time_of_every_stage_is_printed(make_result: Make) -> None:
    document = make_result().to_json()
    rows = [words(row) for row in section(run_report(document, 120), "times over")][1:-1]
    shown = [float(cell) for row in rows for cell in row[-6:]]
    wanted = [
        value * 1e6
        for stage in ("dispatch", "expert", "combine", "layer")
        for item in document["strategies"]
        for value in [
            *(item["metrics"][f"{stage}_s"][key] for key in ("critical", "mean", "p50", "p99", "max")),
            item["bound_s"][stage],
        ]
    ]
    assert shown == pytest.approx(wanted, rel=1e-3)


def test_breakdown_is_in_order_with_shares_and_sums_to_the_layer(make_result: Make) -> None:
    rows = section(run_report(make_result().to_json(), 120), "where the critical time goes")
    names = [re.split(r" {2,}", row.strip())[0] for row in rows[1:]]
    assert names == ["launch", "send", "wire", "wait for slowest", "GEMM", "layer"]
    firsts = [float(re.findall(r"[\d.]+", row)[0]) for row in rows[1:]]
    assert sum(firsts[:-1]) == pytest.approx(firsts[-1], rel=1e-3)
    assert "40%" in rows[2]


def test_imbalance_shows_before_and_after_only_where_they_differ(
    make_result: Make, make_outcome: MakeOutcome
) -> None:
    before = {"rank_max_over_mean": 1.8, "rows_max_over_mean": 1.3, "maxvio": 2.0}
    balanced = make_outcome("b", imbalance={**before, "after": {**before, "rank_max_over_mean": 1.0}})
    made = make_result(strategies=(make_outcome("baseline"), balanced))
    lines = section(run_report(made.to_json(), 100), "load")
    assert words(lines[1]) == ["entries of a rank, max/mean", "1.37", "1.80 -> 1.00"]
    assert words(lines[2]) == ["rows of a rank, max/mean", "1.21", "1.30"]


TIERS = "bytes over each tier"


def test_what_crosses_each_tier_that_somebody_uses_and_in_which_formats(
    make_result: Make, make_outcome: MakeOutcome
) -> None:
    bf16 = make_outcome("plain", formats={"dispatch": "bf16", "combine": "bf16"})
    made = make_result(strategies=(make_outcome("baseline"), bf16))
    rows = [words(row) for row in section(run_report(made.to_json(), 100), TIERS)]
    assert rows == [
        ["baseline", "plain"],
        ["format of a row, out / back", "fp8 / bf16", "bf16 / bf16"],
        ["stays on its rank", "0.143", "0.143"],
        ["host", "6.20 / 6.44", "6.20 / 6.44"],
        ["scale-out", "1.67 / 1.79", "1.67 / 1.79"],
    ]


@pytest.mark.parametrize(
    ("busy", "shown"),
    [
        (0.19, "fixed costs, waiting 20%; host1 up, 19% busy"),
        (0.21, "host1 up, 21% busy"),
        (None, "host1 up"),
    ],
)
def test_a_bottleneck_that_is_less_busy_than_the_layer_waits_is_not_shown_alone(
    make_result: Make, make_outcome: MakeOutcome, busy: float | None, shown: str
) -> None:
    """A fifth of the made-up layers is launch and waiting."""
    made = make_result(strategies=(make_outcome("baseline", bottleneck=("host1 up", busy)),)).to_json()
    rows = section(run_report(made, 120), "critical time")
    assert words(rows[1])[-1] == shown
    below = section(run_report(made, 80), "critical time")
    text = " ".join(" ".join(below).split())
    assert text.endswith(shown)
    assert all(len(line) <= 80 for line in below)


def test_a_resource_that_is_busy_half_of_the_layer_is_the_bottleneck_whatever_else_takes_time(
    make_result: Make, make_outcome: MakeOutcome
) -> None:
    slowest = make_outcome("a").stages["layer"].max(axis=1)
    breakdown = {"launch": 0.6 * slowest, "wire": 0.4 * slowest}
    half = make_outcome("baseline", breakdown=breakdown, bottleneck=("nic", 0.51))
    low = make_outcome("b", breakdown=breakdown, bottleneck=("nic", 0.49))
    made = make_result(strategies=(half, low))
    rows = section(run_report(made.to_json(), 120), "critical time")
    assert [words(row)[-1] for row in rows[1:]] == [
        "nic, 51% busy",
        "fixed costs, waiting 60%; nic, 49% busy",
    ]


def test_weights_pushed_have_a_row_where_a_balancer_moves_some(
    make_result: Make, make_outcome: MakeOutcome
) -> None:
    pushed = make_result(strategies=(make_outcome("baseline"), make_outcome("b", weights_B=3 * 2.0**20)))
    rows = [words(row) for row in section(run_report(pushed.to_json(), 100), TIERS)]
    assert rows[-1][-2:] == ["0", "3.00"]
    assert " ".join(rows[-1][:-2]) == "expert weights pushed"


def test_memory_has_buffers_by_kind_their_sum_and_the_device(make_result: Make) -> None:
    rows = [words(row) for row in section(run_report(make_result().to_json(), 100), "buffers and memory")]
    assert [row[:2] for row in rows[1:]] == [
        ["dispatch", "256.0"],
        ["combine", "768.0"],
        ["buffers in all", "1024"],
        ["expert weights", "11264"],
        ["of the device's", "81920"],
    ]


def test_bandwidths_carry_the_library_s_definition(make_result: Make) -> None:
    rows = section(run_report(make_result().to_json(), 100), "bandwidth of one rank")
    assert [words(row)[1] for row in rows[1:7]] == ["41.00", "33.00", "45.00", "82.00", "66.00", "90.00"]
    assert [words(row)[0] for row in rows[3:7:3]] == ["dispatch, library's own", "combine, library's own"]
    assert rows[7].strip() == "library's own, baseline, half: DeepEP low-latency"


def test_assumed_numbers_are_listed_once_and_before_the_rest(make_result: Make) -> None:
    lines = run_report(make_result().to_json(), 100)
    rows = section(lines, "assumed (2)")
    assert words(rows[0]) == ["deepep-ll launch", "3us", "[example] no measurement is public"]
    assert words(rows[1]) == ["h100-ib host.switches", "4", "[nvidia-h100]"]
    assert lines.index("assumed (2)") < lines.index("other constants: 1 spec (moesim explain lists each)")
    assert "  [nvidia-h100] NVIDIA H100 data sheet. NVIDIA, 2023" in lines


def test_warnings_of_the_scenario_and_of_a_strategy_are_printed_once(
    make_result: Make, make_outcome: MakeOutcome
) -> None:
    made = make_result(
        strategies=(make_outcome("baseline", warnings=("is slow",)),),
        warnings=("a", "a", "baseline: is slow"),
    )
    assert section(run_report(made.to_json(), 100), "warnings") == ["  ! a", "  ! baseline: is slow"]
    slow = tuple(make_outcome(name, warnings=("is slow",)) for name in ("baseline", "b"))
    both = make_result(strategies=slow, warnings=()).to_json()
    assert section(run_report(both, 100), "warnings") == ["  ! baseline, b: is slow"]


def test_requirements_show_verdict_and_value(make_result: Make) -> None:
    asked = ["baseline.layer_s.max < 1us", "half.buffers_B.total <= 1GiB"]
    made = make_result(scenario={**make_result().scenario, "require": asked})
    rows = section(run_report(made.to_json(), 100), "required")
    assert [row.strip() for row in rows] == [
        "NO   baseline.layer_s.max < 1us  (is 156.7 us)",
        "yes  half.buffers_B.total <= 1GiB  (is 1 GiB)",
    ]
    assert made.refusals() == ["baseline.layer_s.max < 1us does not hold"]


def test_memory_that_does_not_suffice_is_a_refusal_with_both_numbers(
    make_result: Make, make_outcome: MakeOutcome
) -> None:
    big = make_outcome(
        "big", memory_B={"expert_weights": 79.5 * 2**30, "buffers": 2.0**30, "device": 80 * 2.0**30}
    )
    made = make_result(
        scenario={**make_result().scenario, "require": []}, strategies=(make_outcome("baseline"), big)
    )
    assert made.refusals() == ["big: expert weights and buffers take 80.5 GiB a rank, the device has 80 GiB"]


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_wider_than_the_screen(make_result: Make, make_outcome: MakeOutcome, width: int) -> None:
    names = ("baseline", "ubep-sp", "ubep-moonep", "nccl-alltoall", "rank-dedup-push")
    outcomes = tuple(make_outcome(name, 1 + number) for number, name in enumerate(names))
    lines = run_report(make_result(strategies=outcomes).to_json(), width)
    assert [line for line in lines if len(line) > width] == []


def test_comparison_report(make_result: Make, make_outcome: MakeOutcome) -> None:
    a = make_result(strategies=(make_outcome("baseline"), make_outcome("old")))
    b = make_result(
        strategies=(make_outcome("baseline", 1.1), make_outcome("new")),
        scenario={**a.scenario, "model": "deepseek-r1"},
    )
    lines = comparison_report(compare(a.to_json(), b.to_json()), 80, 0.05)
    assert lines[:2] == ["what differs in the scenarios (A -> B)", "  model: deepseek-v3 -> deepseek-r1"]
    assert words(lines[4]) == ["baseline", "layer [us]", "critical", "137.9", "151.7", "1.1000", "worse"]
    assert words(lines[-4]) == ["buffers [MiB]", "total", "1024", "1024", "1.0000"]
    assert lines[-2:] == ["only in A: old", "only in B: new"]
    assert not any("worse" in line for line in comparison_report(compare(a.to_json(), b.to_json()), 80, None))
