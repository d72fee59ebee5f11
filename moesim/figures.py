"""Figures: one function each, which draws into an ``Axes`` and returns it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moesim import outfile
from moesim.errors import InputError, Problem
from moesim.outcome import StrategyOutcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from moesim.result import Result

FORMATS = ("png", "svg", "pdf")

# Okabe and Ito's colours, which all kinds of sight tell apart; beyond those, darker and lighter ones.
_COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#8C564B",
    "#5F4690",
    "#94A323",
    "#444444",
    "#A50F15",
    "#1D9A9A",
)
_SPLITS = {"validate": ("not used for fitting", "o"), "calibrate": ("may have been fitted", "+")}
_BAND = 0.1


def accuracy(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> Axes:
    """Predicted against measured time of each row, both axes logarithmic, with a band of 10 % about equality.

    ``rows``: those of the document of ``moesim validate``, with ``protocol``, ``split``, ``predicted_us``,
    ``measured_us``. A colour a protocol; the marker says whether a row may have been fitted.

    >>> from matplotlib.figure import Figure
    >>> row = {"protocol": "deepep-ll", "split": "validate", "predicted_us": 99.0, "measured_us": 100.0}
    >>> accuracy(Figure().add_subplot(), [row]).get_xlabel()
    'measured [us]'
    """
    protocols = sorted({row["protocol"] for row in rows})
    colour = {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(protocols)}
    times = [row[key] for row in rows for key in ("predicted_us", "measured_us")] or [1.0]
    ends = np.array([min(times) / 1.5, max(times) * 1.5])
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    axes.set(xlabel="measured [us]", ylabel="predicted [us]")
    axes.fill_between(ends, ends * (1 - _BAND), ends * (1 + _BAND), color="0.88", lw=0, zorder=0)
    axes.plot(ends, ends, color="0.45", lw=0.8, zorder=1)
    for split, (_, marker) in reversed(_SPLITS.items()):
        for name in protocols:
            shown = [row for row in rows if (row["protocol"], row["split"]) == (name, split)]
            fitted = split == "calibrate"
            axes.scatter(
                [row["measured_us"] for row in shown],
                [row["predicted_us"] for row in shown],
                s=22,
                marker=marker,
                color=colour[name],
                alpha=0.45 if fitted else 1.0,
                linewidths=0.8 if fitted else 0.4,
                edgecolors=None if fitted else "white",
                zorder=2 if fitted else 3,
            )
    axes.grid(which="major", color="0.93", lw=0.6, zorder=0)
    axes.set_axisbelow(True)
    _legend(axes, colour)
    return axes


def _legend(axes: Axes, colour: Mapping[str, str]) -> None:
    """Protocols by colour, splits by marker, the band."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries: list[Line2D | Patch] = [
        Line2D([], [], color=shade, marker="s", ls="", ms=6, label=name) for name, shade in colour.items()
    ]
    entries += [
        Line2D([], [], color="0.2", marker=marker, ls="", ms=5, label=text)
        for text, marker in _SPLITS.values()
    ]
    entries.append(Patch(color="0.88", label=f"within {_BAND:.0%}"))
    axes.legend(
        handles=entries, loc="upper left", fontsize=8, frameon=False, handletextpad=0.3, labelspacing=0.35
    )


def load_per_rank(axes: Axes, outcomes: Sequence[StrategyOutcome], case: int = 0) -> Axes:
    """Entries that each rank computes over their mean, with experts at home (grey) and as each strategy placed them.

    ``case``: number of the step and layer, in the order of ``outcome.cases``.
    """
    home = outcomes[0].entries["home"][case]
    mean = max(float(home.mean()), 1e-12)
    edges = np.arange(len(home) + 1) - 0.5
    axes.stairs(home / mean, edges, fill=True, color="0.85", label="experts at home")
    for number, outcome in enumerate(outcomes):
        colour = _COLOURS[number % len(_COLOURS)]
        load = outcome.entries["placed"][case] / mean
        axes.stairs(load, edges, baseline=None, color=colour, lw=1.4, label=outcome.name)
    axes.axhline(1.0, color="0.4", lw=0.8, ls=":")
    axes.set(xlabel="rank", ylabel="entries / mean", xlim=(edges[0], edges[-1]), ylim=(0, None))
    return _plain(axes)


def imbalance_over_time(axes: Axes, outcomes: Sequence[StrategyOutcome]) -> Axes:
    """Largest over mean entries of a rank at every step, a mean over the layers: at home (grey), and as placed."""
    for number, outcome in enumerate([outcomes[0], *outcomes]):
        name, which = (outcome.name, "placed") if number else ("experts at home", "home")
        colour = _COLOURS[(number - 1) % len(_COLOURS)] if number else "0.6"
        steps, values = _by_step(outcome, which)
        axes.plot(
            steps, values, color=colour, lw=1.6, marker="o", ms=3, ls="-" if number else "--", label=name
        )
    axes.set(xlabel="step", ylabel="entries of a rank, max / mean", ylim=(0.95, None))
    axes.locator_params(axis="x", integer=True)
    return _plain(axes)


def _by_step(outcome: StrategyOutcome, which: str) -> tuple[list[int], list[float]]:
    entries = outcome.entries[which]
    imbalance = entries.max(axis=1) / np.maximum(entries.mean(axis=1), 1e-12)
    steps = np.unique(outcome.cases[:, 0])
    return steps.tolist(), [float(imbalance[outcome.cases[:, 0] == step].mean()) for step in steps]


def layer_by_maxvio(axes: Axes, results: Sequence[Result]) -> Axes:
    """Critical time of a layer against the maxvio of its experts; a result a point, a line a strategy."""
    _lines(axes, results, [result.strategies[0].imbalance["maxvio"] for result in results])
    axes.set(xlabel="maxvio: entries of the busiest expert / mean - 1", ylabel="layer [us]", ylim=(0, None))
    return _plain(axes)


def layer_by_tokens(axes: Axes, results: Sequence[Result], baseline: str | None = None) -> Axes:
    """Critical time of a layer against tokens per rank, both axes logarithmic; a result a point, a line a strategy.

    A ring marks the batch from which a strategy beats ``baseline`` (the first strategy by default), where the two
    cross between two points of the sweep.
    """
    tokens = [float(result.scenario["workload"]["tokens_per_rank"]) for result in results]
    lines = _lines(axes, results, tokens)
    first = baseline or results[0].strategies[0].name
    for number, (name, (x, y)) in enumerate(lines.items()):
        for at, time in crossings(x, lines[first][1], y) if name != first else ():
            colour = _COLOURS[number % len(_COLOURS)]
            axes.plot([at], [time], marker="o", ms=11, mfc="none", mec=colour, mew=1.6)
            # One below the other, however close they are.
            aside = (12, -6 - 12 * number)
            axes.annotate(f"{at:,.0f}", (at, time), xytext=aside, textcoords="offset points", color=colour)
    axes.set(xscale="log", yscale="log", xlabel="tokens per rank", ylabel="layer [us]")
    return _plain(axes)


def crossings(x: Sequence[float], base: Sequence[float], other: Sequence[float]) -> list[tuple[float, float]]:
    """Where ``other`` falls below ``base``, straight lines between logarithms: (x, value). All above 0, x rising.

    >>> [(round(x, 6), round(value, 6)) for x, value in crossings([1, 100], [1, 10], [2, 5])]
    [(10.0, 3.162278)]
    """
    found = []
    points = np.log([x, base, other]).T
    for (x0, b0, o0), (x1, b1, o1) in itertools.pairwise(points):
        if o0 >= b0 and o1 < b1:
            part = (o0 - b0) / ((o0 - b0) - (o1 - b1))
            found.append((float(np.exp(x0 + part * (x1 - x0))), float(np.exp(b0 + part * (b1 - b0)))))
    return found


def _lines(
    axes: Axes, results: Sequence[Result], values: Sequence[float]
) -> dict[str, tuple[list[float], list[float]]]:
    """Draw a line a strategy over ``values`` of the results, in their order; strategy -> x and y [us]."""
    order = np.argsort(values, kind="stable")
    found = {}
    for number, outcome in enumerate(results[0].strategies):
        x = [float(values[at]) for at in order]
        layers = [_named(results[at], outcome.name).metrics()["layer_s"]["critical"] * 1e6 for at in order]
        colour = _COLOURS[number % len(_COLOURS)]
        axes.plot(x, layers, color=colour, lw=1.6, marker="o", ms=3.5, label=outcome.name)
        found[outcome.name] = x, layers
    return found


def _named(result: Result, name: str) -> StrategyOutcome:
    return next(outcome for outcome in result.strategies if outcome.name == name)


def _plain(axes: Axes) -> Axes:
    axes.grid(which="major", color="0.93", lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    return axes


def ready(output: str | Path, inputs: Sequence[str | Path]) -> None:
    """Raise :class:`InputError` if no figure can be written to ``output``."""
    if Path(output).suffix.lstrip(".") not in FORMATS:
        legal = ", ".join(f".{name}" for name in FORMATS)
        raise InputError(Problem("no format of a figure that moesim writes", path=str(output), legal=legal))
    outfile.ready(output, inputs)


def save_accuracy(document: Mapping[str, Any], output: str | Path) -> None:
    """Write :func:`accuracy` of the document of ``moesim validate`` to a file, whole or not at all."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 6.4), layout="constrained")
    axes = accuracy(figure.add_subplot(), document["rows"])
    found = document["overall"]
    if found["rows"]:
        axes.set_title(
            f"{found['rows']} measurements not used for fitting: median error "
            f"{found['median_abs_error']:.1%}, 90th percentile {found['p90_abs_error']:.1%}",
            fontsize=9,
            loc="left",
        )
    with outfile.replaced(output) as stream:
        figure.savefig(stream, format=Path(output).suffix.lstrip("."), dpi=160)
