"""What ``moesim explain`` prints, made from the document that ``--json`` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from moesim import units
from moesim.console import cited_lines, crossing, facts, formats, joined, named, source_lines
from moesim.layout import columns, digits, microseconds, percent, table, wrapped

Document = Mapping[str, Any]

_GIGA = 1e9
_MEANING = (
    "floor: the busiest resource alone; bound: with latency and fixed costs. "
    "wire: bytes that leave the rank / floor; logical: payload / floor; library: bytes by its own count / floor."
)
_GRADES = ("measured", "derived", "spec")


def explain_report(document: Document, width: int) -> list[str]:
    """Pod, ceilings, bottlenecks; then what each strategy costs; then every constant, assumed ones first."""
    strategies = document["strategies"]
    sections: list[tuple[str, list[str]]] = [
        ("", list(_header(document, width))),
        ("resources of the pod, per direction [GB/s]", _resources(document, width)),
        (f"ceilings of one rank, {_gate(document)} [us, GB/s]", _ceilings(strategies, width)),
        (
            "bytes over each tier, dispatch and combine, all ranks: payload / wire [MiB]",
            _crossing(strategies, width),
        ),
        *((_title(item), list(_strategy(item, width))) for item in strategies),
        ("buffers and memory of one rank", _memory(document, width)),
        *_constants(document["cited"], width),
        ("sources to cite", [line for item in document["sources"] for line in source_lines(item, width)]),
        (
            "warnings",
            [line for text in document["warnings"] for line in wrapped(text, width, "  ! ", "    ")],
        ),
    ]
    return joined(sections)


def _header(document: Document, width: int) -> Iterator[str]:
    pod, ranks = document["pod"], document["ranks"]
    size = f"{pod['devices']} devices, {pod['hosts']} hosts, {pod['domains']} scale-up domains"
    place = f"{ranks['hosts']} hosts, {ranks['domains']} domains: {ranks['first']} to {ranks['last']}"
    shares = [f"{percent(share)} {name}" for name, share in _reach(ranks["entries_share"]) if share]
    yield from facts(
        [
            ("pod", f"{pod['name']} ({pod['family']}), {size}"),
            ("file", pod["path"] or "inline"),
            ("parameters", ", ".join(f"{key} {named(value)}" for key, value in pod["parameters"].items())),
            ("properties", ", ".join(pod["properties"])),
            ("faults", "; ".join(pod["faults"])),
            ("device", _device(pod["device"])),
            (
                "messages",
                ", ".join(f"at most {units.format(rate, 'rate')} a NIC" for rate in pod["nic_rates"]),
            ),
            ("ranks", f"EP {ranks['ep']} on {place}"),
            ("reach", "of a rank's entries " + ", ".join(shares) if shares else ""),
            ("model", _model(document["model"])),
            ("overrides", "  ".join(document["applied"])),
        ],
        width,
    )


def _device(device: Document) -> str:
    rates = [f"{units.format(rate, 'flops')} {dtype}" for dtype, rate in device["compute_FLOPps"].items()]
    parts = [f"{device['name']}: {device['cores']} {device['core_kind']}s", *rates]
    if device["hbm_Bps"] is not None:
        parts.append(f"HBM {units.format(device['hbm_Bps'], 'bandwidth')}")
    if device["memory_B"] is not None:
        parts.append(units.format(device["memory_B"], "bytes"))
    return ", ".join(parts)


def _reach(shares: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    names = {
        "rank": "stay",
        "host": "go within the host",
        "domain": "within the scale-up domain",
        "beyond": "beyond it",
    }
    for key, name in names.items():
        yield name, shares[key]


def _model(model: Document) -> str:
    shape = f"{model['experts']} experts, top-{model['top_k']}, hidden {model['hidden']}"
    one = f"{units.format(model['expert_B'], 'bytes')} ({model['expert_dtype']})"
    return f"{model['name']} [{model['grade']}]: {shape}; {model['experts_per_rank']} experts of {one} a rank"


def _gate(document: Document) -> str:
    tokens = document["scenario"]["workload"]["tokens_per_rank"]
    return f"uniform routing, {tokens} tokens, {digits(document['model']['ranks_per_token'])} ranks a token"


def _resources(document: Document, width: int) -> list[str]:
    accesses = sorted({access for row in document["links"] for access in row["efficiency"]})
    shares = [f"{access} eff." for access in accesses]
    rows = [["resource", "count", "raw", "a device", *shares, *accesses, "latency"]]
    for row in document["links"]:
        cells = [str(row["directed"]), _rate(row["capacity_Bps"]), _rate(row["per_device_Bps"] or None)]
        cells += [percent(row["efficiency"][access]) for access in accesses]
        cells += [_rate(row["effective_Bps"][access]) for access in accesses]
        rows.append([row["kind"], *cells, units.format(row["latency_s"], "time")])
    devices, blank = str(document["pod"]["devices"]), [""] * (2 * len(accesses) + 1)
    for access, tiers in document["pod"]["device"]["engines_Bps"].items():
        rows += [
            [f"{access} engine, {tier}", devices, "", _rate(rate), *blank] for tier, rate in tiers.items()
        ]
    return table(rows, width, "l" + "r" * (len(rows[0]) - 1))


def _rate(rate: float | None) -> str:
    return digits(None if rate is None else rate / _GIGA)


def _ceilings(strategies: Sequence[Document], width: int) -> list[str]:
    lines: list[str] = []
    for stage in ("dispatch", "combine"):
        rows = [[stage, "KiB out", "floor", "bound", "wire", "logical", "library", "busiest resource"]]
        for item in strategies:
            found = item["ceilings"][stage]
            cells = [digits(found["wire_B"] / 1024), *map(microseconds, (found["floor_s"], found["bound_s"]))]
            cells += [_rate(found[f"{name}_Bps"]) for name in ("wire", "logical", "library")]
            rows.append([item["name"], *cells, found["bottleneck"] or "nothing is sent"])
        lines += table(rows, width, "lrrrrrrl")
    return lines + wrapped(_MEANING, width)


def _crossing(strategies: Sequence[Document], width: int) -> list[str]:
    rows = formats([item["formats"] for item in strategies])
    rows += crossing([_both(item["ceilings"]) for item in strategies])
    return columns([item["name"] for item in strategies], rows, width)


def _both(ceilings: Document) -> dict[str, dict[str, float]]:
    """Bytes of dispatch and combine together."""
    there, back = (ceilings[stage]["crossed_B"] for stage in ("dispatch", "combine"))
    return {
        what: {tier: size + back[what][tier] for tier, size in sizes.items()} for what, sizes in there.items()
    }


def _title(item: Document) -> str:
    extra = f", assumes {', '.join(item['assumed'])}" if item["assumed"] else ""
    return f"{item['name']}: {item['protocol']}, balancer {item['balancer']}{extra}"


def _strategy(item: Document, width: int) -> Iterator[str]:
    yield from wrapped(f"calibration {item['calibration']}, access {item['access']}", width)
    fit = item["fit"]
    if fit is not None:
        errors = f"median error {percent(fit['median'])}, 90th percentile {percent(fit['p90'])}"
        data = f"; {fit['file']}" if fit["file"] else ""
        yield from wrapped(f"fitted to {fit['rows']}: {', '.join(fit['constants'])}; {errors}{data}", width)
    rows = [f"{digits(item[f'{stage}_row_B'])} B in {stage}" for stage in item["ceilings"]]
    yield from wrapped(f"a row: {', '.join(rows)}; the library's bandwidth: {item['definition']}", width)
    for stage, found in item["ceilings"].items():
        wire = found["fabric_bottleneck"]
        if wire not in (None, found["bottleneck"]):
            share = percent(found["fabric_s"] / found["floor_s"])
            yield from wrapped(f"{stage}: the busiest of the fabric is {wire}, {share} of the floor", width)
    for text in item["notes"]:
        yield from wrapped(text, width, "  - ", "    ")


def _memory(document: Document, width: int) -> list[str]:
    strategies, memory = document["strategies"], document["pod"]["device"]["memory_B"]
    kinds = dict.fromkeys(kind for item in strategies for kind in item["buffers_B"])
    weights = document["model"]["weights_B"]
    rows = [
        (kind.replace("_", " "), [_size(item["buffers_B"].get(kind)) for item in strategies])
        for kind in kinds
    ]
    rows.append(("buffers in all", [_size(sum(item["buffers_B"].values())) for item in strategies]))
    rows.append(("expert weights", [_size(weights) for _ in strategies]))
    rows.append(("of the device's", [_size(memory) for _ in strategies]))
    return columns([item["name"] for item in strategies], rows, width)


def _size(count: float | None) -> str:
    return "-" if count is None else units.format(count, "bytes")


def _constants(cited: Sequence[Document], width: int) -> Iterator[tuple[str, list[str]]]:
    for grade in ("assumed", *_GRADES):
        chosen = [item for item in cited if item["grade"] == grade]
        yield f"{grade} constants ({len(chosen)})", cited_lines(chosen, width)
