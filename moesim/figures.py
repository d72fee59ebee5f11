"""Figures: one function each, which draws into an ``Axes`` and returns it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moesim import outfile
from moesim.errors import InputError, Problem

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
