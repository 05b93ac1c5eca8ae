"""A layout in one line: how it is read, what it stands for, and where its faults are."""

from __future__ import annotations

from fractions import Fraction
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecall.config.overrides import toml_lines
from rolecall.config.specs import JobConfig
from rolecall.config.structure import structure
from rolecall.interfaces.placement_mode import Arrangement
from rolecall.placement.shorthand.explicit import explicit_form
from rolecall.placement.shorthand.notation import LayoutError, pointed, read_layout

MODES = {
    "pools": Arrangement.APART,
    "slices": Arrangement.SIDE_BY_SIDE,
    "turns": Arrangement.IN_TURN,
    "spiral": Arrangement.OTHER,
}


# --- reading ---------------------------------------------------------------------------------


def terms(text: str) -> list[list[list[tuple[str, str | None, int | Fraction]]]]:
    return [
        [[(term.role, term.model, term.share) for term in step] for step in steps]
        for steps in read_layout(text).pools
    ]


def test_side_by_side_binds_most_and_apart_least():
    assert terms("a[1/2] + b[1/4] -> c[*] | d[4]") == [
        [[("a", None, Fraction(1, 2)), ("b", None, Fraction(1, 4))], [("c", None, Fraction(1))]],
        [[("d", None, 4)]],
    ]


@pytest.mark.parametrize(
    ("text", "role", "model", "share"),
    [
        ("rollout[1/2]", "rollout", None, Fraction(1, 2)),
        ("  rollout [ 1 / 2 ]\n", "rollout", None, Fraction(1, 2)),
        ("rollout[2/4]", "rollout", None, Fraction(1, 2)),
        ("rollout[4/4]", "rollout", None, Fraction(1)),
        ("rollout[12]", "rollout", None, 12),
        ("genrm.judge[*]", "genrm", "judge", Fraction(1)),
        ('genrm."Qwen/Qwen3-8B"[1]', "genrm", "Qwen/Qwen3-8B", 1),
        ("genrm.'a.b'[1]", "genrm", "a.b", 1),
        ("actor-fwd[1]", "actor-fwd", None, 1),
    ],
)
def test_a_term_is_a_name_and_a_share(text, role, model, share):
    assert terms(text) == [[[(role, model, share)]]]


def test_a_dash_in_a_name_is_no_arrow():
    assert terms("a-b[1]->c[1]") == [[[("a-b", None, 1)], [("c", None, 1)]]]
    assert fault("a->c[1]") == "expected a share: [*] for all devices, [1/2] for a part, [4] for so many@1"


def fault(text: str) -> str:
    """The only fault of a text, and the place in it that the caret points at."""
    with pytest.raises(LayoutError) as raised:
        read_layout(text)
    (message,) = raised.value.messages
    words, line, caret = message.split("\n")
    assert line[:4] == caret[:4] == "    "
    return f"{words}@{text.find(line[4:]) + len(caret) - 5}"


A_SHARE = "a share: * for all devices, 1/2 for a part, 4 for so many"
A_SIGN = "a sign between two roles: + (side by side), -> (then) or | (apart)"
A_ROLE = "a role, as in maker[1/2]"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", f"expected {A_ROLE}, but the layout ends here@0"),
        ("   ", f"expected {A_ROLE}, but the layout ends here@0"),
        ("a[1] +", f"expected {A_ROLE}, but the layout ends here@6"),
        ("a[1] + \n", f"expected {A_ROLE}, but the layout ends here@6"),
        ("a", "expected a share: [*] for all devices, [1/2] for a part, [4] for so many@1"),
        ("a + b[1]", "expected a share: [*] for all devices, [1/2] for a part, [4] for so many@2"),
        ("a[]", f"expected {A_SHARE}@2"),
        ("a[half]", f"expected {A_SHARE}@2"),
        ("a[-1]", f"expected {A_SHARE}@2"),
        ("a[", f"expected {A_SHARE}, but the layout ends here@2"),
        ("a[0]", "a share is at least 1 device; a part is written as 1/2@2"),
        ("a[0/2]", "a part is more than nothing and at most all@2"),
        ("a[1/0]", "a part is more than nothing and at most all@2"),
        ("a[3/2]", "a part is more than nothing and at most all@2"),
        ("a[1/]", "expected ] after the share@3"),
        ("a[1/2", "expected ] after the share@5"),
        ("a[0.5]", "a share is at least 1 device; a part is written as 1/2@2"),
        ("a[1] b[1]", f"expected {A_SIGN}@5"),
        ("a[1] > b[1]", f"expected {A_SIGN}@5"),
        ("a[1] - b[1]", f"expected {A_SIGN}@5"),
        ("a[1], b[1]", f"expected {A_SIGN}@4"),
        ("a[1] || b[1]", f"expected {A_ROLE}@6"),
        ("a.[1]", "expected a model of the role, as in judge.small[1/2]@2"),
        ("a.b.c[1]", "expected a share: [*] for all devices, [1/2] for a part, [4] for so many@3"),
        ('a."b[1]', "expected a model of the role, as in judge.small[1/2]@2"),
        (r'a."\q"[1]', "expected a model of the role, as in judge.small[1/2]@2"),
        ("a[1] + (b[1] -> c[1])", f"expected {A_ROLE}@7"),
        ("a[1234567890]", "expected ] after the share@11"),
    ],
)
def test_a_fault_is_told_at_its_character(text, told):
    assert fault(text) == told


@given(st.text("ab.[]*/12+->| \n\"'é漢", max_size=20))
def test_any_text_is_a_layout_or_has_one_fault_inside_it(text):
    try:
        layout = read_layout(text)
    except LayoutError as error:
        (message,) = error.messages
        assert message.endswith("^")
    else:
        assert [term for step in layout.steps() for term in step] == [*layout.terms()]
        assert all(
            text[term.at :].startswith(term.role[:1]) or text[term.at] in "\"'" for term in layout.terms()
        )


@pytest.mark.parametrize(
    ("text", "at", "shown"),
    [
        ("abc", 1, "    abc\n     ^"),
        ("abc", 3, "    abc\n       ^"),
        ("one\ntwo\nthree", 5, "    two\n     ^"),
        ("a\tb", 2, "    a b\n      ^"),
        ("漢b", 1, "    漢b\n      ^"),
        ("e\u0301b", 2, "    e\u0301b\n     ^"),
    ],
)
def test_the_caret_stands_below_its_character(text, at, shown):
    assert pointed(text, at) == shown


@pytest.mark.parametrize("at", [0, 10, 50, 100, 199, 200])
def test_of_a_long_line_only_what_is_near_is_shown(at):
    text = "".join(chr(ord("0") + number % 75) for number in range(200))
    line, caret = pointed(text, at).split("\n")
    assert len(line) <= 4 + 72 + 2
    if at < len(text):
        assert line[len(caret) - 1] == text[at]
    assert (line[4] == "…", line[-1] == "…") == (at > 36, at < 164)


# --- what it stands for ----------------------------------------------------------------------


def config(
    *, devices: int | None = 8, mode: str | None = None, trainer: bool = True, **changes: Any
) -> JobConfig:
    """A job of three roles, of which one has two models, and a trainer."""

    def model(per_engine: int = 1) -> dict[str, Any]:
        return {"source": "/m", "engine": "e", "devices_per_engine": per_engine}

    placement: dict[str, Any] = {"devices": devices, "mode": mode, **changes}
    table: dict[str, Any] = {
        "job": {"name": "job"},
        "placement": {key: value for key, value in placement.items() if value is not None},
        "roles": {
            "maker": {"models": {"policy": model()}},
            "judge": {"models": {"small": model(), "large": model(2)}},
            "rule": {},
        },
        "sink": {"name": "s"},
    }
    if trainer:
        table["training"] = {"actor": {}, "critic": {}, "reference": {"on": "actor"}}
    return structure(JobConfig, table)


def keys(text: str, job: JobConfig) -> list[str]:
    return [*toml_lines(explicit_form(text, job, MODES))]


def test_side_by_side_then_the_trainer():
    layout = "maker[1/2] + judge.small[1/4] + judge.large[1/4] -> actor[3/4] + critic[2]"
    assert keys(layout, config()) == [
        'placement.mode = "slices"',
        "placement.devices = 8",
        "roles.maker.models.policy.replicas = 4",
        "roles.judge.models.small.replicas = 2",
        "roles.judge.models.large.replicas = 1",
        "training.actor.devices = 6",
        "training.critic.devices = 2",
    ]


def test_one_after_the_other():
    layout = "maker[*] -> judge.small[1/2] + judge.large[1/2] -> actor[1/2] + critic[1/2]"
    assert keys(layout, config()) == [
        'placement.mode = "turns"',
        "placement.devices = 8",
        "roles.maker.models.policy.replicas = 8",
        "roles.judge.models.small.replicas = 4",
        "roles.judge.models.large.replicas = 2",
        "training.actor.devices = 4",
        "training.critic.devices = 4",
    ]


def test_apart():
    layout = "actor[1/4] | critic[1/8] | maker[2] | judge.small[1] + judge.large[2]"
    assert keys(layout, config()) == [
        'placement.mode = "pools"',
        "roles.maker.models.policy.replicas = 2",
        "roles.judge.models.small.replicas = 1",
        "roles.judge.models.large.replicas = 1",
        "training.actor.devices = 2",
        "training.critic.devices = 1",
    ]


INFERENCE = "maker[4] + judge.small[1] + judge.large[2]"


@pytest.mark.parametrize(
    ("layout", "changes", "told"),
    [
        (INFERENCE, {"devices": None}, "placement.devices = 7"),
        (INFERENCE.replace("+ judge.small", "-> judge.small"), {"devices": None}, "placement.devices = 4"),
        (INFERENCE.replace("4", "4/16"), {"devices": None, "nodes": [8, 8]}, None),
        (INFERENCE.replace("4", "1/2"), {"devices": 16}, "placement.devices = 16"),
    ],
)
def test_the_pool_is_as_large_as_the_file_or_else_the_layout_says(layout, changes, told):
    found = keys(layout, config(trainer=False, **changes))
    assert [line for line in found if line.startswith("placement.devices")] == ([told] if told else [])


def test_without_a_size_a_part_is_one_of_what_the_trainer_has():
    job = structure(
        JobConfig,
        {
            "job": {"name": "job"},
            "placement": {},
            "roles": {"maker": {"models": {"m": {"source": "/m", "engine": "e", "devices_per_engine": 2}}}},
            "training": {"actor": {"devices": 6}, "critic": {"devices": 2}, "reference": {"on": "actor"}},
            "sink": {"name": "s"},
        },
    )
    assert keys("maker[1/2] -> actor[3/4] + critic[1/4]", job) == [
        'placement.mode = "turns"',
        "placement.devices = 8",
        "roles.maker.models.m.replicas = 2",
        "training.actor.devices = 6",
        "training.critic.devices = 2",
    ]


def test_a_budget_that_the_file_has_goes_with_its_role():
    job = structure(
        JobConfig,
        {
            "job": {"name": "job"},
            "placement": {"mode": "pools"},
            "roles": {"maker": {"devices": 8, "models": {"m": {"source": "/m", "engine": "e"}}}},
            "sink": {"name": "s"},
        },
    )
    assert keys("maker[4]", job) == [
        'placement.mode = "pools"',
        "roles.maker.devices = 4",
        "roles.maker.models.m.replicas = 4",
    ]


@pytest.mark.parametrize(
    ("layout", "mode"),
    [("maker[8]", "pools"), ("maker[8] -> actor[8]", "turns"), ("maker[8] | actor[8]", "pools")],
)
def test_one_role_alone_takes_the_nearest_arrangement(layout, mode):
    job = structure(
        JobConfig,
        {
            "job": {"name": "job"},
            "placement": {},
            "roles": {"maker": {"models": {"m": {"source": "/m", "engine": "e"}}}},
            "training": {"actor": {}} if "actor" in layout else {},
            "sink": {"name": "s"},
        },
    )
    assert keys(layout, job)[0] == f'placement.mode = "{mode}"'


# --- faults ----------------------------------------------------------------------------------


def faults(text: str, job: JobConfig, modes: Any = MODES) -> str:
    with pytest.raises(LayoutError) as raised:
        explicit_form(text, job, modes)
    return "\n".join(raised.value.messages)


def at(text: str, words: str) -> str:
    """What is told, for a text in which the place is marked with ``!`` before it."""
    return f"{words}\n{pointed(text.replace('!', ''), text.index('!'))}"


JUDGE = "judge.small[1] + judge.large[2]"


@pytest.mark.parametrize(
    ("marked", "words"),
    [
        (f"!makr[4] + {JUDGE}", '"makr" is no role of this job; did you mean "maker"? Roles: maker, judge'),
        (
            f"maker.!polcy[4] + {JUDGE}",
            '"polcy" is no model of "maker"; did you mean "policy"? Models: policy',
        ),
        ("maker[4] + !judge[3]", 'role "judge" has 2 models; write judge.small[...] + judge.large[...]'),
        (f"maker[4] + {JUDGE} + !rule[1]", 'role "rule" has no engines, and so no share; leave it out'),
        (f"maker[4] + {JUDGE} + !maker[1]", '"maker" has a share already'),
        (
            f"{JUDGE} + !maker[4]",
            'in the job file "maker" stands before "judge.large", and so it does on the devices;'
            " write them in that order",
        ),
        ("maker[4] + judge.large[2]!", 'no share is given to "judge.small"; every role of the job needs one'),
        (
            "maker[!1/3] + " + JUDGE,
            "1/3 of 8 devices is 2.67; write a part that divides them, or a number of devices",
        ),
        (
            "maker[4] + judge.small[1] + judge.large[!3]",
            '3 devices can\'t be divided into engines of 2, as "large" has them; write 2 or 4',
        ),
        (
            "maker[4] + judge.small[1] + judge.large[!1]",
            '1 device can\'t be divided into engines of 2, as "large" has them; write 2',
        ),
        ("maker[1/2] + judge.small[3] + judge.large[!2]", "2 of 8 devices, and 1 are left"),
    ],
)
def test_a_fault_of_the_job_is_told_at_its_term(marked, words):
    assert faults(marked.replace("!", ""), config(trainer=False)) == at(marked, words)


@pytest.mark.parametrize(
    ("marked", "words"),
    [
        ("maker[2] !+ JUDGE | actor[2] | critic[2]", "MIXED"),
        ("maker[2] | JUDGE | actor[2] !-> critic[2]", "ARROW"),
        ("maker[2] + JUDGE !+ actor[2] + critic[2]", "TRAINS"),
        ("maker[2] + JUDGE -> actor[2] !-> critic[2]", 'training roles are side by side; write "+"'),
        ("actor[2] + critic[2] !-> maker[2] + JUDGE", "the trainer comes last"),
        ("maker[2] !+ judge.small[1] -> judge.large[2] -> actor[2] + critic[2]", "TURNS"),
    ],
)
def test_signs_that_do_not_go_together_are_told_at_the_sign(marked, words):
    apart = ": a role that stands apart shares its pool with nobody; use one sign throughout"
    words = {
        "MIXED": f'"+" beside "|"{apart}',
        "ARROW": f'"->" beside "|"{apart}',
        "TRAINS": 'an inference role and a training role can\'t be side by side; write "->" or "|"',
        "TURNS": '"+" beside "->": inference roles take turns, or all are side by side',
    }.get(words, words)
    marked = marked.replace("JUDGE", JUDGE)
    assert faults(marked.replace("!", ""), config()) == at(marked, words)


def test_all_faults_of_names_and_all_of_shares_are_told_together():
    assert faults(f"makr[4] + {JUDGE} + maker.x[3]", config(trainer=False)).count("^") == 2
    assert faults("maker[1/3] + judge.small[1/5] + judge.large[3]", config(trainer=False)).count("^") == 3


def test_a_training_role_on_another_has_no_share():
    told = faults(f"maker[1] + {JUDGE} -> actor[4] + critic[4] + reference[1]", config())
    assert '"reference" is on the devices of "actor"; leave it out' in told


def test_a_part_of_nothing_known_is_told_at_the_part():
    told = faults(f"maker[1/2] + {JUDGE}", config(devices=None, trainer=False))
    marked = f"maker[!1/2] + {JUDGE}"
    words = "a part of what? placement.devices is not set; set it, or write a number of devices"
    assert told == at(marked, words)


# --- modes -----------------------------------------------------------------------------------


def test_a_mode_that_the_file_names_has_to_be_for_the_layout():
    layout = f"maker[4] + {JUDGE}"
    assert keys(layout, config(trainer=False, mode="slices"))[0] == 'placement.mode = "slices"'
    marked = layout.replace("+", "!+", 1)
    assert faults(layout, config(trainer=False, mode="turns")) == at(
        marked,
        'this is side by side, but placement.mode = "turns" is in turn; write a -> b -> trainer,'
        " or leave placement.mode out",
    )
    assert faults(layout, config(trainer=False, mode="spiral")) == at(
        marked,
        'this is side by side, but placement.mode = "spiral" is other; the shorthand has no sign for it',
    )


def test_with_two_modes_of_one_arrangement_the_file_has_to_name_one():
    layout = f"maker[4] + {JUDGE}"
    modes = {**MODES, "strips": Arrangement.SIDE_BY_SIDE}
    told = faults(layout, config(trainer=False), modes)
    assert told.startswith(
        "several modes lay roles out side by side: slices, strips; choose one with placement.mode\n"
    )
    assert explicit_form(layout, config(trainer=False, mode="strips"), modes)[0].value == "strips"


def test_without_a_mode_of_the_arrangement_there_is_none():
    told = faults(f"maker[4] + {JUDGE}", config(trainer=False), {"turns": Arrangement.IN_TURN})
    assert told.startswith(
        "no installed placement mode lays roles out side by side; see: rolecall plugins check\n"
    )


def test_a_layout_of_several_lines_is_pointed_into():
    layout = dedent("""
        maker[4]
        + judge.small[1] + judge.large[2]
        -> actr[*] + critic[1]
        """)
    assert faults(layout, config()).startswith(
        '"actr" is no role of this job; did you mean "actor"? Roles: maker, judge, actor, critic\n'
        "    -> actr[*] + critic[1]\n"
        "       ^"
    )
