from __future__ import annotations

from pathlib import Path

import pytest

from moesim import resources
from moesim.errors import InputError

KINDS = ("topology", "scenario", "models", "calibration", "trace", "sources", "measurements")


@pytest.mark.parametrize("kind", KINDS)
def test_every_shipped_name_is_found(kind: str) -> None:
    names = resources.names(kind)
    assert names == sorted(names)
    assert all(resources.find(kind, name).is_file() for name in names)


def test_files_that_share_a_folder_keep_their_kinds() -> None:
    assert resources.names("models") == ["models"]
    assert resources.names("sources") == ["sources"]
    assert "models" not in resources.names("scenario")
    assert "sources" not in resources.names("topology")


def test_an_unknown_name_suggests_a_near_one() -> None:
    with pytest.raises(InputError) as caught:
        resources.find("topology", "cloudmatrix38")
    (problem,) = caught.value.problems
    assert "unknown topology 'cloudmatrix38'" in problem.message
    assert "did you mean 'cloudmatrix384'" in (problem.legal or "")


def test_a_path_is_taken_from_the_current_folder_then_from_the_referring_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    (there / "pod.yaml").write_text("moesim: 1\n")
    monkeypatch.chdir(here)
    assert resources.find("topology", "pod.yaml", base=there) == there / "pod.yaml"
    with pytest.raises(InputError, match="file not found"):
        resources.find("topology", "pod.yaml")
    (here / "pod.yaml").write_text("moesim: 1\n")
    assert resources.find("topology", "pod.yaml", base=there) == Path("pod.yaml")


@pytest.mark.parametrize("name", ["no/such.yaml", "x" * 3000 + ".yaml", "a\0b.yaml"])
def test_a_missing_path(name: str) -> None:
    with pytest.raises(InputError, match="topology file not found"):
        resources.find("topology", name)


def test_an_installed_wheel_uses_its_own_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "moesim"
    (package / "shipped" / "topologies").mkdir(parents=True)
    (package / "shipped" / "topologies" / "pod.yaml").write_text("moesim: 1\n")
    (tmp_path / "site-packages" / "topologies").mkdir()  # somebody else's
    monkeypatch.setattr(resources, "_PACKAGE", package)
    assert resources.names("topology") == ["pod"]
    assert resources.find("topology", "pod") == package / "shipped" / "topologies" / "pod.yaml"
