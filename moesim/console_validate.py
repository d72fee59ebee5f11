"""What ``moesim validate`` and ``moesim calibrate`` print, made from the documents that ``--json`` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from moesim.calibration import FALLBACK
from moesim.console import joined
from moesim.layout import digits, table, wrapped

Document = Mapping[str, Any]

_ALIKE, _FAR = 0.9, 2.0
"""Correlation of two constants, and change of one as a factor either way, that a fit points out."""


def validate_report(document: Document, width: int) -> list[str]:
    """Over all first, then by group, then the worst rows, and what could not be modelled."""
    groups = document["groups"]
    return joined(
        [
            (f"{document['measurements']}: |predicted - measured| / measured", _overall(document)),
            ("rows not used for fitting, by group", _groups(_of(groups, "validate"), width)),
            ("rows that may have been fitted, by group", _groups(_of(groups, "calibrate"), width)),
            ("no constants of their own", _stand_ins(groups, width)),
            ("worst rows that were not used for fitting", _worst(_of(groups, "validate"), width)),
            ("grouped GEMM, roofline; no communication", _compute(document["compute"], width)),
            ("not modelled", _unmodelled(document["unmodelled"], width)),
        ]
    )


def calibrate_report(document: Document, width: int) -> list[str]:
    """The constants, how well the rows fix them, and what residuals are left."""
    title = f"{document['protocol']} on {document['pod']}, fitted to {document['measurements']}"
    return joined(
        [
            (title, [f"  start: {document['start']}"]),
            (
                "constants; +- is one standard error of the fit, as a share of the value",
                _constants(document, width),
            ),
            ("correlation of their errors", _correlation(document)),
            ("worth a look", _remarkable(document, width)),
            ("|predicted - measured| / measured", _residuals(document, width)),
            ("calibrate rows not modelled", _reasons(document["unmodelled"], width)),
        ]
    )


def _constants(document: Document, width: int) -> list[str]:
    rows = [["", "fitted", "+-", "change"]]
    for one in document["constants"]:
        change = _bias(one["value"] / one["before"] - 1 if one["before"] else None)
        rows.append([one["name"], one["written"], _error(one["standard_error"]), change])
    left = [f"  {name}: no row depends on it, it stays as it was" for name in document["untouched"]]
    return [*table(rows, width, "lrrr"), *left]


def _correlation(document: Document) -> list[str]:
    names = [one["name"] for one in document["constants"]]
    rows = [["", *(str(number) for number in range(1, len(names) + 1))]]
    for number, (name, line) in enumerate(zip(names, document["correlation"], strict=True)):
        cells = [f"{value:+.2f}" for value in line[: number + 1]]
        rows.append([f"{number + 1} {name}", *cells, *[""] * (len(names) - number - 1)])
    return table(rows, 200, "l" + "r" * len(names))


def _remarkable(document: Document, width: int) -> list[str]:
    """Pairs that the rows hardly tell apart, and constants that went far from where they began."""
    constants, told = document["constants"], []
    names = [one["name"] for one in constants]
    for number, line in enumerate(document["correlation"]):
        for other, value in zip(names[:number], line, strict=False):
            if abs(value) > _ALIKE:
                pair = f"{other} and {names[number]}: correlation {value:+.2f}"
                told.append(f"{pair}, the rows hardly tell the two apart")
    for one in constants:
        ratio = one["value"] / one["before"] if one["before"] else 1.0
        if max(ratio, 1 / ratio) > _FAR:
            told.append(f"{one['name']}: {digits(ratio)} times what it was at the start")
    return [line for text in told for line in wrapped(text, width)]


def _residuals(document: Document, width: int) -> list[str]:
    rows = [["op", "ep", "SMs", "rows", "median", "p90", "bias"]]
    for one in document["residuals"]:
        sms = "-" if one["sms"] is None else str(one["sms"])
        rows.append([one["op"], str(one["ep"]), sms, *_statistics(one)])
    rows.append(["all", "", "", *_statistics(document["overall"])])
    return table(rows, width, "lrrrrrr")


def _reasons(rows: Sequence[Document], width: int) -> list[str]:
    counts = Counter(row["reason"] for row in rows)
    return (
        table([["rows", "why"], *([str(n), why] for why, n in counts.items())], width, "rl") if counts else []
    )


def _of(groups: Sequence[Document], split: str) -> list[Document]:
    return [group for group in groups if group["split"] == split]


def _error(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f}%"


def _bias(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:+.1f}%"


def _statistics(found: Document) -> list[str]:
    errors = [_error(found["median_abs_error"]), _error(found["p90_abs_error"]), _bias(found["bias"])]
    return [str(found["rows"]), *errors]


def _overall(document: Document) -> list[str]:
    rows = [["", "rows", "median", "p90", "bias"]]
    rows.append(["validate", *_statistics(document["overall"])])
    rows.append(["calibrate", *_statistics(document["fitted"])])
    return table(rows, 80, "lrrrr")


def _groups(groups: Sequence[Document], width: int) -> list[str]:
    if not groups:
        return []
    rows = [["protocol", "pod", "op", "rows", "median", "p90", "bias"]]
    rows += [[group["protocol"], group["pod"], group["op"], *_statistics(group)] for group in groups]
    return table(rows, width, "lllrrrr")


def _stand_ins(groups: Sequence[Document], width: int) -> list[str]:
    """Groups that were predicted with the default constants of their protocol."""
    found = dict.fromkeys(
        f"{group['protocol']} on {group['pod']}: {name} stands in"
        for group in groups
        for name in group["calibrations"]
        if name.startswith(f"{FALLBACK}/")
    )
    return [line for text in found for line in wrapped(text, width)]


def _worst(groups: Sequence[Document], width: int) -> list[str]:
    if not groups:
        return []
    rows = [["id", "protocol", "op", "ep", "size", "predicted", "measured", "error"]]
    for group in groups:
        for row in group["worst"]:
            size = f"{row['tokens_per_rank']}" if row["send_bytes"] is None else f"{row['send_bytes']} B"
            size += f", {row['sms']} SMs" if row["sms"] else ""
            times = [digits(row["predicted_us"]), digits(row["measured_us"]), _bias(row["error"])]
            rows.append([row["id"], row["protocol"], row["op"], str(row["ep"]), size, *times])
    return [*table(rows, width, "lllrrrrr"), "  size: tokens a rank, or bytes of a send buffer; times in us"]


def _compute(compute: Document, width: int) -> list[str]:
    if not compute["groups"]:
        return []
    rows = [["pod", "split", "rows", "median", "p90", "bias"]]
    rows += [[group["pod"], group["split"], *_statistics(group)] for group in compute["groups"]]
    return [*table(rows, width, "llrrrr"), *wrapped(f"assumed: {compute['routing']}", width)]


def _unmodelled(rows: Sequence[Document], width: int) -> list[str]:
    if not rows:
        return []
    kinds: dict[tuple[str, ...], list[int]] = {}
    for row in rows:
        key = (row["protocol"], row["pod"], row["op"], row["reason"])
        kinds.setdefault(key, []).append(row["line"])
    lines = [["rows", "first line", "protocol", "pod", "op", "why"]]
    lines += [[str(len(found)), str(found[0]), *key] for key, found in kinds.items()]
    return table(lines, width, "rrllll")
