"""Leaves the timed works out unless they are asked for with ``-m benchmark_works``."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "benchmark_works" not in str(config.getoption("-m")):
        for item in items:
            if "benchmark_works" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="timed: ask with -m benchmark_works"))
