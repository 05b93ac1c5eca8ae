"""Job files as users write them: what loads, and what each mistake gets told."""

from __future__ import annotations

import pickle
from pathlib import Path
from textwrap import dedent

import pytest
from attrs import field, frozen, validators

from rolecall.config.loader import load_config, structure_options
from rolecall.config.specs import JobConfig
from rolecall.errors import ConfigError

GOOD = """\
[job]
name = "quick-start"

[placement]
mode = "shared"
resource = "device_slot"
devices = 2

[roles.judge.models."Qwen/Qwen3"]
source = "/models/judge"
engine = "engine"

[sink]
name = "files"
"""


@pytest.fixture
def job_file(tmp_path, monkeypatch):
    """Write ``job.toml`` in the working folder; return its (relative) path."""
    monkeypatch.chdir(tmp_path)

    def write(text: str | bytes) -> Path:
        content = text if isinstance(text, bytes) else dedent(text).encode()
        (tmp_path / "job.toml").write_bytes(content)
        return Path("job.toml")

    return write


def problems(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value).splitlines() == [str(problem) for problem in caught.value.problems]
    return [str(problem) for problem in caught.value.problems]


def test_a_good_file_loads_with_defaults(job_file):
    config = load_config(job_file(GOOD))
    assert config.job.name == "quick-start"
    assert config.placement.devices == 2
    assert config.roles["judge"].models["Qwen/Qwen3"].replicas == 1
    assert config.cluster.address == "local"
    assert config.batch is None


def test_the_config_can_be_sent_to_actors(job_file):
    config = load_config(job_file(GOOD))
    assert pickle.loads(pickle.dumps(config)) == config


def test_the_shipped_example_loads():
    (example, *_) = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))
    assert isinstance(load_config(example), JobConfig)


def test_every_problem_at_once_with_file_line_and_key(job_file):
    path = job_file("""\
        [job]
        name = "Not A Name"
        observers = "console"

        [placement]
        devices = 0
        modes = "shared"

        [roles.judge]
        routing_polcy = "x"
        devices = true

        [roles.judge.models."Qwen/Qwen3"]
        engine = "engine"
        replicas = 1.5
        weight_source = "static"

        [rewards.exact]
        adapter = "exact"
        on_error = "zero"
    """)
    assert problems(path) == [
        "job.toml: sink: is missing; it must be a table",
        'job.toml:2: job.name: must match the pattern [a-z0-9][a-z0-9-]{0,39}, found "Not A Name"',
        'job.toml:3: job.observers: must be a list, found "console" (text); write ["console"]',
        "job.toml:6: placement.devices: must be greater than 0, found 0",
        'job.toml:7: placement.modes: is not a known key; did you mean "mode"? '
        "Allowed: mode, resource, devices, devices_per_node, nodes, layout",
        'job.toml:10: roles.judge.routing_polcy: is not a known key; did you mean "routing_policy"? '
        "Allowed: models, default_model, aliases, route_keys, routing_policy, router_options, devices, "
        "max_in_flight_per_replica, max_queued_per_replica, options",
        "job.toml:11: roles.judge.devices: must be a whole number, found true (true or false)",
        'job.toml:13: roles.judge.models."Qwen/Qwen3".source: is missing; it must be text',
        'job.toml:15: roles.judge.models."Qwen/Qwen3".replicas: must be a whole number, found 1.5 (a number)',
        'job.toml:16: roles.judge.models."Qwen/Qwen3".weight_source: must be one of "STATIC", "ACTOR", '
        '"DCS", found "static" (text); did you mean "STATIC"?',
        'job.toml:20: rewards.exact.on_error: must be one of "fail_batch", "drop_sample", "retry", '
        'found "zero" (text)',
    ]


def test_an_empty_table_of_roles_is_refused(job_file):
    without_roles = GOOD[: GOOD.index("[roles")] + "[roles]\n" + GOOD[GOOD.index("[sink]") :]
    assert problems(job_file(without_roles)) == ["job.toml:9: roles: must have at least 1 entry, has 0"]


def test_an_empty_file_misses_all_that_is_required(job_file):
    assert [line.split(": ")[1] for line in problems(job_file(""))] == ["job", "placement", "roles", "sink"]


# --- files that can't be read -----------------------------------------------------------


def test_a_missing_file_says_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert problems(Path("no.toml")) == [
        f"no.toml: there is no such file (looked for {tmp_path / 'no.toml'})"
    ]


def test_a_folder_is_refused(tmp_path):
    assert problems(tmp_path) == [f"{tmp_path}: is a folder; a job file is one TOML file"]


def test_a_path_through_a_file_is_refused(job_file):
    path = job_file(GOOD) / "job.toml"
    assert problems(path) == ["job.toml/job.toml: can't be read: Not a directory"]


def test_other_encodings_are_refused_with_the_line(job_file):
    path = job_file(GOOD.replace("quick-start", "schön").encode("latin-1"))
    (problem,) = problems(path)
    assert problem.startswith("job.toml:2: is not UTF-8 text (")


def test_a_byte_order_mark_is_no_problem(job_file):
    assert load_config(job_file(b"\xef\xbb\xbf" + GOOD.encode())).job.name == "quick-start"


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("[job\n", "job.toml:1: not valid TOML: "),
        ("[job]\nname = 'a'\nname = 'b'\n", "job.toml:3: not valid TOML: "),
        ('[job]\n\nname = """\n', "job.toml:3: not valid TOML: "),
        ("x = " + "[" * 100_000, "job.toml: not valid TOML: nested too deeply"),
    ],
)
def test_syntax_errors_have_their_line(job_file, text, start):
    (problem,) = problems(job_file(text))
    assert problem.startswith(start)
    assert "(at " not in problem


def test_text_without_quotes_gets_a_hint(job_file):
    (problem,) = problems(job_file("[placement]\nmode = split\n"))
    assert problem == 'job.toml:2: not valid TOML: Invalid value, column 8 (text needs quotes: key = "text")'


# --- plugin options ---------------------------------------------------------------------


@frozen(kw_only=True)
class Options:
    folder: str
    depth: int = field(default=1, validator=validators.gt(0))


def test_options_are_made_from_their_table():
    made = structure_options(Options, {"folder": "x"}, file="job.toml", key=("sink", "options"))
    assert made == Options(folder="x", depth=1)


def test_wrong_options_are_told_with_file_key_and_line():
    text = "[sink]\nname = 'files'\n[sink.options]\ndepth = 0\nfoldr = 'x'\n"
    table = {"depth": 0, "foldr": "x"}
    with pytest.raises(ConfigError) as caught:
        structure_options(Options, table, file="job.toml", key=("sink", "options"), text=text)
    assert str(caught.value).splitlines() == [
        "job.toml:4: sink.options.depth: must be greater than 0, found 0",
        'job.toml:5: sink.options.foldr: is not a known key; did you mean "folder"? Allowed: folder, depth',
    ]


def test_without_the_text_options_are_told_without_lines():
    with pytest.raises(ConfigError, match=r"^job.toml: sink.options.folder: is missing; it must be text$"):
        structure_options(Options, {}, file="job.toml", key=("sink", "options"))
