"""What ``moesim run`` and ``moesim compare`` print, made from the documents that ``--json`` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from moesim import units
from moesim.comparison import Comparison
from moesim.layout import GAP, columns, digits, microseconds, percent, table, wrapped
from moesim.outcome import BACKWARD, STAGES, TIERS

Document = Mapping[str, Any]

_MIB = 2.0**20
_POLITE = (
    "a polite network: links are shared max-min fairly, nothing is lost, retried or blocked behind another"
)
_BOUND = "a closed form that no schedule can beat; contention adds to it"
_ORDER = (
    "launch",
    "planning",
    "metadata",
    "quantise",
    "send",
    "wire",
    "wait",
    "sync",
    "reorder",
    "weights",
    "gemm",
    "reduce",
    "gradients",
    "unexplained",
)
_HELD = ("weight_slots", "gradient_slots", "redundant_experts", "staging", "expert_rows")
"""Buffers that a balancer adds."""
_LABELS = {
    "gradients": "gradients of copies",
    "wait": "wait for slowest",
    "weights": "expert weights",
    "gemm": "GEMM",
}
_IMBALANCES = {
    "rank_max_over_mean": "entries of a rank, max/mean",
    "rows_max_over_mean": "rows of a rank, max/mean",
    "maxvio": "experts, maxvio",
}


def run_report(document: Document, width: int) -> list[str]:
    """The lines of ``moesim run``: who wins first, then why, then what it stands on."""
    strategies = document["strategies"]
    sections: list[tuple[str, list[str]]] = [
        ("", list(_header(document, width))),
        ("critical time of one MoE layer [us]: the slowest rank of each stage", _ranking(strategies, width)),
        ("required", list(_required(document, width))),
        ("times over all layers, steps and ranks [us]", _times(strategies, width)),
        ("where the critical time goes [us]", _breakdown(strategies, width)),
        ("load", _loads(strategies, width)),
        ("balancing in one layer", _balancing(strategies, width)),
        (
            "bytes over each tier, dispatch and combine, all ranks: payload / wire [MiB]",
            _traffic(strategies, width),
        ),
        ("buffers and memory of one rank [MiB]", _memory(strategies, width)),
        ("bandwidth of one rank [GB/s]", _bandwidth(strategies, width)),
        *standing(
            document, [*(one for item in strategies for one in item["cited"]), *document["cited"]], width
        ),
    ]
    return joined(sections)


def joined(sections: Sequence[tuple[str, list[str]]]) -> list[str]:
    """Sections with a heading each and a blank line between; an empty one is left out."""
    lines: list[str] = []
    for title, body in sections:
        if body:
            lines += ([""] if lines else []) + ([title] if title else []) + body
    return lines


def named(spec: object) -> str:
    """A part of a scenario in a few words: its name or ``kind``, and its parameters."""
    if not isinstance(spec, Mapping):
        return str(spec)
    key = next((key for key in ("name", "kind") if key in spec), None)
    rest = ", ".join(
        f"{name} {named(value)}"
        for name, value in spec.items()
        if name != key and not isinstance(value, Mapping | list)
    )
    head = str(spec[key]) if key else "inline"
    return f"{head} ({rest})" if rest and key else head


def _header(document: Document, width: int) -> Iterator[str]:
    scenario = document["scenario"]
    work, ranks = scenario["workload"], scenario["ranks"]
    solves = sum(item["solves"] for item in document["strategies"])
    if document["fidelity"] == "fluid":
        error = max(item["error_estimate_s"] for item in document["strategies"])
        merged = (
            f"estimated error of a finish {units.format(error, 'time')}" if error else "every finish is exact"
        )
        tolerance = units.format(document["tolerance"], "ratio")
        how = f"fluid, tolerance {tolerance}, {solves} solves, {merged}; {_POLITE}"
    else:
        how = f"bound: {_BOUND}"
    yield from facts(
        [
            ("pod", f"{named(scenario['topology'])}, EP {ranks['ep']}, {_placed(ranks)}"),
            ("model", f"{named(scenario['model'])}, {_work(work)}"),
            ("routing", f"{named(scenario['routing'])}, seed {document['seed']}"),
            ("fidelity", how),
            ("switched off", ", ".join(scenario.get("switch_off") or ())),
            ("faults", "; ".join(named_fault(fault) for fault in scenario.get("faults") or ())),
            ("background", _count(scenario.get("background"), "flow")),
            ("overrides", "  ".join(document.get("applied") or ())),
        ],
        width,
    )


def facts(pairs: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    """``name  value`` lines; a pair without a value is left out."""
    size = max((len(name) for name, value in pairs if value), default=0)
    for name, value in pairs:
        if value:
            yield from wrapped(value, width, f"{name.ljust(size)}  ", " " * (size + 2))


def _placed(ranks: Mapping[str, Any]) -> str:
    place = ranks.get("place", "packed")
    return f"placed on {len(place)} named devices" if isinstance(place, list) else str(place)


def _work(work: Mapping[str, Any]) -> str:
    layers, steps = work.get("layers", "all"), work.get("steps", 1)
    if isinstance(layers, list):
        layers = f"layers {', '.join(map(str, layers))}" if len(layers) <= 6 else f"{len(layers)} layers"
    elif isinstance(layers, int):
        layers = _count(layers, "layer")
    else:
        layers = f"{layers} MoE layers"
    return f"{work['phase']}: {work['tokens_per_rank']} tokens a rank, {layers}, {_count(steps, 'step')}"


def _count(things: Any, word: str) -> str:
    number = things if isinstance(things, int) else len(things or ())
    return f"{number} {word}{'' if number == 1 else 's'}" if number else ""


def named_fault(fault: Mapping[str, Any]) -> str:
    """A fault as ``link l1-3 at 50%``."""
    what = next((key for key in fault if key != "capacity"), "fault")
    return f"{what} {fault.get(what)} at {fault.get('capacity', '0%')}"


def _ranking(strategies: Sequence[Document], width: int) -> list[str]:
    shown = [*STAGES[:3], *(["backward"] if "backward_s" in strategies[0]["metrics"] else [])]
    rows = [["strategy", "layer", "speed-up", *shown, "bound", "bottleneck"]]
    first = strategies[0]["metrics"]["layer_s"]["critical"]
    for item in strategies:
        layer, *parts = (item["metrics"][f"{stage}_s"]["critical"] for stage in ("layer", *shown))
        speedup = f"{first / layer:.2f}x" if layer else "-"
        bound = microseconds(item["bound_s"]["layer"])
        times = [microseconds(layer), speedup, *map(microseconds, parts), bound]
        rows.append([item["name"], *times, _bottleneck(item["bottleneck"])])
    numbers, align = [row[:-1] for row in rows], "l" + "r" * (len(shown) + 3)
    if max(map(len, table(numbers, width, align))) + len(GAP) + max(len(row[-1]) for row in rows) <= width:
        return table(rows, width, f"{align}l")
    necks = [line for row in rows[1:] for line in wrapped(f"bottleneck of {row[0]}: {row[-1]}", width)]
    return table(numbers, width, align) + necks


def _bottleneck(neck: Document) -> str:
    used, idle = neck["utilisation"], neck["fixed_and_waiting"]
    busy = "" if used is None else f", {percent(used)} busy"
    fixed = used is not None and used < min(idle, 0.5)
    return (f"fixed costs, waiting {percent(idle)}; " if fixed else "") + f"{neck['resource']}{busy}"


def _required(document: Document, width: int) -> Iterator[str]:
    for row in document.get("require") or ():
        yield from wrapped(requirement(row), width, "  ", "       ")


def requirement(row: Mapping[str, Any]) -> str:
    """One ``require`` line with its verdict and the value found."""
    found = units.format(row["value"], "bytes" if row["metric"] == "buffers_B" else "time")
    return f"{'yes' if row['met'] else 'NO '}  {row['text']}  (is {found})"


def _times(strategies: Sequence[Document], width: int) -> list[str]:
    rows = [["", "", "critical", "mean", "p50", "p99", "max", "bound"]]
    there = [stage for stage in (*STAGES[:3], *BACKWARD, "layer") if f"{stage}_s" in strategies[0]["metrics"]]
    for stage in there:
        for number, item in enumerate(strategies):
            values = item["metrics"][f"{stage}_s"]
            shown = [values[key] for key in ("critical", "mean", "p50", "p99", "max")]
            bound = item["bound_s"][stage]
            rows.append(
                [
                    "" if number else stage.replace("_", " "),
                    item["name"],
                    *map(microseconds, shown),
                    microseconds(bound),
                ]
            )
    note = (
        "combine counts from a rank's own expert end: waiting for slower ranks is in it, and not in its bound"
    )
    return [*table(rows, width, "llrrrrrr"), *wrapped(note, width, "  ")]


def _breakdown(strategies: Sequence[Document], width: int) -> list[str]:
    found = dict.fromkeys(label for item in strategies for label, part in item["breakdown_s"].items() if part)
    labels = sorted(found, key=lambda label: _ORDER.index(label) if label in _ORDER else len(_ORDER))
    totals = [item["metrics"]["layer_s"]["critical"] for item in strategies]
    rows = [
        (
            _LABELS.get(label, label),
            [
                _share(item["breakdown_s"].get(label), total)
                for item, total in zip(strategies, totals, strict=True)
            ],
        )
        for label in labels
    ]
    rows.append(("layer", [f"{microseconds(total)} 100%" for total in totals]))
    return columns([item["name"] for item in strategies], rows, width)


def _share(part: float | None, total: float) -> str:
    return f"{microseconds(part)} {percent(part / total):>4}" if part and total else "-   "


def _loads(strategies: Sequence[Document], width: int) -> list[str]:
    rows = []
    for key, name in _IMBALANCES.items():
        before = [item["imbalance"][key] for item in strategies]
        after = [item["imbalance"]["after"][key] for item in strategies]
        cells = [
            digits(x) if y is None or x == y else f"{digits(x)} -> {digits(y)}"
            for x, y in zip(before, after, strict=True)
        ]
        rows.append((name, cells))
    return columns([item["name"] for item in strategies], rows, width)


def _balancing(strategies: Sequence[Document], width: int) -> list[str]:
    """What each balancer did and cost; nothing where none balances."""
    if all(item["balancer"] == "none" for item in strategies):
        return []
    found = [item["balancing"] for item in strategies]
    copies = [
        " / ".join(f"{one[f'copies_{what}']:.3g}" for what in ("total", "most_sent", "most_received"))
        if one["copies_total"]
        else "-"
        for one in found
    ]
    held = [sum(item["buffers_B"].get(kind, 0.0) for kind in _HELD) for item in strategies]
    rows = [
        ("copies: all / sent / received", copies),
        ("weights sent [MiB]", [_mib(item["weights_B"] or None) for item in strategies]),
        ("slots and rows [MiB]", [_mib(size or None) for size in held]),
    ]
    for name in ("planning", "weights exposed", "weights hidden", "gradients exposed", "gradients hidden"):
        times = [one[f"{name.replace(' ', '_')}_s"] for one in found]
        if any(times):
            rows.append((f"{name} [us]", [microseconds(time or None) for time in times]))
    against = [_against_oracle(item, strategies) for item in strategies]
    if any(against):
        rows.append(("layer against the oracle's", [f"{ratio:.2f}x" if ratio else "-" for ratio in against]))
    return columns([item["name"] for item in strategies], rows, width)


def _against_oracle(item: Document, strategies: Sequence[Document]) -> float | None:
    """Layer time over that of the oracle, which balances perfectly at no cost; of the same protocol, if there is."""
    oracles = [one for one in strategies if one["balancer"] == "oracle"]
    oracles.sort(key=lambda one: one["protocol"] != item["protocol"])
    layer = oracles[0]["metrics"]["layer_s"]["critical"] if oracles else 0.0
    return item["metrics"]["layer_s"]["critical"] / layer if layer else None


def _traffic(strategies: Sequence[Document], width: int) -> list[str]:
    rows = formats([item["formats"] for item in strategies])
    kept = [item["traffic_B"]["self"] for item in strategies]
    if any(kept):
        rows.append(("stays on its rank", [_mib(size) for size in kept]))
    rows += crossing([item["crossed_B"] for item in strategies])
    if any(item.get("weights_B") for item in strategies):
        rows.append(("expert weights pushed", [_mib(item.get("weights_B")) for item in strategies]))
    return columns([item["name"] for item in strategies], rows, width)


def formats(found: Sequence[Mapping[str, str]]) -> list[tuple[str, list[str]]]:
    """A line of number formats of a row, dispatch / combine, a cell a strategy."""
    return [("format of a row, out / back", [f"{one['dispatch']} / {one['combine']}" for one in found])]


def crossing(found: Sequence[Mapping[str, Mapping[str, float]]]) -> list[tuple[str, list[str]]]:
    """Lines of payload / wire MiB that cross each tier, a cell a strategy; tiers that nobody uses are left out."""
    return [
        (
            tier.replace("_", "-"),
            [f"{_mib(one['payload'][tier])} / {_mib(one['wire'][tier])}" for one in found],
        )
        for tier in TIERS
        if any(one["wire"][tier] for one in found)
    ]


def _memory(strategies: Sequence[Document], width: int) -> list[str]:
    kinds = dict.fromkeys(kind for item in strategies for kind in item["buffers_B"])
    rows = [
        (kind.replace("_", " "), [_mib(item["buffers_B"].get(kind)) for item in strategies]) for kind in kinds
    ]
    rows.append(("buffers in all", [_mib(sum(item["buffers_B"].values())) for item in strategies]))
    for key, name in (("expert_weights", "expert weights"), ("device", "of the device's")):
        rows.append((name, [_mib(item["memory_B"].get(key)) for item in strategies]))
    return columns([item["name"] for item in strategies], rows, width)


def _mib(count: float | None) -> str:
    return digits(None if count is None else count / _MIB)


def _bandwidth(strategies: Sequence[Document], width: int) -> list[str]:
    found = [item["bandwidth_Bps"] for item in strategies]
    rows: list[tuple[str, list[str]]] = []
    for stage, of in (("dispatch", found), ("combine", [rates.get("combine", {}) for rates in found])):
        rows += [
            (f"{stage}, {key}", [_gigabytes(rates.get(key)) for rates in of]) for key in ("logical", "wire")
        ]
        own = [rates.get("library", {}).get("value") for rates in of]
        rows.append((f"{stage}, library's own", [_gigabytes(value) for value in own]))
    libraries = [rates.get("library") or {} for rates in found]
    lines = columns([item["name"] for item in strategies], rows, width)
    for name in dict.fromkeys(library["name"] for library in libraries if library):
        users = [
            item["name"]
            for item, library in zip(strategies, libraries, strict=True)
            if library.get("name") == name
        ]
        lines += wrapped(f"library's own, {', '.join(users)}: {name}", width, "  ", "    ")
    return lines


def _gigabytes(rate: float | None) -> str:
    return digits(None if rate is None else rate / 1e9)


def standing(document: Document, cited: Sequence[Document], width: int) -> Iterator[tuple[str, list[str]]]:
    """What an answer stands on: assumed numbers and properties first, then counts, sources and warnings."""
    once = list({(item["where"], item["value"]): item for item in cited}.values())
    guessed = [item for item in once if item["grade"] == "assumed"]
    yield (f"assumed ({len(guessed)})", cited_lines(guessed, width))
    grades = Counter(item["grade"] for item in once if item["grade"] != "assumed")
    if grades:
        counted = ", ".join(f"{number} {grade}" for grade, number in sorted(grades.items()))
        yield ("", wrapped(f"other constants: {counted} (moesim explain lists each)", width, ""))
    yield ("sources to cite", [line for item in document["sources"] for line in source_lines(item, width)])
    names: dict[str, list[str]] = {}
    for item in document["strategies"]:
        for text in item["warnings"]:
            names.setdefault(text, []).append(item["name"])
    mine = [f"{', '.join(those)}: {text}" for text, those in names.items()]
    told = dict.fromkeys([*document["warnings"], *mine])
    yield ("warnings", [line for text in told for line in wrapped(text, width, "  ! ", "    ")])


def cited_lines(cited: Sequence[Document], width: int) -> list[str]:
    """Constants with value, source and note."""
    if not cited:
        return []
    rows = [[item["where"], item["value"], f"[{item['source']}] {item['note']}".rstrip()] for item in cited]
    return table(rows, width, "lrl")


def source_lines(source: Mapping[str, str], width: int) -> list[str]:
    """A bibliography entry."""
    return wrapped(f"[{source['key']}] {source['title']}. {source['reference']}", width, "  ", "      ")


def comparison_report(found: Comparison, width: int, limit: float | None) -> list[str]:
    """The lines of ``moesim compare``: what was changed, then b / a for every strategy and metric."""
    worse = set(found.worse(limit)) if limit is not None else set()
    body = [["strategy", "metric", "", "A", "B", "B/A", ""]]
    seen = None
    for row in found.rows:
        group = (row.strategy, row.metric)
        name, metric = (
            "" if seen and seen[0] == row.strategy else row.strategy,
            "" if seen == group else _metric(row.metric),
        )
        seen = group
        show = microseconds if row.metric.endswith("_s") else _mib
        body.append(
            [
                name,
                metric,
                row.statistic,
                show(row.a),
                show(row.b),
                f"{row.ratio:.4f}",
                "worse" if row in worse else "",
            ]
        )
    gone = [f"only in A: {', '.join(found.only_a)}"] if found.only_a else []
    new = [f"only in B: {', '.join(found.only_b)}"] if found.only_b else []
    changed = [line for text in found.differences for line in wrapped(text, width)]
    return joined(
        [
            ("what differs in the scenarios (A -> B)", changed),
            ("", table(body, width, "lllrrrl")),
            ("", gone + new),
        ]
    )


def _metric(metric: str) -> str:
    stage, _, unit = metric.rpartition("_")
    return f"{stage} [{'us' if unit == 's' else 'MiB'}]"
