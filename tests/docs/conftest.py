"""The project's text files, and what is written in the Markdown among them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import frozen

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<kind>[\w-]*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


def project_files() -> Iterator[Path]:
    """Yield what git would track, without asking git: there may be none."""
    unseen = {"__pycache__", "dist", "build"}
    folders = [ROOT]
    while folders:
        for path in sorted(folders.pop().iterdir()):
            hidden = path.name.startswith(".") and path.name not in {".ci", ".gitignore"}
            if hidden or path.name in unseen or path.name.endswith(".egg-info"):
                continue
            if path.is_dir():
                folders.append(path)
            else:
                yield path


@frozen(kw_only=True)
class Block:
    """A fenced block; ``place`` is ``file:line`` of its fence."""

    place: str
    kind: str
    text: str


@frozen(kw_only=True)
class Page:
    """One Markdown file."""

    path: Path
    text: str

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def prose(self) -> str:
        """The text without fenced blocks."""
        return _FENCE.sub("", self.text)

    def blocks(self, *kinds: str) -> Iterator[Block]:
        for match in _FENCE.finditer(self.text):
            if match["kind"] in kinds:
                line = self.text.count("\n", 0, match.start()) + 1
                yield Block(place=f"{self.name}:{line}", kind=match["kind"], text=match["text"])

    def code_spans(self) -> list[str]:
        return _SPAN.findall(self.prose)


@pytest.fixture(scope="session")
def files() -> list[Path]:
    return list(project_files())


@pytest.fixture(scope="session")
def pages(files: list[Path]) -> list[Page]:
    markdown = [path for path in files if path.suffix == ".md"]
    return [Page(path=path, text=path.read_text(encoding="utf-8")) for path in markdown]
