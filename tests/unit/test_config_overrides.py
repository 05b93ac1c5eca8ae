"""Values that take the place of a job file's own, and where what is wrong with them is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolecall.config.loader import load_config, source_of
from rolecall.config.overrides import Override, key_path, override, parse_override, toml_lines
from rolecall.config.source import Fault
from rolecall.errors import ConfigError

JOB = """\
[job]
name = "job"

[placement]
mode = "some"
devices = 8

[roles.judge.models.small]
source = "/models/small"
engine = "some"

[sink]
name = "some"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return path


def problems(file: Path, *assignments: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        load_config(file, [parse_override(text) for text in assignments])
    return [str(problem).replace(str(file), "job.toml") for problem in raised.value.problems]


# --- as text -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("placement.devices=16", ("placement", "devices"), 16),
        ("placement.nodes = [8, 4]", ("placement", "nodes"), [8, 4]),
        ('placement.mode="a=b"', ("placement", "mode"), "a=b"),
        ("roles.judge.models.\"Qwen=3\".source='/m'", ("roles", "judge", "models", "Qwen=3", "source"), "/m"),
        ("roles.judge.options={where = 1}", ("roles", "judge", "options"), {"where": 1}),
        ("training.actor.offload=true", ("training", "actor", "offload"), True),
    ],
)
def test_a_key_and_a_value_are_read_as_toml(text, path, value):
    assert parse_override(text) == Override(path, value, "--set")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("placement", '--set: "placement" is not KEY=VALUE, as in --set placement.devices=16'),
        ("=4", '--set: "=4" is not KEY=VALUE, as in --set placement.devices=16'),
        ("a..b=4", '--set: "a..b=4" is not KEY=VALUE, as in --set placement.devices=16'),
        (
            "placement.mode=split",
            '--set: placement.mode: "split" is no TOML value; text needs quotes:'
            " --set 'placement.mode=\"split\"'",
        ),
        ('a="x', '--set: a: "\\"x" is no TOML value'),
        ("a=1\nb=2", '--set: a: "1\\nb=2" is no TOML value; text needs quotes: --set \'a="1\\nb=2"\''),
    ],
)
def test_what_is_no_key_and_value_is_refused_with_what_to_write(text, told):
    with pytest.raises(ConfigError) as raised:
        parse_override(text)
    assert str(raised.value) == told


@pytest.mark.parametrize("text", ["", "a\nb", "a = 1\nb", "a.", "a b"])
def test_what_is_no_key_has_no_path(text):
    assert key_path(text) is None


def test_overrides_stand_in_a_job_file_as_they_are_written():
    path = ("roles", "judge", "models", "Qwen/Qwen3", "replicas")
    lines = [*toml_lines([Override(path, 2, ""), Override(("placement", "mode"), "some", "")])]
    assert lines == ['roles.judge.models."Qwen/Qwen3".replicas = 2', 'placement.mode = "some"']
    assert [parse_override(line).path for line in lines] == [path, ("placement", "mode")]


# --- in a table -----------------------------------------------------------------------------


def test_the_last_one_counts_and_the_table_stays_as_it_was():
    table = {"placement": {"devices": 8, "mode": "some"}}
    asked = override(
        table,
        [
            Override(("placement", "devices"), 16, "--gpus"),
            Override(("placement", "devices"), 32, "--set"),
            Override(("placement", "mode"), None, "--layout"),
            Override(("no", "such", "key"), None, "--layout"),
            Override(("training", "actor", "devices"), 4, "--set"),
        ],
    )
    assert asked.table == {"placement": {"devices": 32}, "training": {"actor": {"devices": 4}}}
    assert table == {"placement": {"devices": 8, "mode": "some"}}
    assert asked.origins == {
        ("placement", "devices"): "--set",
        ("training",): "--set",
        ("training", "actor"): "--set",
        ("training", "actor", "devices"): "--set",
    }


def test_a_file_is_read_with_other_values(file):
    config = load_config(
        file, [parse_override("placement.devices=16"), parse_override("roles.judge.devices=1")]
    )
    assert config.placement.devices == 16
    assert config.roles["judge"].devices == 1
    assert load_config(file).placement.devices == 8


def test_what_is_wrong_is_told_where_it_comes_from(file):
    file.write_text(JOB.replace("devices = 8", 'devices = "8"'))
    assert problems(file, "roles.judge.models.small.cards=4", "placement.devces=3") == [
        "--set: placement.devces: is not a known key. Allowed: mode, resource, devices, devices_per_node,"
        " nodes, layout",
        "--set: roles.judge.models.small.cards: is not a known key. Allowed: source, engine, replicas,"
        " max_replicas, external_replicas, prefill_replicas, devices_per_engine, tensor_parallel,"
        " pipeline_parallel, weight_source, served_model_name, engine_options",
        'job.toml:6: placement.devices: must be a whole number, found "8" (text); write it without quotes',
    ]


def test_a_table_that_an_override_made_is_its_own(file):
    assert problems(file, "roles.judge.models.large.replicas=2") == [
        "--set: roles.judge.models.large.source: is missing; it must be text",
        "--set: roles.judge.models.large.engine: is missing; it must be text",
    ]


def test_a_key_below_a_value_is_refused_with_the_value(file):
    assert problems(file, "placement.mode.name=1") == [
        "job.toml:5: placement.mode: is no table, so placement.mode.name can't be set"
    ]


def test_lines_are_kept_for_what_the_file_says_itself(file):
    overrides = [parse_override("placement.devices=16")]
    source = source_of(load_config(file, overrides), file, overrides)
    error = source.error(
        Fault(path=path, message="wrong") for path in [("placement", "mode"), ("placement", "devices")]
    )
    assert {(problem.file, problem.line) for problem in error.problems} == {(str(file), 5), ("--set", None)}
    other = source_of(load_config(file), file, overrides)
    assert other.error([Fault(path=("placement", "mode"), message="wrong")]).problems[0].line is None


# --- gpus, as people with GPUs say -------------------------------------------------------------


@pytest.mark.parametrize(
    ("assignments", "replicas", "per_engine"),
    [
        (["roles.judge.models.small.gpus=4"], 4, 1),
        (["roles.judge.models.small.gpus_per_engine=2", "roles.judge.models.small.gpus=4"], 2, 2),
        (["roles.judge.models.small.devices_per_engine=4", "roles.judge.models.small.gpus=4"], 1, 4),
    ],
)
def test_a_models_gpus_are_as_many_replicas_as_they_are_engines(file, assignments, replicas, per_engine):
    config = load_config(file, [parse_override(text) for text in assignments])
    model = config.roles["judge"].models["small"]
    assert (model.replicas, model.devices_per_engine) == (replicas, per_engine)


def test_elsewhere_gpus_are_devices(file):
    asked = ["placement.gpus=4", "placement.gpus_per_node=2", "roles.judge.gpus=3", "training.actor.gpus=4"]
    config = load_config(file, [parse_override(text) for text in asked])
    assert (config.placement.devices, config.placement.devices_per_node) == (4, 2)
    assert (config.roles["judge"].devices, config.training["actor"].devices) == (3, 4)


@pytest.mark.parametrize("value", ["3", "true", "0.5", "'two'"])
def test_gpus_that_are_no_whole_engines_are_refused(file, value):
    per_engine = "roles.judge.models.small.devices_per_engine=2"
    (problem,) = problems(file, per_engine, f"roles.judge.models.small.gpus={value}")
    assert problem.startswith("--set: roles.judge.models.small.gpus: ")
    assert "can't be divided into engines of 2; give a multiple" in problem
