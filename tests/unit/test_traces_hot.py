"""Hot experts: how many, where, and how hot."""

from __future__ import annotations

import numpy as np
import pytest

from moesim import moe
from moesim.errors import InputError
from moesim.traces import compose


def counts(**params: object) -> np.ndarray:
    """(layers, experts) entries of 8 ranks with 512 tokens each."""
    model = moe.load("deepseek-v2-lite")
    place = {"ep": 8, "tokens_per_rank": 512, "phase": "decode", "layers": [0, 1], "steps": 1, "seed": 1}
    return compose({"kind": "hot", **params}, model, cache=False, **place).counts()[0]


def test_named_experts_are_hot_and_the_others_alike() -> None:
    found = counts(hot=2, heat=5, at=[3, 60])
    cold = np.delete(found, [3, 60], axis=1)
    assert found[:, [3, 60]] / cold.mean() == pytest.approx(5.0, rel=0.1)
    assert cold.std() / cold.mean() < 0.12


def test_places_by_chance_differ_from_layer_to_layer() -> None:
    first, second = (set(np.argsort(layer)[-4:].tolist()) for layer in counts(hot=4, heat=8))
    assert first != second


def test_heat_one_is_uniform() -> None:
    found = counts(hot=4, heat=1)
    assert found.max() < 1.25 * found.mean()


def test_places_must_be_as_many_as_there_are_hot_experts() -> None:
    with pytest.raises(InputError, match="hot is 3"):
        counts(hot=3, heat=2, at=[1, 2])


def test_heat_can_be_a_target_imbalance() -> None:
    found = counts(hot=4, maxvio=3.0)
    assert found.max(axis=1).mean() / found.mean() - 1 == pytest.approx(3.0, rel=0.05)


@pytest.mark.parametrize("params", [{"hot": 65, "heat": 2}, {"hot": 1, "heat": 2, "at": [64]}])
def test_more_hot_experts_than_the_model_has_are_refused(params: dict[str, object]) -> None:
    with pytest.raises(InputError, match="beyond the 64"):
        counts(**params)
