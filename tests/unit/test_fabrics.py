"""Topology files: the documented examples, placed errors, parameters, inline pods."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from moesim import fabrics, yamlio
from moesim.errors import InputError
from moesim.ranks import place
from moesim.routing import routes

CROSSBAR = """\
moesim: 1
fabric: {kind: crossbar, devices: 72, port: {capacity: 900GB/s, latency: 0us, efficiency: 1, \
source: example, grade: assumed}}
"""
CLOS = """\
moesim: 1
fabric: {kind: clos, hosts: 48, devices_per_host: 8, port: {capacity: 392GB/s}, \
uplink: {capacity: 3136GB/s}, source: example, grade: assumed}
"""
GRAPH = """\
moesim: 1
device:
  source: example
  grade: assumed
  compute: {bf16: 100TFLOP/s}
  hbm_rate: 1TB/s
  memory: 16GiB
fabric:
  kind: graph
  source: example
  grade: assumed
  devices: [a, {name: b, host: 1}]
  switches: [s]
  links:
    - {a: a, b: s, capacity: 10GB/s, latency: 1us}
    - {a: s, b: b, capacity: 4GB/s, count: 2, efficiency: 50%}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "pod.yaml"
    path.write_text(text)
    return path


def refused(folder: Path, text: str) -> list[str]:
    """The problems of a file, as text."""
    with pytest.raises(InputError) as caught:
        fabrics.load(write(folder, text))
    return [str(problem) for problem in caught.value.problems]


def test_ideal_crossbar(tmp_path: Path) -> None:
    pod = fabrics.load(write(tmp_path, CROSSBAR))
    found = routes(pod, place(pod, 72), "write")
    assert len(found.names) == 144
    assert set(found.capacity) == {900e9}
    assert not found.latency.any()
    assert set(found.tier.ravel()) == {0, 2}
    assert pod.name == "pod"
    assert "ideal" in pod.properties


def test_ideal_two_tiers(tmp_path: Path) -> None:
    pod = fabrics.load(write(tmp_path, CLOS))
    found = routes(pod, place(pod, 384), "write")
    capacity = dict(zip(found.names, found.capacity, strict=True))
    assert len(capacity) == 2 * (384 + 48)
    assert sorted(set(capacity.values())) == [392e9, 3136e9]
    assert set(found.weight) == {1.0}
    indptr, index, _ = found.rows(np.array([0 * 384 + 1, 0 * 384 + 8]))
    names = [[found.names[i] for i in index[a:b]] for a, b in itertools.pairwise(indptr)]
    assert sorted(names[0]) == ["d0 port up", "d1 port down"]
    assert sorted(names[1]) == [
        "d0 port up",
        "d8 port down",
        "host0/switch uplink up",
        "host1/switch uplink down",
    ]
    assert set(found.domain) == {0}


def test_a_written_out_graph(tmp_path: Path) -> None:
    pod = fabrics.load(write(tmp_path, GRAPH))
    found = routes(pod, place(pod, 2), "write")
    capacity = dict(zip(found.names, found.capacity, strict=True))
    assert capacity["a link up"] == 10e9
    assert capacity["b link down"] == 2 * 4e9 * 0.5
    assert found.latency[0, 1] == 1e-6
    assert found.host.tolist() == [0, 1]
    assert pod.device.compute == {"bf16": 100e12}
    assert (pod.device.memory, pod.device.cores, pod.device.hbm_efficiency) == (16 * 2**30, 1, 1.0)
    assert "ideal" not in pod.properties


def test_a_property_can_be_cited(tmp_path: Path) -> None:
    said = "properties: {multicast: {source: example, grade: assumed, note: as told}}\ndevice:"
    pod = fabrics.load(write(tmp_path, GRAPH.replace("device:", said, 1)))
    assert pod.properties == {"multicast"}
    (cited,) = [cited for cited in pod.cited if "properties" in cited.where]
    assert (cited.where, cited.value) == ("pod properties.multicast", "yes")
    assert (cited.source, cited.grade.value, cited.note) == ("example", "assumed", "as told")


@pytest.mark.parametrize(
    ("old", "new", "place_", "message"),
    [
        ("capacity: 10GB/s", "capacity: 10", "15:30", "10"),
        ("capacity: 10GB/s", "capacity: 10gb/s", "15:30", "Gb/s"),
        ("capacity: 10GB/s", "capacity: 0GB/s", "15:30", "capacity is zero"),
        ("capacity: 10GB/s", "capacity: 2us", "15:30", "us"),
        ("latency: 1us", "latncy: 1us", "15:38", "did you mean 'latency'"),
        ("latency: 1us", "latency: -1us", "15:47", "negative"),
        ("a: a,", "a: aa,", "15:11", "link end a is the unknown 'aa'"),
        ("b: s,", "b: a,", "15:17", "joins 'a' to itself"),
        ("count: 2", "count: 0", "16:44", "count is 0"),
        ("count: 2", "count: 1.5", "16:44", "count is 1.5"),
        ("efficiency: 50%", "efficiency: 150%", "16:59", "at most 1"),
        ("switches: [s]", "switches: [s, s]", "13:17", "given twice"),
        ("switches: [s]", "switches: s", "13:13", "not a list"),
        ("host: 1", "hots: 1", "12:26", "did you mean 'host'"),
        ("kind: graph", "kind: grpah", "9:9", "did you mean 'graph'"),
        ("moesim: 1", "moesim: 2", "1:9", "moesim: 1"),
        ("memory: 16GiB", "memory: 16Gib", "7:11", "Gib"),
        ("  memory: 16GiB\n", "", "3:3", "'memory' is missing"),
        ("bf16: 100TFLOP/s", "bf61: 100TFLOP/s", "5:13", "did you mean 'bf16'"),
        ("  grade: assumed\n  compute", "  grade: asumed\n  compute", "4:10", "did you mean 'assumed'"),
        (
            "  source: example\n  grade: assumed\n  compute",
            "  grade: assumed\n  compute",
            "4:19",
            "names no source",
        ),
        (
            "  source: example\n  grade: assumed\n  dev",
            "  source: exampel\n  grade: assumed\n  dev",
            "10:11",
            "did you mean 'example'",
        ),
        ("fabric:", "fabirc:", "8:1", "did you mean 'fabric'"),
        ("device:", "parameters: [n]\ndevice:", "2:13", "parameters are no mapping"),
        ("device:", "properties: [multicasts]\ndevice:", "2:13", "atomic-512B, multicast"),
        ("device:", "properties: {multicasts: {}}\ndevice:", "2:13", "atomic-512B, multicast"),
        ("device:", "properties: {multicast: {grade: spec}}\ndevice:", "2:25", "source"),
        ("device:", "properties: {multicast: true}\ndevice:", "2:25", "a mapping"),
    ],
)
def test_a_mistake_is_shown_where_it_stands(
    tmp_path: Path, old: str, new: str, place_: str, message: str
) -> None:
    assert GRAPH.count(old) >= 1
    problems = refused(tmp_path, GRAPH.replace(old, new, 1))
    hits = [text for text in problems if f"pod.yaml:{place_}:" in text and message in text]
    assert hits, problems


def test_all_mistakes_are_shown_at_once(tmp_path: Path) -> None:
    text = (
        GRAPH.replace("10GB/s", "10")
        .replace("1us", "1")
        .replace("16GiB", "16")
        .replace("count: 2", "count: two")
    )
    assert len(refused(tmp_path, text)) == 4


def test_an_unknown_kind_is_the_only_problem(tmp_path: Path) -> None:
    assert len(refused(tmp_path, GRAPH.replace("kind: graph", "kind: grpah"))) == 1


def test_an_empty_or_missing_fabric_is_one_problem(tmp_path: Path) -> None:
    assert "fabric is missing" in refused(tmp_path, "moesim: 1\n")[0]
    assert "fabric is not a mapping" in refused(tmp_path, "moesim: 1\nfabric: planes\n")[0]
    assert "'kind' is missing" in refused(tmp_path, "moesim: 1\nfabric: {hosts: 1}\n")[0]


@pytest.mark.parametrize(
    ("fabric", "message"),
    [
        ({"devices_per_package": 3}, "3 does not divide 4 devices a host"),
        ({"hosts_per_group": 3}, "3 does not divide 4 hosts"),
        ({"hosts_per_group": 2}, "2 groups of hosts need a trunk"),
        ({"sibling": {"capacity": "1GB/s"}}, "needs devices_per_package"),
        ({"latency": {"one_tier": "1us"}, "profiles": {}}, "unknown key 'profiles'"),
        ({"latency": "fast", "profiles": {"slow": {"one_tier": "1us"}}}, "unknown latency 'fast'"),
        (
            {"latency": "slow", "profiles": {"slow": {"one_tier": "1us"}, "x": {"one_teir": "1us"}}},
            "one_teir",
        ),
        ({"latency": "slow"}, "profiles is missing"),
        ({"lane": {"capacity": "1GB/s", "latency": "1us"}}, "unknown key 'latency'"),
        ({"lane": {"capacity": "1GB/s", "efficiency": 1, "packets": {}}}, "both given"),
    ],
)
def test_planes_that_cannot_be(fabric: dict[str, object], message: str) -> None:
    base = {"kind": "planes", "hosts": 4, "devices_per_host": 4, "planes": 2, "lane": {"capacity": "1GB/s"}}
    with pytest.raises(InputError, match=message):
        fabrics.load({"fabric": {**base, **fabric, "source": "example", "grade": "assumed"}})


def test_two_tiers_are_not_faster_than_one() -> None:
    fabric = {
        "kind": "planes",
        "hosts": 4,
        "devices_per_host": 4,
        "hosts_per_group": 1,
        "planes": 2,
        "lane": {"capacity": "1GB/s"},
        "trunk": {"chips_per_plane": 1, "capacity": "1GB/s"},
        "latency": {"one_tier": "2us", "two_tier": "1us"},
    }
    with pytest.raises(InputError, match="two tiers are faster than one"):
        fabrics.load({"fabric": {**fabric, "source": "example", "grade": "assumed"}})


class TestParameters:
    def test_values_in_force_are_recorded(self) -> None:
        assert fabrics.load("h100-ib").parameters == {"hosts": 8, "taper": 1}
        assert fabrics.load("h100-ib", {"hosts": 2}).parameters == {"hosts": 2, "taper": 1}

    def test_a_number_from_outside_is_not_the_sources(self) -> None:
        cited = {c.where: c for c in fabrics.load({"name": "h100-ib", "hosts": 2}).cited}
        assert cited["h100-ib fabric.hosts"].source == "user"

    def test_overrides_go_before_the_mapping(self) -> None:
        assert len(fabrics.load({"name": "h100-ib", "hosts": 2}, {"hosts": 3}).devices) == 24

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ({"name": "h100-ib", "host": 2}, "unknown parameter 'host'.*\n.*did you mean 'hosts'"),
            ({"name": "gb200-nvl72", "hosts": 2}, "this pod has no parameters"),
            ({"name": "h100-ib", "hosts": 0}, "hosts is 0"),
            ({"name": "h100-ib", "hosts": "eight"}, "hosts is 'eight'"),
            ({"name": "h100-ib", "hosts": 10**9}, "a whole number from 1"),
            ({"name": "h100-ib", "taper": "2GB/s"}, "2GB/s"),
            ({"name": "h100-bi"}, "did you mean 'h100-ib'"),
            ({"hosts": 2}, "needs `fabric` or `name`"),
        ],
    )
    def test_wrong_ones_are_refused(self, spec: dict[str, object], message: str) -> None:
        with pytest.raises(InputError, match=message):
            fabrics.load(spec)

    def test_a_parameter_must_set_something(self, tmp_path: Path) -> None:
        text = GRAPH.replace("device:", "parameters: {n: fabric.hosts}\ndevice:", 1)
        assert "the parameter 'n' sets 'fabric.hosts', which is not in the file" in refused(tmp_path, text)[0]


def test_an_inline_pod_keeps_the_places_of_its_scenario() -> None:
    text = "name: x\ntopology:\n  fabric:\n    kind: crossbar\n    devices: many\n    port: {capacity: 1}\n"
    document = yamlio.loads(text, "scenario.yaml")
    with pytest.raises(InputError) as caught:
        fabrics.load(document.data["topology"], within=(document, ("topology",)))
    places = [(p.path, p.line) for p in caught.value.problems]
    assert ("scenario.yaml", 5) in places
    assert ("scenario.yaml", 6) in places


@pytest.mark.parametrize(("line", "column"), [("hots: 2", 3), ("hosts: none", 10)])
def test_a_parameter_in_a_scenario_is_shown_there(line: str, column: int) -> None:
    document = yamlio.loads(f"topology:\n  name: h100-ib\n  {line}\n", "scenario.yaml")
    with pytest.raises(InputError) as caught:
        fabrics.load(document.data["topology"], within=(document, ("topology",)))
    assert [(p.path, p.line, p.column) for p in caught.value.problems] == [("scenario.yaml", 3, column)]


def test_a_path_is_relative_to_the_file_that_names_it(tmp_path: Path) -> None:
    write(tmp_path, CROSSBAR)
    assert fabrics.load("pod.yaml", base=tmp_path).path == str(tmp_path / "pod.yaml")
    with pytest.raises(InputError, match="not found"):
        fabrics.load("pod.yaml", base=tmp_path / "elsewhere")


def test_a_file_may_bring_its_own_sources(tmp_path: Path) -> None:
    text = """moesim: 1
sources:
  lab: {title: Our own measurement, reference: log of June}
fabric: {kind: crossbar, devices: 4, port: {capacity: 900GB/s, source: %s, grade: measured}}
"""
    path = tmp_path / "own.yaml"
    path.write_text(text % "lab")
    assert [item.source for item in fabrics.load(str(path)).cited][:1] == ["lab"]
    path.write_text(text % "lob")
    with pytest.raises(InputError, match="did you mean 'lab'"):
        fabrics.load(str(path))
