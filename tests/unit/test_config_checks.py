"""Rules between the keys of one job file."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve

from rolecall.config.checks import job_faults, role_faults
from rolecall.config.specs import (
    BatchSection,
    GatewaySection,
    JobConfig,
    JobSection,
    ModelConfig,
    PlacementSection,
    RoleConfig,
    SinkSection,
    TrainingConfig,
)

MODELS = {"math": ModelConfig(source="a", engine="e"), "code": ModelConfig(source="b", engine="e")}


def job(gateway: GatewaySection | None = None, batch: BatchSection | None = None) -> JobConfig:
    return JobConfig(
        job=JobSection(name="job"),
        placement=PlacementSection(mode="m"),
        roles={"role": RoleConfig(models=MODELS)},
        sink=SinkSection(name="s"),
        gateway=gateway or GatewaySection(),
        batch=batch,
    )


def gateway_faults(**gateway: object) -> list[tuple]:
    return [fault.path for fault in job_faults(job(GatewaySection(**gateway)), Path("job.toml"))]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_loopback_needs_no_token(host):
    assert gateway_faults(host=host) == []


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "head.example", "localhost.example", "", "[::1]"]
)
def test_other_hosts_need_a_token_or_a_clear_word(host):
    assert gateway_faults(host=host) == [("gateway", "host")]
    assert gateway_faults(host=host, bearer_token_env="") == [("gateway", "host")]
    assert gateway_faults(host=host, bearer_token_env="TOKEN") == []
    assert gateway_faults(host=host, allow_unauthenticated=True) == []


def test_the_prompts_file_must_be_there(tmp_path):
    file = tmp_path / "folder" / "job.toml"

    def messages(prompts: str) -> list[str]:
        return [fault.message for fault in job_faults(job(batch=BatchSection(prompts=prompts)), file)]

    assert messages("p.jsonl") == [
        f"the file {tmp_path}/folder/p.jsonl does not exist; "
        "a relative path starts from the job file's folder"
    ]
    (tmp_path / "folder").mkdir()
    assert messages(".")[0].endswith("neither a saved dataset (state.json) nor one of *.parquet files")
    (tmp_path / "folder" / "p.jsonl").write_text("")
    assert messages("p.jsonl") == []
    assert messages(str(tmp_path / "folder" / "p.jsonl")) == []


def test_columns_name_fields_of_a_prompt(tmp_path):
    (tmp_path / "p.jsonl").write_text("")

    def found(**columns: str) -> dict[tuple, str]:
        batch = BatchSection(prompts="p.jsonl", columns=columns)
        return {fault.path: fault.message for fault in job_faults(job(batch=batch), tmp_path / "job.toml")}

    assert found(prompt="question") == {}
    assert found(prompt="question", anwser="gold")["batch", "columns", "anwser"].startswith(
        'is no field of a prompt; did you mean "answer"?'
    )
    assert found(answer="gold") == {("batch", "columns"): "must say which one is the prompt"}


def faults(**role: object) -> dict[tuple, str]:
    return {
        fault.path: fault.message for fault in role_faults(RoleConfig(models=MODELS, **role), ("roles", "r"))
    }


def test_names_that_lead_to_models_are_fine():
    assert (
        faults(default_model="math", aliases={"x": "math"}, route_keys={"data": "code", "math": "math"}) == {}
    )


def test_names_that_lead_nowhere_are_told():
    assert faults(default_model="mth", aliases={"x": "y"}, route_keys={"data": "codes"}) == {
        (
            "roles",
            "r",
            "default_model",
        ): '"mth" is not a model of this role; did you mean "math"? Models: math, code',
        ("roles", "r", "aliases", "x"): '"y" is not a model of this role. Models: math, code',
        ("roles", "r", "route_keys", "data"): '"codes" is not a model of this role; did you mean "code"? '
        "Models: math, code",
    }


def test_an_alias_of_an_alias_is_told():
    assert faults(aliases={"a": "math", "b": "a"}) == {
        ("roles", "r", "aliases", "b"): '"a" is an alias; write the model it stands for'
    }


def test_an_alias_must_not_hide_a_model():
    assert faults(aliases={"math": "code"}) == {
        ("roles", "r", "aliases", "math"): "is the name of a model, so it can't be an alias too; "
        "give the alias another name"
    }


@pytest.mark.parametrize("name", ["", " ", "math ", "\tmath"])
def test_names_have_no_blanks_around_them(name):
    assert ("roles", "r", "route_keys", name) in faults(route_keys={name: "math"})
    assert ("roles", "r", "aliases", name) in faults(aliases={name: "math"})
    role = RoleConfig(models={name: MODELS["math"]})
    assert [fault.path for fault in role_faults(role, ("roles", "r"))] == [("roles", "r", "models", name)]


ACTOR = TrainingConfig(devices=4)


def training_faults(**training: TrainingConfig) -> dict[tuple, str]:
    config = evolve(job(), training=training)
    return {fault.path: fault.message for fault in job_faults(config, Path("job.toml"))}


def test_training_roles_that_stand_alone_or_on_another_are_fine():
    reference = TrainingConfig(on="actor")
    critic = TrainingConfig(devices=2, offload=True)
    assert training_faults(actor=ACTOR, reference=reference, critic=critic) == {}
    assert training_faults(actor=ACTOR, reference=TrainingConfig(on="actor", devices=4)) == {}


@pytest.mark.parametrize(
    ("training", "path", "message"),
    [
        ({"role": ACTOR}, ("training", "role"), "the name of an inference role"),
        ({" actor": ACTOR}, ("training", " actor"), "without blanks around it"),
        ({"actor": TrainingConfig()}, ("training", "actor", "devices"), "is needed, or on"),
        (
            {"actor": ACTOR, "reference": TrainingConfig(on="acter")},
            ("training", "reference", "on"),
            '"acter" is no other training role; did you mean "actor"? Training roles: actor',
        ),
        ({"actor": TrainingConfig(on="actor")}, ("training", "actor", "on"), "no others"),
        (
            {"a": ACTOR, "b": TrainingConfig(on="a"), "c": TrainingConfig(on="b")},
            ("training", "c", "on"),
            'is itself on "a"',
        ),
        (
            {"actor": ACTOR, "critic": TrainingConfig(on="actor", devices=5)},
            ("training", "critic", "devices"),
            'more than the 4 of "actor"',
        ),
        (
            {"actor": ACTOR, "critic": TrainingConfig(on="actor", offload=True)},
            ("training", "critic", "offload"),
            "one process sleeps as a whole",
        ),
    ],
)
def test_training_roles_that_make_no_sense_are_refused(training, path, message):
    faults = training_faults(**training)
    assert list(faults) == [path]
    assert message in faults[path]


def test_nodes_stand_instead_of_devices():
    config = evolve(job(), placement=PlacementSection(mode="m", devices=8, nodes=(4, 4)))
    assert [fault.path for fault in job_faults(config, Path("job.toml"))] == [("placement", "nodes")]
