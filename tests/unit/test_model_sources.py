"""Model sources: what may be written, local paths, the hub without a network."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rolecall.errors import ModelSourceError
from rolecall.model_sources import HubSource, LocalSource, PyPISource, fetch_model, parse_source

SHA = "ab" * 32


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("models/a.gguf", LocalSource(path="models/a.gguf")),
        ("/models/a b", LocalSource(path="/models/a b")),
        ("./pypi:x", LocalSource(path="./pypi:x")),
        ("pypi:My_Model==1.0", PyPISource(name="my-model", version="1.0")),
        (f"pypi:m==1.0#sha256={SHA.upper()}", PyPISource(name="m", version="1.0", sha256=SHA)),
        ("hf:org/name", HubSource(repo="org/name")),
        ("hf:org/name@v1.0", HubSource(repo="org/name", revision="v1.0")),
    ],
)
def test_sources_are_read(text: str, parsed: object) -> None:
    assert parse_source(text) == parsed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("pypi:model", "an exact version is needed"),
        ("pypi:model>=1", "an exact version is needed"),
        ("pypi:model==1.*", "an exact version is needed"),
        ("pypi:model==1#sha256=abc", "64 hex digits"),
        ("pypi:--index-url==1", "an exact version is needed"),
        ("hf:a/b/c", "hf:repo"),
        ("s3://bucket/x", "unknown scheme 's3'"),
    ],
)
def test_a_malformed_source_says_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(ModelSourceError, match=said):
        parse_source(text)


def test_a_local_path_starts_at_the_job_files_folder(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"x")
    assert fetch_model("model.gguf", base_dir=tmp_path) == tmp_path / "model.gguf"
    assert fetch_model(".", base_dir=tmp_path) == tmp_path
    with pytest.raises(ModelSourceError, match=str(tmp_path / "absent")):
        fetch_model("absent", base_dir=tmp_path)


def test_the_hub_library_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelSourceError, match="pip install huggingface_hub"):
        fetch_model("hf:org/name", base_dir=tmp_path, cache_dir=tmp_path)


def test_an_unreachable_hub_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")

    def unreachable(*_: object, **__: object) -> str:
        raise OSError("connection refused\nlong trace")

    monkeypatch.setattr(hub, "snapshot_download", unreachable)
    with pytest.raises(ModelSourceError, match=r"hf:org/name@main can't be fetched: connection refused\."):
        fetch_model("hf:org/name@main", base_dir=tmp_path, cache_dir=tmp_path)
    monkeypatch.setattr(hub, "snapshot_download", lambda repo, **_: str(tmp_path / repo))
    assert fetch_model("hf:org/name", base_dir=tmp_path, cache_dir=tmp_path) == tmp_path / "org/name"
