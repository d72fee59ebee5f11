from __future__ import annotations

from typing import Any

import pytest

from moesim import requirement
from moesim.errors import InputError

STRATEGY: dict[str, Any] = {
    "metrics": {"layer_s": {"p99": 400e-6, "mean": 300e-6}},
    "buffers_B": {"dispatch": 3 * 2**20, "combine": 2**20},
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("u.layer_s.p99 < 400us", False),
        ("u.layer_s.p99 <= 400us", True),
        ("u.layer_s.p99>=400us", True),
        ("u.layer_s.p99 > 0.4 ms", False),
        ("u.layer_s.mean < 301us", True),
        ("u.buffers_B.total <= 4MiB", True),
        ("u.buffers_B.total < 4 MiB", False),
    ],
)
def test_verdicts(text: str, holds: bool) -> None:
    wanted = requirement.parse(text)
    assert wanted.strategy == "u"
    assert wanted.holds(STRATEGY) is holds
    assert ("holds" if holds else "fails") in wanted.verdict(STRATEGY)


def test_the_verdict_shows_the_number_in_its_unit() -> None:
    assert requirement.parse("u.buffers_B.total < 1GiB").verdict(STRATEGY).endswith("it is 4 MiB")
    assert requirement.parse("u.layer_s.p99 < 1s").verdict(STRATEGY).endswith("it is 400 us")


def test_a_total_that_the_result_states_is_taken() -> None:
    stated = STRATEGY | {"buffers_B": {"dispatch": 1.0, "total": 7.0}}
    assert requirement.parse("u.buffers_B.total < 1GiB").measured(stated) == 7.0


@pytest.mark.parametrize(
    ("text", "message", "legal"),
    [
        ("", "not a requirement", "<strategy>.<metric>.<statistic>"),
        ("u.layer_s.p99", "not a requirement", "<strategy>"),
        ("u.layer_s < 3us", "is not <strategy>", "<strategy>"),
        ("a.u.layer_s.p99 < 3us", "is not <strategy>", "<strategy>"),
        ("u.layer.p99 < 3us", "unknown metric 'layer'", "did you mean 'layer_s'"),
        ("u.layer_s.p95 < 3us", "unknown statistic 'p95'", "p99"),
        ("u.buffers_B.p99 < 3us", "unknown statistic 'p99'", "total"),
        ("u.layer_s.p99 == 3us", "unknown comparison '=='", "<="),
        ("u.layer_s.p99 = 3us", "unknown comparison '='", "<="),
        ("u.layer_s.p99 < 3", "has no unit", "us"),
        ("u.layer_s.p99 < 3GB", "a time is asked", "us"),
        ("u.buffers_B.total < 3us", "a number of bytes is asked", "GiB"),
        ("u.layer_s.p99 <", "not a requirement", "<strategy>"),
    ],
)
def test_malformed(text: str, message: str, legal: str) -> None:
    with pytest.raises(InputError) as caught:
        requirement.parse(text)
    (problem,) = caught.value.problems
    assert message in problem.message
    assert legal in (problem.legal or "")
