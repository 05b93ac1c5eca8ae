"""``rolecall plan`` with other values than the file's, and with a layout in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rolecall.cli.plan import plan

ROLES = """
[roles.rollout.models.policy]
source = "/models/policy"
engine = "embedded"
replicas = 4

[roles.teacher.models.large]
source = "/models/large"
engine = "embedded"
replicas = 2

[training.actor]
devices = 8
offload = true

[sink]
name = "jsonl"
"""

JOB = (
    """
[job]
name = "job"

[placement]
mode = "split"
resource = "device_slot"
devices = 8
devices_per_node = 8
"""
    + ROLES
)

IN_SHORT = JOB.replace('mode = "split"', 'layout = "rollout[1/2] + teacher[1/4] -> actor[*]"')


def run(tmp_path: Path, job: str, *options: str) -> Result:
    file = tmp_path / "job.toml"
    file.write_text(job)
    return CliRunner().invoke(plan, [str(file), *options], catch_exceptions=False)


def planned(tmp_path: Path, job: str, *options: str) -> dict[str, object]:
    result = run(tmp_path, job, *options, "--json")
    assert result.exit_code == 0, result.stdout
    return json.loads(result.stdout)


def shape(tmp_path: Path, *options: str, job: str = JOB) -> tuple[str, list[str]]:
    """The mode and, for each pool, its nodes."""
    found: dict[str, object] = planned(tmp_path, job, *options)
    pools = found["pools"]
    assert isinstance(pools, list)
    runs = [
        " + ".join(f"{run['count']}×{run['devices']}" for run in pool["nodes"])  # type: ignore[index]
        for pool in pools
    ]
    return str(found["mode"]), runs


# --- other values ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        ((), "1×8"),
        (("--gpus", "16"), "2×8"),
        (("--devices", "16"), "2×8"),
        (("--gpus", "12", "--gpus-per-node", "4"), "3×4"),
        (("--devices-per-node", "4"), "2×4"),
        (("--nodes", "4,8,4"), "1×8 + 2×4"),
        (("--set", "placement.devices=9"), "1×8 + 1×1"),
        (("--gpus", "16", "--set", "placement.devices=24"), "3×8"),
    ],
)
def test_the_devices_are_others(tmp_path, options, nodes):
    assert shape(tmp_path, *options) == ("split", [nodes])


def test_a_number_of_devices_takes_the_place_of_nodes(tmp_path):
    job = JOB.replace("devices = 8\ndevices_per_node = 8\n", "nodes = [8, 4]\n", 1)
    assert shape(tmp_path, job=job) == ("split", ["1×8 + 1×4"])
    assert shape(tmp_path, "--gpus", "16", job=job) == ("split", ["2×8"])
    alone = run(tmp_path, job, "--gpus-per-node", "4")
    assert alone.exit_code == 2
    assert "add --gpus, or write --nodes" in alone.stderr


def test_any_key_is_another(tmp_path):
    found = planned(
        tmp_path,
        JOB,
        "--set",
        'placement.mode="defer"',
        "--set",
        "roles.teacher.models.large.devices_per_engine=4",
        "--set",
        "training.actor.devices=4",
    )
    replicas = found["replicas"]
    assert isinstance(replicas, list)
    assert [r["bundles"] for r in replicas if r["role"] == "teacher"] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert found["mode"] == "defer"


def test_what_is_wrong_with_it_is_told_by_its_option(tmp_path):
    result = run(tmp_path, JOB, "--gpus", "0", "--set", "roles.rollout.models.policy.replica=4")
    assert result.exit_code == 2
    assert "  --gpus: placement.devices: must be greater than 0, found 0\n" in result.stderr
    assert "  --set: roles.rollout.models.policy.replica: is not a known key" in result.stderr
    told = json.loads(run(tmp_path, JOB, "--set", "placement.mode=split", "--json").stdout)
    assert told["problems"] == [
        {
            "file": "--set",
            "line": None,
            "key": "placement.mode",
            "message": '"split" is no TOML value; text needs quotes: --set \'placement.mode="split"\'',
        }
    ]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--nodes", "8;4"), "'8;4' is not how many devices each node has, as in 8,8,4"),
        (("--nodes", "8", "--gpus", "8"), "--nodes says it all; leave --gpus and --gpus-per-node out"),
        (("--nodes", "8", "--gpus-per-node", "8"), "--nodes says it all"),
        (("--gpus", "many"), "'many' is not a valid integer"),
    ],
)
def test_options_that_make_no_sense_are_a_usage_error(tmp_path, options, told):
    result = run(tmp_path, JOB, *options)
    assert result.exit_code == 2
    assert told in result.stderr


def test_a_plugin_that_an_option_names_is_looked_for_like_the_file_s(tmp_path):
    result = run(tmp_path, JOB, "--set", 'placement.mode="splt"')
    assert (
        '--set: placement.mode: placement mode "splt" is not installed; did you mean "split"?'
        in result.stderr
    )


# --- a layout in one line ---------------------------------------------------------------------


def test_a_layout_is_planned_like_the_keys_it_stands_for(tmp_path):
    in_short = planned(tmp_path, IN_SHORT)
    assert in_short.pop("explicit") == {
        "placement.mode": "split",
        "placement.devices": 8,
        "roles.rollout.models.policy.replicas": 4,
        "roles.teacher.models.large.replicas": 2,
        "training.actor.devices": 8,
    }
    assert in_short == planned(tmp_path, JOB)


def test_the_keys_it_stands_for_are_printed_and_are_such_a_job_file(tmp_path):
    shown = run(tmp_path, IN_SHORT, "--set", "placement.devices=16").stdout
    explicit = shown.split("\nplacement.layout stands for:\n\n")[1]
    assert explicit.splitlines() == [
        '  placement.mode = "split"',
        "  placement.devices = 16",
        "  roles.rollout.models.policy.replicas = 8",
        "  roles.teacher.models.large.replicas = 4",
        "  training.actor.devices = 16",
    ]
    options = [word for line in explicit.splitlines() for word in ("--set", line.strip())]
    again = run(tmp_path, JOB, *options).stdout
    assert again.strip() == shown.split("\nplacement.layout")[0].strip()


@pytest.mark.parametrize(
    ("layout", "mode", "nodes"),
    [
        ("rollout[1/2] + teacher[1/2] -> actor[*]", "split", ["1×8"]),
        ("rollout[*] -> teacher[1/2] -> actor[*]", "defer", ["1×8"]),
        ("rollout[4] | teacher[2] | actor[2]", "decoupled", ["1×2", "1×4", "1×2"]),
    ],
)
def test_a_layout_on_the_command_line_chooses_the_mode(tmp_path, layout, mode, nodes):
    assert shape(tmp_path, "--layout", layout)[0] == mode
    assert sorted(shape(tmp_path, "--layout", layout)[1]) == sorted(nodes)


def test_a_fault_in_the_file_s_layout_has_its_line_and_points_at_the_character(tmp_path):
    result = run(tmp_path, IN_SHORT.replace("teacher[1/4]", "techer[1/4]"))
    assert result.exit_code == 2
    assert result.stderr.endswith(
        f'  {tmp_path}/job.toml:6: placement.layout: "techer" is no role of this job;'
        ' did you mean "teacher"? Roles: rollout, teacher, actor\n'
        "      rollout[1/2] + techer[1/4] -> actor[*]\n"
        "                     ^\n"
    )


def test_a_fault_in_a_layout_on_the_command_line_is_told_with_all_others(tmp_path):
    job = JOB.replace('name = "jsonl"', 'name = "jsnl"')
    result = run(tmp_path, job, "--layout", "rollout[1/2] + teacher -> actor[*]")
    assert "2 problems:" in result.stderr
    assert "      rollout[1/2] + teacher -> actor[*]\n                             ^\n" in result.stderr
    assert 'batch sink "jsnl" is not installed' in result.stderr


def test_a_layout_leaves_the_trainer_s_devices_to_be_said_by_it(tmp_path):
    job = IN_SHORT.replace("devices = 8\noffload", "offload")
    assert planned(tmp_path, job) == planned(tmp_path, IN_SHORT)
    result = run(tmp_path, job.replace("rollout[1/2]", "rollout[1/2"))
    assert "1 problem:" in result.stderr


def test_a_job_without_mode_and_layout_is_told_of_both(tmp_path):
    result = run(tmp_path, JOB.replace('mode = "split"\n', ""))
    assert result.exit_code == 2
    assert "job.toml:5: placement.mode: is missing; it must be text: the name of a placement mode." in (
        result.stderr
    )
    assert "split" in result.stderr
    assert "Or write the layout: placement.layout" in result.stderr


def test_a_mode_that_is_not_installed_is_the_only_fault_beside_a_layout(tmp_path):
    result = run(tmp_path, IN_SHORT, "--set", 'placement.mode="splt"')
    assert "1 problem:" in result.stderr
    assert 'placement mode "splt" is not installed; did you mean "split"?' in result.stderr


# --- what would do -----------------------------------------------------------------------------

TIGHT = JOB.replace("devices = 8\ndevices_per_node = 8", "devices = 4\ndevices_per_node = 8", 1).replace(
    "devices = 8\noffload = true", "devices = 4"
)


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_set_that_is_none_is_told_the_same_with_suggestions_asked_for(tmp_path, options):
    wrong = ("--set", "placement.mode=split", *options)
    plain, asked = run(tmp_path, TIGHT, *wrong), run(tmp_path, TIGHT, *wrong, "--suggest")
    assert (asked.exit_code, asked.stdout, asked.stderr) == (plain.exit_code, plain.stdout, plain.stderr)
    assert asked.exit_code == 2


def suggested(tmp_path: Path, job: str, *options: str) -> dict[str, list[dict[str, object]]]:
    """For each mode the ways, as keys and values."""
    result = run(tmp_path, job, "--suggest", "--json", *options)
    assert result.exit_code == 2
    return {
        answer["mode"]: [{change["key"]: change["value"] for change in way} for way in answer["ways"]]
        for answer in json.loads(result.stdout)["suggestions"]
    }


def test_the_smallest_changes_are_listed_for_each_mode(tmp_path):
    offload = {"training.actor.offload": True}
    assert suggested(tmp_path, TIGHT) == {
        "split": [
            {**offload, "placement.devices": 6},
            {**offload, "roles.rollout.models.policy.replicas": 2},
        ],
        "decoupled": [{"placement.mode": "decoupled", "placement.devices": 10}],
        "defer": [{"placement.mode": "defer", **offload}],
    }


def test_each_suggestion_makes_the_job_feasible_and_none_of_its_changes_can_be_spared(tmp_path):
    options = [
        [f"--set={key}={json.dumps(value)}" for key, value in way.items()]
        for ways in suggested(tmp_path, TIGHT).values()
        for way in ways
    ]
    for changes in options:
        assert run(tmp_path, TIGHT, *changes).exit_code == 0
        for change in changes:
            assert run(tmp_path, TIGHT, *(other for other in changes if other != change)).exit_code == 2


def test_what_the_command_line_says_stays_as_it_is(tmp_path):
    found = suggested(tmp_path, TIGHT, "--gpus", "4", "--set", 'placement.mode="split"')
    assert found == {
        "split": [{"roles.rollout.models.policy.replicas": 2, "training.actor.offload": True}],
    }


def test_changes_of_a_layout_in_one_line_are_of_the_keys_it_stands_for(tmp_path):
    layout = 'layout = "rollout[1/2] + teacher[1/2] -> actor[*]"'
    job = TIGHT.replace('mode = "split"', layout)
    assert suggested(tmp_path, job)["split"] == [
        {
            "placement.layout": None,
            "placement.mode": "split",
            "roles.rollout.models.policy.replicas": 2,
            "training.actor.offload": True,
        }
    ]


def test_suggestions_as_text_can_be_typed(tmp_path):
    result = run(tmp_path, TIGHT, "--suggest")
    assert result.exit_code == 2
    assert "[pool-too-small]" in result.stderr
    assert result.stdout.startswith("""
The smallest changes with which it can, in each mode:

mode split
  placement.devices = 6          now 4
  training.actor.offload = true  now false
  or
  roles.rollout.models.policy.replicas = 2  now 4
  training.actor.offload = true             now false

mode decoupled
  placement.mode = "decoupled"  now "split"
  placement.devices = 10        now 4
""")


def test_where_nothing_will_do_the_reasons_are_named(tmp_path):
    without_reward = TIGHT.replace("roles.teacher", "roles.genrm")
    result = run(tmp_path, without_reward, "--suggest", "--set", 'placement.mode="defer"')
    assert result.stdout.endswith(
        "in each mode:\n\nmode defer: no change of values lifts role-never-awake, training-not-offloaded\n"
    )


def test_a_feasible_job_is_planned_as_ever_and_a_wrong_file_is_told_as_ever(tmp_path):
    assert run(tmp_path, JOB, "--suggest").stdout == run(tmp_path, JOB).stdout
    wrong = JOB.replace("[sink]", "[snk]")
    assert run(tmp_path, wrong, "--suggest", "--json").stdout == run(tmp_path, wrong, "--json").stdout
