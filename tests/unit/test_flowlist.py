from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moesim import fabrics, flowlist
from moesim.errors import InputError

CROSSBAR = {
    "moesim": 1,
    "fabric": {
        "kind": "crossbar",
        "devices": 4,
        "port": {
            "capacity": "10GB/s",
            "latency": "0us",
            "efficiency": 1,
            "source": "example",
            "grade": "assumed",
        },
    },
}


def _good() -> dict[str, np.ndarray]:
    return {
        "src": np.array([0, 1, 0]),
        "dst": np.array([2, 2, 3]),
        "bytes": np.array([10_000_000_000, 20_000_000_000, 5_000_000_000]),
        "start": np.zeros(3),
        "path": np.array([[0, 6, -1], [1, 6, -1], [0, 7, -1]], dtype=np.int32),
        "cap": np.full(8, 10e9),
    }


def _write(folder: Path, /, **changes: Any) -> Path:
    arrays = {name: array for name, array in (_good() | changes).items() if array is not None}
    np.savez(folder / "flows.npz", **arrays)
    return folder / "flows.npz"


def test_own_fabric(tmp_path: Path) -> None:
    found = flowlist.run(flowlist.load(_write(tmp_path)), None, 0.0)
    assert found.finish.tolist() == [2.0, 3.0, 1.0]
    assert found.makespan == 3.0
    assert found.tolerance == 0.0
    assert found.ignored == ("src", "dst")


def test_the_same_over_a_topology(tmp_path: Path) -> None:
    found = flowlist.run(flowlist.load(_write(tmp_path)), fabrics.load(CROSSBAR), 0.0)
    np.testing.assert_allclose(found.finish, [2.0, 3.0, 1.0], rtol=1e-12)
    assert found.ignored == ("path", "cap")


def test_starts_are_obeyed_and_optional(tmp_path: Path) -> None:
    late = flowlist.run(flowlist.load(_write(tmp_path, start=np.array([0.0, 5.0, 0.0]))), None, 0.0)
    assert late.finish.tolist() == [1.5, 7.0, 1.0]
    absent = flowlist.run(flowlist.load(_write(tmp_path, start=None)), None, 0.0)
    assert absent.finish.tolist() == [2.0, 3.0, 1.0]


def test_a_flow_to_its_own_device_crosses_nothing(tmp_path: Path) -> None:
    file = _write(tmp_path, dst=np.array([0, 2, 3]), start=np.array([0.5, 0.0, 0.0]))
    found = flowlist.run(flowlist.load(file), fabrics.load(CROSSBAR), 0.0)
    np.testing.assert_allclose(found.finish, [0.5, 2.0, 0.5], rtol=1e-12)


def test_no_flows(tmp_path: Path) -> None:
    none = {name: array[:0] for name, array in _good().items() if name != "cap"}
    flows = flowlist.load(_write(tmp_path, **none))
    assert flowlist.run(flows, None, 0.003).makespan == 0.0
    assert flowlist.run(flows, fabrics.load(CROSSBAR), 0.003).makespan == 0.0


def test_arrays_that_nothing_reads_are_named(tmp_path: Path) -> None:
    found = flowlist.run(flowlist.load(_write(tmp_path, weight=np.ones(3))), None, 0.0)
    assert found.ignored == ("src", "dst", "weight")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bytes": None}, ("bytes", "missing")),
        ({"bytes": np.array([1.0, np.nan, 1.0])}, ("bytes", "[1]", "nan")),
        ({"bytes": np.array([1.0, np.inf, 1.0])}, ("bytes", "[1]", "inf")),
        ({"bytes": np.array([1, -5, 1])}, ("bytes", "[1]", "-5")),
        ({"bytes": np.ones((3, 2))}, ("bytes", "axis")),
        ({"bytes": np.array(["1", "2", "3"])}, ("bytes", "<U1")),
        ({"bytes": np.ones(3, dtype=complex)}, ("bytes", "complex")),
        ({"bytes": np.array([1, 2, None])}, ("bytes", "object")),
        ({"start": np.array([0.0, -1.0, 0.0])}, ("start", "[1]", "-1")),
        ({"start": np.zeros(2)}, ("start", "shape (2,)")),
        ({"src": np.array([0.0, 1.0, 0.5])}, ("src", "float64")),
        ({"src": np.array([0, -1, 0])}, ("src", "[1]", "-1")),
        ({"src": np.array([0, 2**63, 0], dtype=np.uint64)}, ("src", "[1]")),
        ({"path": np.array([[0, 6], [1, 8], [0, 7]])}, ("path", "[1, 1] is 8", "0 to 7")),
        ({"path": np.array([[0, 6], [1, -2], [0, 7]])}, ("path", "[1, 1] is -2")),
        ({"path": np.array([[0, 6], [-1, -1], [0, 7]])}, ("path", "row 1")),
        ({"path": np.array([[0, 6], [1, 6]])}, ("path", "shape (2, 2)")),
        ({"path": np.array([0, 1, 2])}, ("path", "shape (3,)")),
        ({"path": np.array([[0.0], [1.0], [0.0]])}, ("path", "float64")),
        ({"cap": np.array([10e9] * 7 + [0.0])}, ("cap", "[7]")),
        ({"cap": np.array([10e9] * 7 + [5e-324])}, ("cap", "[7]", "from 1e-30 to 1e+30")),
        ({"cap": np.array([10e9] * 7 + [1e-300])}, ("cap", "[7]")),
        ({"cap": np.array([10e9] * 7 + [1e300])}, ("cap", "[7]")),
        ({"cap": np.array([10e9] * 7 + [np.longdouble("1e4000")])}, ("cap", "[7]")),
        ({"bytes": np.array([1.0, 1e300, 0.0])}, ("bytes", "[1]", "0, or from 1e-30 to 1e+30")),
        ({"bytes": np.array([1.0, 5e-324, 0.0])}, ("bytes", "[1]")),
        ({"start": np.array([0.0, 1e300, 0.0])}, ("start", "[1]")),
        ({"cap": None}, ("cap", "missing")),
        ({"path": None}, ("path", "missing")),
        ({"path": None, "cap": None, "dst": None}, ("dst", "missing")),
    ],
)
def test_bad_arrays_are_named(tmp_path: Path, changes: dict[str, Any], words: tuple[str, ...]) -> None:
    file = _write(tmp_path, **changes)
    with pytest.raises(InputError) as caught:
        flowlist.load(file)
    for word in (str(file), *words):
        assert word in str(caught.value)


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        flowlist.load(_write(tmp_path, start=np.array([0.0, -1.0, 0.0]), src=np.zeros(3)))
    assert len(caught.value.problems) == 2


def test_a_device_that_the_pod_does_not_have(tmp_path: Path) -> None:
    flows = flowlist.load(_write(tmp_path, dst=np.array([2, 2, 4])))
    with pytest.raises(InputError, match=r"flow 2 names device 4, .* has 4"):
        flowlist.run(flows, fabrics.load(CROSSBAR), 0.0)


def test_a_file_without_a_fabric_needs_a_topology(tmp_path: Path) -> None:
    flows = flowlist.load(_write(tmp_path, path=None, cap=None))
    with pytest.raises(InputError, match="no fabric of its own"):
        flowlist.run(flows, None, 0.0)


def test_a_file_without_devices_needs_its_own_fabric(tmp_path: Path) -> None:
    flows = flowlist.load(_write(tmp_path, src=None, dst=None))
    assert flowlist.run(flows, None, 0.0).ignored == ()
    with pytest.raises(InputError, match="devices"):
        flowlist.run(flows, fabrics.load(CROSSBAR), 0.0)


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9, 0.99])
def test_truncated_files(tmp_path: Path, kept: float) -> None:
    file = _write(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(kept * len(whole))])
    with pytest.raises(InputError, match=r"flows\.npz"):
        flowlist.load(file)


def test_a_flipped_byte_is_noticed(tmp_path: Path) -> None:
    file = _write(tmp_path)
    whole = bytearray(file.read_bytes())
    at = whole.index(np.float64(10e9).tobytes())
    whole[at] ^= 1
    file.write_bytes(bytes(whole))
    with pytest.raises(InputError, match=r"flows\.npz"):
        flowlist.load(file)


def test_a_header_may_not_promise_more_than_it_holds(tmp_path: Path) -> None:
    file = tmp_path / "flows.npz"
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (100000000000,), }"
    header = header.ljust(117) + b"\n"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(
            "bytes.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(8)
        )
    with pytest.raises(InputError, match="`bytes` declares 800000000000 bytes and holds 8"):
        flowlist.load(file)


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "sprung"),)

    file = tmp_path / "flows.npz"
    np.savez(file, bytes=np.array([Trap()], dtype=object))
    with pytest.raises(InputError, match="object"):
        flowlist.load(file)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("content", [b"", b"not a zip", b"\x93NUMPY\x01\x00"])
def test_files_that_are_no_npz(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "flows.npz"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"flows\.npz"):
        flowlist.load(file)


def test_a_missing_file_and_a_directory(tmp_path: Path) -> None:
    for file in (tmp_path / "absent.npz", tmp_path):
        with pytest.raises(InputError, match=str(file)):
            flowlist.load(file)


def test_finish_times_are_saved_whole_or_not_at_all(tmp_path: Path) -> None:
    found = flowlist.run(flowlist.load(_write(tmp_path)), None, 0.0)
    flowlist.save(tmp_path / "out.npz", found)
    assert np.load(tmp_path / "out.npz")["finish_s"].tolist() == found.finish.tolist()
    with pytest.raises(InputError, match="absent"):
        flowlist.save(tmp_path / "absent" / "out.npz", found)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["flows.npz", "out.npz"]


@pytest.mark.parametrize("tolerance", [-0.1, 1.0, 2.0])
def test_a_tolerance_of_all_or_more_is_refused(tmp_path: Path, tolerance: float) -> None:
    with pytest.raises(InputError, match="less than 100%"):
        flowlist.run(flowlist.load(_write(tmp_path)), None, tolerance)


RAILS = {
    "moesim": 1,
    "fabric": {
        "kind": "rails",
        "hosts": 2,
        "devices_per_host": 2,
        "scale_up": {"kind": "mesh", "capacity": "100GB/s", "latency": "0us"},
        "nic": {"capacity": "50GB/s", "message_rate": "1M/s", "latency": "0us"},
        "spine": {"chips": 1},
        "source": "example",
        "grade": "assumed",
    },
}


def _over_rails(folder: Path, size: float, flows: int = 100, **changes: Any) -> flowlist.FlowResult:
    """Flows from device 0 to device 2, on the other host, over a NIC of 50 GB/s and one message a microsecond."""
    arrays = {
        "src": np.zeros(flows, dtype=np.int64),
        "dst": np.full(flows, 2),
        "bytes": np.full(flows, size),
        "start": None,
        "path": None,
        "cap": None,
    }
    return flowlist.run(flowlist.load(_write(folder, **(arrays | changes))), fabrics.load(RAILS), 0.0)


def test_small_flows_take_the_time_of_their_messages(tmp_path: Path) -> None:
    """100 messages at 1 M/s; 500 B take a hundredth of that on the wire, 500 kB ten times as long."""
    assert _over_rails(tmp_path, 500.0).makespan == pytest.approx(100e-6, rel=1e-12)
    assert _over_rails(tmp_path, 500e3).makespan == pytest.approx(1e-3, rel=1e-12)


def test_a_flow_may_be_many_messages(tmp_path: Path) -> None:
    found = _over_rails(tmp_path, 500.0, messages=np.arange(100) + 1)
    assert found.makespan == pytest.approx(5050e-6, rel=1e-12)
    assert found.ignored == ()
    assert _over_rails(tmp_path, 500.0, messages=np.zeros(100)).makespan == pytest.approx(1e-6, rel=1e-12)


def test_bytes_and_messages_are_shared_at_once(tmp_path: Path) -> None:
    """Fair in bytes: while both send, 1 B of each takes 2 B of the wire and 1/100 of a message; then one is left."""
    found = _over_rails(tmp_path, 0.0, flows=2, bytes=np.array([100.0, 1e6]))
    # The messages of the small one end with it: 100 B of each, at 1 message in 100 B and one in 1e6 B.
    rate = min(25e9, 1e6 / (1 / 100 + 1 / 1e6))
    first = 100.0 / rate
    assert found.finish[0] == pytest.approx(first, rel=1e-12)
    assert found.finish[1] == pytest.approx(first + (1e6 - 100) / 50e9, rel=1e-12)


def test_messages_cost_nothing_within_a_host_and_of_no_bytes(tmp_path: Path) -> None:
    assert _over_rails(tmp_path, 500.0, dst=np.ones(100, dtype=np.int64)).makespan == pytest.approx(500e-9)
    assert _over_rails(tmp_path, 0.0).makespan == 0.0


def test_messages_without_effect_are_named(tmp_path: Path) -> None:
    ones = np.ones(3)
    assert "messages" in flowlist.run(flowlist.load(_write(tmp_path, messages=ones)), None, 0.0).ignored
    over = flowlist.run(flowlist.load(_write(tmp_path, messages=ones)), fabrics.load(CROSSBAR), 0.0)
    assert "messages" in over.ignored
    with pytest.raises(InputError, match="`messages`"):
        flowlist.load(_write(tmp_path, messages=-ones))
