"""Times the engine on whole works; counts are asserted, seconds only printed. Off unless asked for:

    pytest tests/benchmarks -m benchmark_works -s

One tiny work of each kind always runs, so that this file keeps working. Where SimGrid and its headers are installed
(``apt-get install libsimgrid-dev g++``), its time for the same works is taken in the same run; for the largest of
them, minutes, only if MOESIM_SIMGRID_LONG is set.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from benchmarks.works import Work, crossbar, sparse_superpod, superpod

from moesim.network import FluidResult, finish_times

# Flows, bytes and the shortest possible makespan that the generators must reproduce.
KNOWN: dict[str, tuple[Callable[[], Work], int, float, float]] = {
    "A": (crossbar, 5_112, 5_112_000_000, 7.88888888888889e-05),
    "B": (lambda: crossbar(skewed=True), 5_112, 5_063_224_227, 0.00011352709),
    "C48": (lambda: superpod(48), 2_256, 2_189_579_574, 0.00019613627806122448),
    "C96": (lambda: superpod(96), 9_120, 9_115_904_727, 0.0003403275),
    "C192": (lambda: superpod(192), 36_672, 36_695_016_820, 0.000656036043367347),
    "D": (sparse_superpod, 24_576, 24_546_964_183, 0.00029299908673469387),
    "C": (lambda: superpod(384), 147_072, 147_153_293_218, 0.001212242375),
}
# Mean of the exact finish times [s].
MEAN = {
    "A": 7.888888888888888e-05,
    "B": 3.8936073808721424e-05,
    "D": 8.250692672923674e-05,
    "C": 4.710343325837923e-04,
}


def _timed(name: str, work: Work, tolerance: float) -> FluidResult:
    began = time.perf_counter()
    found = finish_times(*work.arguments(), tolerance)
    took = time.perf_counter() - began
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        1024 if sys.platform == "linux" else 1024**2
    )
    print(
        f"\n{name:>5} tolerance {tolerance:<6} {len(work.size):>7} flows {took:8.3f} s {found.solves:>7} solves"
        f" {found.passes:>7} passes {memory:6.0f} MiB  mean finish {found.finish.mean() * 1e6:.3f} us",
        end="",
    )
    return found


def _check(name: str, work: Work, found: FluidResult, tolerance: float) -> None:
    assert found.finish.max() >= work.shortest * (1 - 1e-9)
    if name in KNOWN:
        assert found.finish.max() == pytest.approx(work.shortest, rel=max(tolerance, 1e-9))
    if name in MEAN:
        assert found.finish.mean() == pytest.approx(MEAN[name], rel=max(tolerance / 10, 1e-9))
    assert found.solves <= len(work.size)
    if tolerance:
        assert found.solves <= 4 / tolerance


@pytest.mark.parametrize("name", ["A", "B", "C48", "C96", "D"])
def test_the_generators_make_the_works_that_are_known(name: str) -> None:
    make, flows, total, shortest = KNOWN[name]
    work = make()
    assert (len(work.size), work.size.sum()) == (flows, total)
    assert work.shortest == pytest.approx(shortest, rel=1e-14)


@pytest.mark.parametrize("tolerance", [0.0, 0.003])
def test_small_works_run(tolerance: float) -> None:
    small = {"crossbar": crossbar(8, skewed=True), "superpod": superpod(16), "sparse": sparse_superpod(16, 4)}
    for name, work in small.items():
        _check(name, work, _timed(name, work, tolerance), tolerance)


def test_equal_flows_are_one_solve() -> None:
    found = finish_times(*crossbar().arguments(), 0.003)
    assert (found.solves, np.ptp(found.finish)) == (1, 0.0)


@pytest.mark.benchmark_works
@pytest.mark.parametrize("name", ["A", "B", "C48", "C96", "D"])
def test_exact_works(name: str) -> None:
    work = KNOWN[name][0]()
    _check(name, work, _timed(name, work, 0.0), 0.0)


@pytest.mark.benchmark_works
@pytest.mark.parametrize("name", list(KNOWN))
def test_works_with_the_default_tolerance(name: str) -> None:
    work = KNOWN[name][0]()
    _check(name, work, _timed(name, work, 0.003), 0.003)


@pytest.mark.benchmark_works
def test_growth_with_the_default_tolerance() -> None:
    """From 48 to 768 ranks, the time must not grow faster than flows to the power 1.3; solves hardly grow at all."""
    flows, seconds, solves = [], [], []
    for ranks in (48, 96, 192, 384, 576, 768):
        work = superpod(ranks)
        began = time.perf_counter()
        solves.append(_timed(f"C{ranks}", work, 0.003).solves)
        seconds.append(time.perf_counter() - began)
        flows.append(len(work.size))
    exponent = np.polyfit(np.log(flows), np.log(seconds), 1)[0]
    print(f"\nexponent of time over flows {exponent:.2f}", end="")
    assert max(solves) <= 2 * min(solves)


@pytest.mark.benchmark_works
def test_starts_of_their_own_for_each_rank() -> None:
    """147,072 flows, each source starting at its own instant: as many more solves as starts, not more work a solve."""
    work = superpod(384)
    rows = work.arguments()
    together = _timed("C", work, 0.003)
    late = np.random.default_rng(0).permutation(384)[work.path[:, 0]] / 384 * 0.2 * work.shortest
    began = time.process_time()
    found = finish_times(*rows[:-1], late, 0.003)
    print(f"\n{'late':>5} {time.process_time() - began:8.3f} s of CPU {found.solves:>7} solves", end="")
    assert found.solves <= together.solves + 384 * 1.2
    assert (found.finish > late).all()


@pytest.fixture(scope="session")
def simgrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver that plays works on SimGrid, compiled."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    driver = tmp_path_factory.mktemp("simgrid") / "simgrid_flows"
    source = Path(__file__).with_name("simgrid_flows.cpp")
    made = subprocess.run(
        [compiler, "-O2", "-std=c++17", str(source), "-lsimgrid", "-o", str(driver)],
        capture_output=True,
        text=True,
    )
    if made.returncode:
        pytest.skip(f"SimGrid is not installed: {made.stderr.splitlines()[0]}")
    return driver


# Pure max-min sharing: no protocol's factor, window or cross-traffic.
PURE = [
    f"--cfg=network/{option}"
    for option in (
        "model:CM02", "TCP-gamma:0", "crosstraffic:0", "bandwidth-factor:1", "latency-factor:1", "weight-S:0"
    )
]  # fmt: skip


# SimGrid takes times 1e-9 s apart for one: in slow motion, that is far below the times of a work.
SLOWER = 1e6


def _on_simgrid(driver: Path, work: Work) -> tuple[float, np.ndarray]:
    """Seconds that SimGrid takes for a work, and when flows finish (F,) [s]."""
    flows, times = driver.with_name("flows"), driver.with_name("times")
    ranks = work.path[:, -1].min()  # ports up come before ports down
    lines = [f"{len(work.size)} {len(work.capacity)}", " ".join(f"{c:.17g}" for c in work.capacity / SLOWER)]
    for row, size in zip(work.path, work.size, strict=True):
        links = row[row >= 0]
        lines.append(" ".join(map(str, [row[0], row[-1] - ranks, int(size), len(links), *links])))
    flows.write_text("\n".join(lines))
    ran = subprocess.run([driver, flows, times, *PURE], capture_output=True, text=True, check=True)
    return float(ran.stdout), np.loadtxt(times) / SLOWER


@pytest.mark.parametrize(
    "name",
    ["tiny", *(pytest.param(name, marks=pytest.mark.benchmark_works) for name in ("B", "C48", "C96", "D"))],
)
def test_simgrid_gives_the_same_finishes(name: str, simgrid: Path) -> None:
    if name == "D" and "MOESIM_SIMGRID_LONG" not in os.environ:
        pytest.skip("takes minutes: set MOESIM_SIMGRID_LONG")
    work = superpod(16) if name == "tiny" else KNOWN[name][0]()
    theirs, expected = _on_simgrid(simgrid, work)
    began = time.perf_counter()
    found = finish_times(*work.arguments(), 0.0)
    ours = time.perf_counter() - began
    began = time.perf_counter()
    merged = finish_times(*work.arguments(), 0.003)
    quick = time.perf_counter() - began
    off = np.abs(merged.finish - found.finish) / found.finish.max()
    print(
        f"\n{name:>5} SimGrid {theirs:.3f} s; exact {ours:.3f} s, {ours / theirs:.3f} of it; tolerance 0.003"
        f" {quick:.3f} s, {quick / theirs:.3f}; off by {off.max():.1e} of the makespan, {off.mean():.1e} in the mean",
        end="",
    )
    np.testing.assert_allclose(found.finish, expected, rtol=1e-6)
    assert off.max() <= 0.003
