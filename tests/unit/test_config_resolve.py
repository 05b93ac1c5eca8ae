"""From a job file to its plugins, which are real distributions in a temporary folder."""

from __future__ import annotations

import subprocess
import sys
import traceback
from pathlib import Path
from textwrap import dedent

import pytest

from rolecall.config.loader import load_config
from rolecall.config.resolve import open_sink, resolve_job, resolve_role
from rolecall.errors import ConfigError, PluginLoadError
from rolecall.interfaces.role import WeightSource
from rolecall.placement.demand import placement_job
from rolecall.plugins.host import PluginHost

PLUGINS = {
    "rolecall.roles": {
        "fake_maker": """
            class Plugin:
                name = "fake_maker"
                api_version = 1
                options = Options
                weight_sources = (WeightSource.ACTOR, WeightSource.STATIC)
                deferrable = True
                def __init__(self, options): self.given = options
                def adapt_generate(self, payload): ...
                def endpoints(self): return ()
                def generation(self): return generate
                def scoring_stages(self, request): return ()

            async def generate(prompts, context): ...
        """,
        "fake_judge": """
            class Plugin:
                name = "fake_judge"
                api_version = 1
                options = Options
                weight_sources = (WeightSource.STATIC,)
                deferrable = True
                def __init__(self, options): self.given = options
                def adapt_generate(self, payload): ...
                def endpoints(self): return ()
                def generation(self): return None
                def scoring_stages(self, request): return ()
        """,
        "fake_borrower": """
            class Plugin:
                name = "fake_borrower"
                api_version = 1
                options = Options
                weight_sources = (WeightSource.STATIC,)
                deferrable = True
                models_optional = False
                def __init__(self, options): self.models_optional = options.level == 7
                def adapt_generate(self, payload): ...
                def endpoints(self): return ()
                def generation(self): return None
                def scoring_stages(self, request): return ()
        """,
        "fake_rule": """
            class Plugin:
                name = "fake_rule"
                api_version = 1
                options = Options
                weight_sources = ()
                deferrable = True
                def __init__(self, options): self.given = options
                def adapt_generate(self, payload): ...
                def endpoints(self): return ()
                def generation(self): return None
                def scoring_stages(self, request): return ()
        """,
    },
    "rolecall.routing_policies": {
        "fake_policy": """
            class Plugin:
                name = "fake_policy"
                api_version = 1
                needs = frozenset()
                router = None
                def select(self, candidates, request): return candidates[0]
        """,
        "fake_routed": """
            class Router:
                options = Options
                pairs = True
                def lost_fields(self, path, payload): return ()
                def create(self, launch): ...

            class Plugin:
                name = "fake_routed"
                api_version = 1
                needs = frozenset()
                router = Router
                def select(self, candidates, request): ...
        """,
    },
    "rolecall.placement_modes": {
        "fake_mode": """
            class Plugin:
                name = "fake_mode"
                api_version = 1
                arrangement = Arrangement.OTHER
                def plan(self, job): ...
        """
    },
    "rolecall.reward_adapters": {
        "fake_reward": """
            class Plugin:
                name = "fake_reward"
                api_version = 1
                options = Options
                supports_deferred = True
                role = "fake_judge"
                reads = frozenset({"response"})
                def __init__(self, options): self.given = options
                async def score(self, sample, client): return 1.0
        """
    },
    "rolecall.engine_backends": {
        "fake_engine": """
            class Plugin:
                name = "fake_engine"
                api_version = 1
                options = Options
                resource = None
                def features(self, options, *, static):
                    from rolecall.api import Capability, EngineFeatures
                    problems = ("nobody can vouch for its weights",) if options.level == 99 else ()
                    halves = {Capability.DISAGGREGATION} if options.level == 50 else ()
                    return EngineFeatures(
                        capabilities=frozenset(halves), memory_tags=frozenset(), problems=problems
                    )
                def environment(self, launch): return {}
                def create(self, launch): ...
        """
    },
    "rolecall.batch_sinks": {
        "fake_sink": """
            class Plugin:
                name = "fake_sink"
                api_version = 1
                options = Options
                def __init__(self, options, context):
                    self.given, self.context, self.opened = options, context, 0
                def open(self): self.opened += 1
                def put(self, partition, rows): ...
                def read(self, partition): ...
                def clear(self, partition): ...
                def close(self): ...
        """
    },
    "rolecall.observers": {
        "fake_observer": """
            class Plugin:
                name = "fake_observer"
                api_version = 1
                def on_event(self, event): ...
        """
    },
}
HEADER = """\
from attrs import field, frozen, validators
from rolecall.api import Arrangement, WeightSource, hookimpl

@frozen(kw_only=True)
class Options:
    level: int = field(default=1, validator=validators.gt(0))
"""
HOOK = """
@hookimpl
def {hook}():
    return Plugin
"""
HOOKS = {
    "rolecall.roles": "rolecall_role",
    "rolecall.routing_policies": "rolecall_routing_policy",
    "rolecall.placement_modes": "rolecall_placement_mode",
    "rolecall.reward_adapters": "rolecall_reward_adapter",
    "rolecall.engine_backends": "rolecall_engine_backend",
    "rolecall.batch_sinks": "rolecall_batch_sink",
    "rolecall.observers": "rolecall_observer",
}
GOOD = """\
[job]
name = "job"
observers = ["fake_observer"]

[placement]
mode = "fake_mode"

[roles.fake_maker]
routing_policy = "fake_policy"
options = { level = 3 }

[roles.fake_maker.models.policy]
source = "/models/policy"
engine = "fake_engine"

[roles.fake_judge]
routing_policy = "fake_policy"
default_model = "large"
aliases = { big = "large" }
route_keys = { math = "small" }

[roles.fake_judge.models.small]
source = "/models/small"
engine = "fake_engine"
served_model_name = "tiny"

[roles.fake_judge.models.large]
source = "/models/large"
engine = "fake_engine"
weight_source = "STATIC"
engine_options = { level = 7 }

[rewards.verdict]
adapter = "fake_reward"
on_error = "retry"
retries = 5
timeout_s = 9

[batch]
prompts = "prompts.jsonl"

[sink]
name = "fake_sink"
options = { level = 4 }
"""


@pytest.fixture
def host(fake_site):
    """A host of an environment where one distribution holds a sound plugin of each kind."""
    for group, plugins in PLUGINS.items():
        for name, code in plugins.items():
            module = f"{name}_module"
            source = HEADER + dedent(code) + HOOK.format(hook=HOOKS[group])
            fake_site.install(f"dist-{name}", entry_points={group: {name: module}}, modules={module: source})
    return PluginHost.from_environment()


@pytest.fixture
def job_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_text("")

    def write(text: str) -> Path:
        (tmp_path / "job.toml").write_text(text, encoding="utf-8")
        return Path("job.toml")

    return write


def problems(path: Path, host: PluginHost) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        resolve_job(load_config(path), path, host)
    return [str(problem) for problem in caught.value.problems]


# --- what resolves ----------------------------------------------------------------------


def test_a_job_resolves_with_its_plugins_and_their_options(host, job_file, tmp_path):
    path = job_file(GOOD)
    job = resolve_job(load_config(path), path, host)
    assert job.file == tmp_path / "job.toml"
    assert list(job.roles) == ["fake_maker", "fake_judge"]
    maker, judge = job.roles.values()
    assert maker.plugin.given.level == 3
    assert maker.policy.name == "fake_policy"
    assert isinstance(maker.policy, type)
    assert judge.plugin.given.level == 1
    assert judge.models["large"].options.level == 7
    assert judge.models["large"].backend.name == "fake_engine"
    assert job.mode.name == "fake_mode"
    assert [observer.name for observer in job.observers] == ["fake_observer"]
    (reward,) = job.rewards
    assert (reward.name, reward.on_error, reward.retries, reward.timeout_s) == ("verdict", "retry", 5, 9.0)
    assert reward.adapter.given.level == 1


def test_defaults_that_only_plugins_or_the_file_can_tell(host, job_file):
    path = job_file(GOOD)
    maker, judge = resolve_job(load_config(path), path, host).roles.values()
    assert maker.models["policy"].weight_source is WeightSource.ACTOR  # the role's first
    assert judge.models["large"].weight_source is WeightSource.STATIC
    assert maker.models["policy"].served_model_name == "/models/policy"
    assert judge.models["small"].served_model_name == "tiny"
    assert maker.default_model == "policy"  # the only one
    assert judge.default_model == "large"


ROUTED = GOOD.replace('"fake_policy"', '"fake_routed"', 1)
PAIRS = "replicas = 3\nprefill_replicas = 1\n"
OF_POLICY = '[roles.fake_maker.models.policy]\nsource = "/models/policy"\nengine = "fake_engine"\n'


def test_a_policys_router_gets_its_table(host, job_file):
    path = job_file(ROUTED.replace("options = { level = 3 }", "router_options = { level = 6 }", 1))
    maker, judge = resolve_job(load_config(path), path, host).roles.values()
    assert maker.router is not None
    assert maker.router.options.level == 6
    assert maker.router.backend.pairs
    assert judge.router is None


def test_pairs_need_a_router_and_an_engine_that_can(host, job_file):
    able = f"{OF_POLICY}{PAIRS}engine_options = {{ level = 50 }}\n"
    path = job_file(ROUTED.replace(OF_POLICY, able))
    assert resolve_job(load_config(path), path, host).roles["fake_maker"].models["policy"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            GOOD.replace("options = { level = 3 }", "router_options = { level = 6 }", 1),
            'roles.fake_maker.router_options: routing policy "fake_policy" has no router',
        ),
        (
            ROUTED.replace("options = { level = 3 }", "router_options = { level = 0 }", 1),
            "roles.fake_maker.router_options.level: must be greater than 0",
        ),
        (
            GOOD.replace(OF_POLICY, f"{OF_POLICY}{PAIRS}engine_options = {{ level = 50 }}\n"),
            'roles.fake_maker.models.policy.prefill_replicas: routing policy "fake_policy" has no router '
            "that brings prefill and decode together",
        ),
        (
            ROUTED.replace(OF_POLICY, OF_POLICY + PAIRS),
            'roles.fake_maker.models.policy.prefill_replicas: engine "fake_engine" does whole requests only',
        ),
        (
            ROUTED.replace(
                OF_POLICY,
                f"{OF_POLICY}replicas = 2\nprefill_replicas = 2\nengine_options = {{ level = 50 }}\n",
            ),
            "roles.fake_maker.models.policy.prefill_replicas: 2 of 2 replicas leaves none to decode; "
            "give replicas = 3 or more",
        ),
    ],
)
def test_what_no_router_can_do_is_refused_by_its_key(host, job_file, text, words):
    (problem,) = problems(job_file(text), host)
    assert words in problem


def test_several_models_without_a_default_have_none(host, job_file):
    path = job_file(GOOD.replace('default_model = "large"\n', ""))
    assert resolve_job(load_config(path), path, host).roles["fake_judge"].default_model is None


def test_only_selected_plugins_are_imported(host, job_file, fake_site):
    fake_site.install(
        "dist-bad",
        entry_points={"rolecall.observers": {"bad": "bad_module"}},
        modules={"bad_module": "1 / 0"},
    )
    path = job_file(GOOD)
    resolve_job(load_config(path), path, PluginHost.from_environment())
    assert "bad_module" not in sys.modules


def test_one_role_resolves_without_the_rest(host, job_file):
    path = job_file(
        GOOD.replace("fake_reward", "absent")
        .replace("prompts.jsonl", "absent")
        .replace('"fake_mode"', '"absent"')
    )
    role = resolve_role(load_config(path), path, "fake_judge", host)
    assert (role.name, list(role.models)) == ("fake_judge", ["small", "large"])


def test_a_role_that_is_not_configured_is_refused(host, job_file):
    path = job_file(GOOD)
    with pytest.raises(
        ConfigError, match=r"roles\.other: is not configured\. Roles of this job: fake_maker, fake_j"
    ):
        resolve_role(load_config(path), path, "other", host)


def test_a_sink_is_opened_in_the_job_files_folder(host, job_file, tmp_path):
    path = job_file(GOOD)
    sink = open_sink(load_config(path), path, host)
    assert (sink.opened, sink.given.level) == (1, 4)
    assert (sink.context.job, sink.context.base_dir) == ("job", tmp_path)


def test_an_unknown_sink_is_told_once(host, job_file):
    path = job_file(GOOD.replace('"fake_sink"', '"fake_snk"'))
    with pytest.raises(ConfigError) as caught:
        open_sink(load_config(path), path, host)
    (problem,) = caught.value.problems
    assert 'batch sink "fake_snk" is not installed; did you mean "fake_sink"?' in problem.message
    assert problem.line == GOOD[: GOOD.index('name = "fake_sink"')].count("\n") + 1


def test_resolving_imports_neither_ray_nor_an_engine():
    code = (
        "import sys\n"
        "import rolecall.config.resolve, rolecall.plugins.contract\n"
        "found = {'ray', 'torch', 'starlette', 'httpx', 'xllamacpp', 'sglang'} & set(sys.modules)\n"
        "assert not found, found\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- what is refused --------------------------------------------------------------------


def test_an_engine_that_may_not_be_started(host, job_file):
    (found,) = problems(job_file(GOOD.replace("level = 7", "level = 99")), host)
    assert found.endswith("engine_options: nobody can vouch for its weights")


def test_every_problem_at_once(host, job_file):
    text = (
        GOOD.replace('["fake_observer"]', '["fake_observer", "fake_obsrver"]')
        .replace('"fake_mode"', '"fake_mood"')
        .replace("level = 3", "level = 0")
        .replace('aliases = { big = "large" }', 'aliases = { small = "large", x = "larg" }')
        .replace('"STATIC"', '"DCS"')
        .replace("level = 7", "levle = 7")
        .replace('math = "small"', 'math = "big"')
        .replace('default_model = "large"', 'default_model = "larger"')
        .replace("prompts.jsonl", "absent.jsonl")
        .replace("{ level = 4 }", '{ level = "4" }')
    )
    found = problems(job_file(text), host)
    lines = {problem.split(":")[1]: text.splitlines()[int(problem.split(":")[1]) - 1] for problem in found}
    expected = [
        (
            "job.observers[1]",
            'observer "fake_obsrver" is not installed; did you mean "fake_observer"? Installed: ',
        ),
        (
            "placement.mode",
            'placement mode "fake_mood" is not installed; did you mean "fake_mode"? Installed: ',
        ),
        ("roles.fake_maker.options.level", "must be greater than 0, found 0"),
        (
            "roles.fake_judge.default_model",
            '"larger" is not a model of this role; did you mean "large"? Models: small',
        ),
        ("roles.fake_judge.aliases.small", "is the name of a model"),
        (
            "roles.fake_judge.aliases.x",
            '"larg" is not a model of this role; did you mean "large"? Models: small',
        ),
        ("roles.fake_judge.route_keys.math", '"big" is not a model of this role. Models: small, large'),
        (
            "roles.fake_judge.models.large.weight_source",
            '"DCS" is not allowed for a model of this role. Allowed: STA',
        ),
        ("roles.fake_judge.models.large.engine_options.levle", 'is not a known key; did you mean "level"?'),
        ("batch.prompts", f"the file {Path.cwd() / 'absent.jsonl'} does not exist"),
        ("sink.options.level", 'must be a whole number, found "4" (text)'),
    ]
    assert len(found) == len(expected)
    for problem, (key, message) in zip(found, expected, strict=True):
        file, line, at, words = problem.split(":", 3)
        assert file == "job.toml"
        assert at.strip() == key
        assert words.strip().startswith(message)
        assert key.replace("[1]", "").rsplit(".", 1)[-1] in lines[line]


def test_a_role_without_engines_has_no_models(host, job_file):
    path = job_file(GOOD + "[roles.fake_rule.options]\nlevel = 2\n")
    role = resolve_job(load_config(path), path, host).roles["fake_rule"]
    assert (role.models, role.default_model, role.plugin.given.level) == ({}, None, 2)
    demands = placement_job(resolve_job(load_config(path), path, host)).roles
    assert [demand.role for demand in demands] == ["fake_maker", "fake_judge"]


def test_models_and_devices_of_a_role_without_engines_are_refused(host, job_file):
    text = GOOD + "[roles.fake_rule]\ndevices = 2\n" + OF_POLICY.replace("fake_maker", "fake_rule")
    assert [problem.split(": ", 1)[1] for problem in problems(job_file(text), host)] == [
        'roles.fake_rule.devices: role "fake_rule" has no engines, so there is nothing to set; drop it',
        'roles.fake_rule.models: role "fake_rule" has no engines, so there is nothing to set; drop it',
    ]


def test_a_role_with_engines_needs_a_model(host, job_file):
    text = GOOD.replace(OF_POLICY, "")
    (problem,) = problems(job_file(text), host)
    assert problem.split(": ", 1)[1] == (
        "roles.fake_maker.models: needs at least one model; add a table "
        "[roles.fake_maker.models.<name>] with source and engine"
    )


def test_a_role_whose_options_name_engines_elsewhere_needs_no_model(host, job_file):
    """As long as it says so, with these options; with wrong ones nobody knows."""

    def text(level: str) -> str:
        return GOOD + f"[roles.fake_borrower.options]\nlevel = {level}\n"

    path = job_file(text("7"))
    job = resolve_job(load_config(path), path, host)
    assert job.roles["fake_borrower"].models == {}
    assert [demand.role for demand in placement_job(job).roles] == ["fake_maker", "fake_judge"]
    (problem,) = problems(job_file(text("6")), host)
    assert "roles.fake_borrower.models: needs at least one model" in problem
    (problem,) = problems(job_file(text('"x"')), host)
    assert "roles.fake_borrower.options.level" in problem


def test_an_unknown_role_policy_engine_and_adapter_name_key_and_line(host, job_file):
    text = (
        GOOD.replace("fake_judge", "fake_juge")
        .replace('routing_policy = "fake_policy"\ndefault', 'routing_policy = "fake_polic"\ndefault')
        .replace(
            'source = "/models/policy"\nengine = "fake_engine"',
            'source = "/models/policy"\nengine = "engine"',
        )
        .replace('"fake_reward"', '"fake_rewards"')
    )
    found = problems(job_file(text), host)
    assert [problem.split(" is not installed; did you mean ")[0] for problem in found] == [
        'job.toml:14: roles.fake_maker.models.policy.engine: engine backend "engine"',
        'job.toml:16: roles.fake_juge: role "fake_juge"',
        'job.toml:17: roles.fake_juge.routing_policy: routing policy "fake_polic"',
        'job.toml:34: rewards.verdict.adapter: reward adapter "fake_rewards"',
    ]
    assert "See: rolecall plugins list" in found[0]


def test_a_policy_that_is_a_default_is_told_at_its_role(host, job_file, monkeypatch):
    text = GOOD.replace('routing_policy = "fake_policy"\noptions', "options")
    without_it = PluginHost([plugin for plugin in host.list() if plugin.name != "round_robin"])
    (problem,) = problems(job_file(text), without_it)
    assert problem.startswith(
        'job.toml:8: roles.fake_maker.routing_policy: routing policy "round_robin" is not inst'
    )


def test_a_name_claimed_twice_is_told_with_both_distributions(host, job_file, fake_site):
    fake_site.install(
        "rival", "2.0", entry_points={"rolecall.placement_modes": {"fake_mode": "rival_module"}}
    )
    (problem,) = problems(job_file(GOOD), PluginHost.from_environment())
    assert problem.startswith(
        'job.toml:6: placement.mode: placement mode "fake_mode" is claimed more than once: '
    )
    assert "dist-fake_mode 1.0 (fake_mode_module), rival 2.0 (rival_module)" in problem


def test_an_adapter_whose_role_is_absent_is_told_beside_its_options(host, job_file):
    start, end = GOOD.index("[roles.fake_judge]"), GOOD.index("[rewards.verdict]")
    text = GOOD[:start] + GOOD[end:].replace("retries = 5", "options = { level = 0 }")
    found = problems(job_file(text), host)
    assert [problem.split(": ", 1)[1] for problem in found] == [
        'rewards.verdict.adapter: reward adapter "fake_reward" asks the role "fake_judge", which this '
        "job does not have; add [roles.fake_judge]. Roles: fake_maker",
        "rewards.verdict.options.level: must be greater than 0, found 0",
    ]


def test_a_batch_needs_a_role_that_makes_samples(host, job_file):
    start, end = GOOD.index("[roles.fake_maker]"), GOOD.index("[roles.fake_judge]")
    (problem,) = problems(job_file(GOOD[:start] + GOOD[end:]), host)
    assert problem.endswith("batch: one role must make the samples, but none does. Roles: fake_judge")


def test_a_batch_needs_only_one_role_that_makes_samples(host, job_file, fake_site):
    code = HEADER + dedent(PLUGINS["rolecall.roles"]["fake_maker"]).replace("fake_maker", "fake_second")
    fake_site.install(
        "dist-second",
        entry_points={"rolecall.roles": {"fake_second": "second_module"}},
        modules={"second_module": code + HOOK.format(hook="rolecall_role")},
    )
    role = 'routing_policy = "fake_policy"\nmodels.m = { source = "x", engine = "fake_engine" }'
    text = f"{GOOD}[roles.fake_second]\n{role}\n"
    (problem,) = problems(job_file(text), PluginHost.from_environment())
    assert problem.endswith("one role must make the samples, but several do: fake_maker, fake_second")


def test_without_a_batch_no_role_need_make_samples(host, job_file):
    text = GOOD.replace('[batch]\nprompts = "prompts.jsonl"\n', "")
    start, end = text.index("[roles.fake_maker]"), text.index("[roles.fake_judge]")
    path = job_file(text[:start] + text[end:])
    assert list(resolve_job(load_config(path), path, host).roles) == ["fake_judge"]


# --- broken plugins ---------------------------------------------------------------------


@pytest.fixture
def broken_mode(host, fake_site):
    fake_site.install(
        "dist-broken",
        "0.9",
        entry_points={"rolecall.placement_modes": {"broken_mode": "broken_module"}},
        modules={"broken_module": "def explode():\n    raise KeyError('who')\nexplode()"},
    )
    return PluginHost.from_environment()


def test_a_broken_plugin_alone_raises_its_own_error(broken_mode, job_file):
    path = job_file(GOOD.replace("fake_mode", "broken_mode"))
    with pytest.raises(PluginLoadError) as caught:
        resolve_job(load_config(path), path, broken_mode)
    text = "".join(traceback.format_exception(caught.value))
    assert 'placement mode "broken_mode" of dist-broken 0.9' in text
    assert "in explode" in text
    assert "selected by placement.mode in job.toml" in text


def test_a_broken_mode_does_not_stop_a_layout_that_chooses_another(broken_mode, job_file):
    layout = "fake_maker[3] | fake_judge.small[1] + fake_judge.large[2]"
    path = job_file(GOOD.replace('mode = "fake_mode"', f'layout = "{layout}"'))
    job = resolve_job(load_config(path), path, broken_mode)
    assert job.mode.name == job.config.placement.mode == "decoupled"
    assert job.roles["fake_judge"].models["large"].config.replicas == 2
    assert [override.value for override in job.explicit] == ["decoupled", 3, 1, 2]


def test_a_broken_plugin_beside_problems_is_told_with_them_and_is_their_cause(broken_mode, job_file):
    path = job_file(GOOD.replace("fake_mode", "broken_mode").replace("level = 3", "level = 0"))
    with pytest.raises(ConfigError) as caught:
        resolve_job(load_config(path), path, broken_mode)
    assert [problem.key for problem in caught.value.problems] == [
        "placement.mode",
        "roles.fake_maker.options.level",
    ]
    assert isinstance(caught.value.__cause__, PluginLoadError)


def test_a_plugin_that_raises_when_made_is_named(host, job_file, fake_site):
    code = HEADER + dedent(PLUGINS["rolecall.roles"]["fake_judge"]).replace("fake_judge", "fake_grumpy")
    code = code.replace("self.given = options", "raise OSError('not today')")
    fake_site.install(
        "dist-grumpy",
        entry_points={"rolecall.roles": {"fake_grumpy": "grumpy_module"}},
        modules={"grumpy_module": code + HOOK.format(hook="rolecall_role")},
    )
    path = job_file(GOOD + '[roles.fake_grumpy]\nmodels.m = { source = "x", engine = "fake_engine" }\n')
    with pytest.raises(
        PluginLoadError,
        match=r'role "fake_grumpy" of dist-grumpy 1\.0 could not be loaded: making Plugin raised OSError',
    ):
        resolve_job(load_config(path), path, PluginHost.from_environment())


# --- lines ------------------------------------------------------------------------------


def test_a_file_that_changed_since_gives_no_lines(host, job_file):
    path = job_file(GOOD.replace("fake_mode", "fake_mood"))
    config = load_config(path)
    job_file("# one more line\n" + GOOD)
    with pytest.raises(ConfigError) as caught:
        resolve_job(config, path, host)
    assert [problem.line for problem in caught.value.problems] == [None]


@pytest.mark.parametrize("content", [None, "= nonsense", "[job]\n"])
def test_a_file_that_is_gone_or_spoilt_gives_no_lines(host, job_file, content):
    path = job_file(GOOD.replace("fake_polic", "fake_polc"))
    config = load_config(path)
    path.unlink() if content is None else job_file(content)
    with pytest.raises(ConfigError) as caught:
        resolve_role(config, path, "fake_maker", host)
    (problem,) = caught.value.problems
    assert (problem.file, problem.key, problem.line) == ("job.toml", "roles.fake_maker.routing_policy", None)
