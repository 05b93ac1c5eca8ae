"""From a job file's values to a job with its plugins, checked as a whole.

Loads the plugins that the config names and nothing else, gives each its options, and checks what
only they can tell. All problems of the file are collected and raised together, an unknown plugin
name like any other. A plugin that is broken is not the file's fault: alone, its own error is
raised; beside problems of the file it is listed with them and is their cause.

Called by the job process for the whole job, and by each actor and consumer for the part it
needs. Starts nothing, and imports neither Ray nor an engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from attrs import frozen

from rolecall.config.checks import job_faults, role_faults
from rolecall.config.lines import KeyPath
from rolecall.config.loader import source_of
from rolecall.config.nested_adapters import JOBS_PLUGINS
from rolecall.config.overrides import Override, with_values
from rolecall.config.resolved import ResolvedJob, ResolvedModel, ResolvedRole, ResolvedRouter
from rolecall.config.source import Fault, key_text
from rolecall.config.specs import (
    JobConfig,
    ModelConfig,
    PlacementSection,
    PluginsSection,
    RewardConfig,
    RoleConfig,
)
from rolecall.config.structure import StructureError, structure
from rolecall.errors import DuplicatePluginError, PluginError, UnknownPluginError
from rolecall.ids import ModelId, RoleName
from rolecall.interfaces.batch_sink import BatchSink, SinkContext
from rolecall.interfaces.engine_backend import AttachesEngines, Capability, EngineBackend
from rolecall.interfaces.observer import Observer
from rolecall.interfaces.placement_mode import Arrangement, PlacementMode
from rolecall.interfaces.reward_adapter import RewardAdapter
from rolecall.interfaces.role import NamedReward, Role, WeightSource
from rolecall.interfaces.routing_policy import RoutingPolicy
from rolecall.plugins.contract import load_error
from rolecall.plugins.host import PluginHost
from rolecall.plugins.kinds import PluginKind

_Value = TypeVar("_Value")

__all__ = [
    "ResolvedJob",
    "ResolvedModel",
    "ResolvedRole",
    "job_plugins",
    "open_sink",
    "resolve_job",
    "resolve_role",
]


def job_plugins(section: PluginsSection) -> PluginHost:
    """Return the plugins as this process has them installed and the job wants them."""
    return PluginHost.from_environment(block=section.block, trace=section.trace)


def resolve_job(
    config: JobConfig, file: Path, host: PluginHost, overrides: Sequence[Override] = ()
) -> ResolvedJob:
    """Resolve a whole job; ``file`` is where ``config`` was read from, ``overrides`` what it was read with.

    ``placement.layout`` is put into the keys that it stands for.

    Raises:
        ConfigError: with every problem of the file.
        PluginError: a selected plugin is broken.
    """
    resolution = _Resolution(config, file, host, overrides)
    explicit = resolution.layout(config)
    config = with_values(config, explicit)
    resolution.add(job_faults(config, file))
    resolution.add(
        Fault(path=("plugins", "block", number), message=message) for number, message in host.block_faults()
    )
    roles = {name: resolution.role(name, role) for name, role in config.roles.items()}
    mode = resolution.mode(config.placement)
    token = JOBS_PLUGINS.set(host)
    try:
        rewards = [resolution.reward(name, reward) for name, reward in config.rewards.items()]
    finally:
        JOBS_PLUGINS.reset(token)
    observers = [
        resolution.made(_Choice(PluginKind.OBSERVER, name, ("job", "observers", index)))
        for index, name in enumerate(config.job.observers)
    ]
    resolution.sink_options(_sink_choice(config))
    if config.batch is not None:
        resolution.check_generation(roles)
    resolution.finish()
    return ResolvedJob(
        config=config,
        file=file.absolute(),
        roles={name: _sound(role) for name, role in roles.items()},
        mode=cast(PlacementMode, mode),
        rewards=tuple(_sound(reward) for reward in rewards),
        observers=tuple(cast(Observer, observer) for observer in observers),
        explicit=explicit,
    )


def resolve_role(config: JobConfig, file: Path, role: str, host: PluginHost) -> ResolvedRole:
    """Resolve one role, without looking at the rest of the job.

    Raises:
        ConfigError: the role is not configured, or with every problem of its table.
        PluginError: a plugin that the role selects is broken.
    """
    resolution = _Resolution(config, file, host)
    if role not in config.roles:
        roles = ", ".join(config.roles)
        resolution.add(
            [Fault(path=("roles", role), message=f"is not configured. Roles of this job: {roles}")]
        )
        resolution.fail()
    resolved = resolution.role(role, config.roles[role])
    resolution.finish()
    return _sound(resolved)


def open_sink(config: JobConfig, file: Path, host: PluginHost) -> BatchSink:
    """Make and open a batch sink of the caller's own; the caller closes it.

    Raises:
        ConfigError: the sink's name or options are wrong.
        PluginError: the sink's plugin is broken.
        SinkError: it could not be opened.
    """
    resolution = _Resolution(config, file, host)
    choice = _sink_choice(config)
    options = resolution.sink_options(choice)
    resolution.finish()
    context = SinkContext(job=config.job.name, base_dir=file.absolute().parent)
    made = resolution.made(choice, options, context)
    resolution.finish()
    sink = cast(BatchSink, _sound(made))
    sink.open()
    return sink


def _sink_choice(config: JobConfig) -> _Choice:
    return _Choice(PluginKind.BATCH_SINK, config.sink.name, ("sink", "name"))


def _sound(value: _Value | None) -> _Value:
    """Unwrap what is there, since ``finish`` found no problem."""
    assert value is not None
    return value


@frozen
class _Choice:
    """A plugin named in the file, and where."""

    kind: PluginKind
    name: str
    path: KeyPath


def _engine_faults(
    role_class: type[Role], plugin: object | None, role: RoleConfig, path: KeyPath
) -> Iterator[Fault]:
    """Refuse a role without models, unless it has no engines; then models and devices are refused.

    ``plugin`` is the role's instance, None if its options are wrong: then nobody knows whether it needs any.
    """
    if not role_class.weight_sources:
        for key in ("models", "devices"):
            if getattr(role, key):
                message = f'role "{role_class.name}" has no engines, so there is nothing to set; drop it'
                yield Fault(path=(*path, key), message=message)
    elif not role.models and not _models_optional(role_class, plugin):
        table = f"{key_text((*path, 'models'))}.<name>"
        message = f"needs at least one model; add a table [{table}] with source and engine"
        yield Fault(path=(*path, "models"), message=message)


def _models_optional(role_class: type[Role], plugin: object | None) -> bool:
    if plugin is None:
        return hasattr(role_class, "models_optional")
    return bool(getattr(plugin, "models_optional", False))


def _pair_faults(
    policy: type[RoutingPolicy], models: Iterable[ResolvedModel], path: KeyPath
) -> Iterator[Fault]:
    """Refuse prefill/decode pairs that nobody brings together, or whose engines can't be half of one."""
    for model in models:
        wanted = model.config.prefill_replicas
        if not wanted:
            continue
        at: KeyPath = (*path, "models", model.model, "prefill_replicas")
        if policy.router is None or not policy.router.pairs:
            message = f'routing policy "{policy.name}" has no router that brings prefill and decode together'
            yield Fault(path=at, message=f"{message}; choose one that has, or leave the key out")
        if Capability.DISAGGREGATION not in model.features.capabilities:
            message = f'engine "{model.config.engine}" does whole requests only'
            yield Fault(path=at, message=f"{message}; choose one that does halves, or leave the key out")
        if wanted >= model.config.replicas:
            message = f"{wanted} of {model.config.replicas} replicas leaves none to decode"
            yield Fault(path=at, message=f"{message}; give replicas = {wanted + 1} or more")


class _Resolution:
    """One pass over one job file: turns names into plugins and collects what is wrong.

    Methods return None for what can't be made, once its fault has been noted.
    """

    def __init__(
        self, config: JobConfig, file: Path, host: PluginHost, overrides: Sequence[Override] = ()
    ) -> None:
        self._config = config
        self._file = file
        self._host = host
        self._overrides = overrides
        self._faults: list[Fault] = []
        self._broken: list[PluginError] = []
        self._refused: set[_Choice] = set()

    def add(self, faults: Iterable[Fault]) -> None:
        self._faults.extend(faults)

    def finish(self) -> None:
        """Raise what has been collected, if anything."""
        if self._faults or self._broken:
            self.fail()

    def fail(self) -> NoReturn:
        only_broken_plugins = len(self._faults) == len(self._broken)
        cause = self._broken[0] if self._broken else None
        if cause is not None and only_broken_plugins:
            raise cause
        raise source_of(self._config, self._file, self._overrides).error(self._faults) from cause

    # --- parts of a job -----------------------------------------------------------------

    def layout(self, config: JobConfig) -> tuple[Override, ...]:
        """Return the keys that ``placement.layout`` stands for; none without it, or if it is wrong."""
        placement = config.placement
        if placement.layout is None:
            return ()
        modes = self._arrangements(placement)
        if placement.mode is not None and placement.mode not in modes:
            return ()
        # Few jobs have a layout, and all would wait for its arithmetic to be imported.
        from rolecall.placement.shorthand.explicit import LAYOUT_PATH, explicit_form
        from rolecall.placement.shorthand.notation import LayoutError

        try:
            return explicit_form(placement.layout, config, modes)
        except LayoutError as error:
            self.add(Fault(path=LAYOUT_PATH, message=message) for message in error.messages)
            return ()

    def _arrangements(self, placement: PlacementSection) -> dict[str, Arrangement]:
        """Return what each mode that a layout may choose declares: the one that is named, or all."""
        kind = PluginKind.PLACEMENT_MODE
        found: dict[str, Arrangement] = {}
        for name in self._host.names(kind) if placement.mode is None else (placement.mode,):
            try:
                found[name] = self._host.load(kind, name).arrangement
            except PluginError:
                continue  # told where the mode is named; where it isn't, it can't stop a job
        return found

    def mode(self, placement: PlacementSection) -> object | None:
        """Return the placement mode; a layout that chooses none has a fault of its own."""
        path: KeyPath = ("placement", "mode")
        if placement.mode is not None:
            return self.made(_Choice(PluginKind.PLACEMENT_MODE, placement.mode, path))
        if placement.layout is None:
            installed = ", ".join(self._host.names(PluginKind.PLACEMENT_MODE))
            message = f"is missing; it must be text: the name of a placement mode. Installed: {installed}"
            self.add([Fault(path=path, message=f"{message}. Or write the layout: placement.layout")])
        return None

    def role(self, name: str, role: RoleConfig) -> ResolvedRole | None:
        path: KeyPath = ("roles", name)
        self.add(role_faults(role, path))
        choice = _Choice(PluginKind.ROLE, name, path)
        role_class = cast("type[Role] | None", self.load(choice))
        plugin = self.made_with_options(choice, role.options, (*path, "options"))
        if role_class is not None:
            self.add(_engine_faults(role_class, plugin, role, path))
        policy_choice = _Choice(PluginKind.ROUTING_POLICY, role.routing_policy, (*path, "routing_policy"))
        policy = cast("type[RoutingPolicy] | None", self.load(policy_choice))
        router = self.router(policy, role, path) if policy is not None else None
        models = {
            model: self.model(model, config, role_class, (*path, "models", model))
            for model, config in role.models.items()
        }
        if policy is not None:
            self.add(_pair_faults(policy, [m for m in models.values() if m is not None], path))
        if plugin is None or policy is None or None in models.values():
            return None
        only_model = next(iter(models)) if len(models) == 1 else None
        return ResolvedRole(
            name=RoleName(name),
            config=role,
            plugin=cast(Role, plugin),
            policy=policy,
            router=router,
            models={model: _sound(resolved) for model, resolved in models.items()},
            default_model=role.default_model or only_model,
        )

    def router(self, policy: type[RoutingPolicy], role: RoleConfig, path: KeyPath) -> ResolvedRouter | None:
        options_path: KeyPath = (*path, "router_options")
        if policy.router is None:
            if role.router_options:
                message = f'routing policy "{policy.name}" has no router, so there is nothing to set; drop it'
                self.add([Fault(path=options_path, message=message)])
            return None
        options = self.options(policy.router.options, role.router_options, options_path)
        return None if options is None else ResolvedRouter(backend=policy.router(), options=options)

    def model(
        self, name: str, config: ModelConfig, role_class: type[Role] | None, path: KeyPath
    ) -> ResolvedModel | None:
        choice = _Choice(PluginKind.ENGINE_BACKEND, config.engine, (*path, "engine"))
        backend = cast("EngineBackend | None", self.made(choice))
        options = None
        if backend is not None:
            options = self.options(backend.options, config.engine_options, (*path, "engine_options"))
        weight_source = self.weight_source(config, role_class, (*path, "weight_source"))
        if backend is None or options is None or weight_source is None:
            return None
        features = backend.features(options, static=weight_source is WeightSource.STATIC)
        self.add(Fault(path=(*path, "engine_options"), message=problem) for problem in features.problems)
        if config.external_replicas and not isinstance(backend, AttachesEngines):
            message = f'engine "{config.engine}" takes no engines that somebody else runs; leave it out'
            self.add([Fault(path=(*path, "external_replicas"), message=message)])
        return ResolvedModel(
            model=ModelId(name),
            config=config,
            backend=backend,
            options=options,
            features=features,
            weight_source=weight_source,
            served_model_name=config.served_model_name or config.source,
        )

    def weight_source(
        self, config: ModelConfig, role_class: type[Role] | None, path: KeyPath
    ) -> WeightSource | None:
        if role_class is None or not role_class.weight_sources:
            return None
        allowed = role_class.weight_sources
        if config.weight_source is None:
            return allowed[0]
        chosen = WeightSource(config.weight_source)
        if chosen not in allowed:
            message = f'"{chosen}" is not allowed for a model of this role. Allowed: {", ".join(allowed)}'
            self.add([Fault(path=path, message=message)])
        return chosen

    def reward(self, name: str, reward: RewardConfig) -> NamedReward | None:
        path: KeyPath = ("rewards", name)
        choice = _Choice(PluginKind.REWARD_ADAPTER, reward.adapter, (*path, "adapter"))
        adapter_class = cast("type[RewardAdapter] | None", self.load(choice))
        if adapter_class is None:
            return None
        adapter = cast(
            "RewardAdapter | None", self.made_with_options(choice, reward.options, (*path, "options"))
        )
        # The options may decide: an adapter that combines others has the role of theirs.
        needed = adapter_class.role if adapter is None else adapter.role
        if needed is not None and needed not in self._config.roles:
            message = (
                f'reward adapter "{reward.adapter}" asks the role "{needed}", which this job does not have; '
                f"add [{key_text(('roles', needed))}]. Roles: {', '.join(self._config.roles)}"
            )
            self.add([Fault(path=choice.path, message=message)])
        if adapter is None:
            return None
        return NamedReward(
            name=name,
            adapter=adapter,
            on_error=reward.on_error,
            retries=reward.retries,
            timeout_s=reward.timeout_s,
        )

    def sink_options(self, choice: _Choice) -> Any:
        sink_class = self.load(choice)
        if sink_class is None:
            return None
        return self.options(sink_class.options, self._config.sink.options, ("sink", "options"))

    def check_generation(self, roles: Mapping[str, ResolvedRole | None]) -> None:
        """A batch needs one role that makes the samples; not told while a role is itself faulty."""
        sound = [role for role in roles.values() if role is not None]
        if len(sound) < len(roles):
            return
        makers = [role.name for role in sound if role.plugin.generation() is not None]
        if len(makers) != 1:
            found = f"several do: {', '.join(makers)}" if makers else f"none does. Roles: {', '.join(roles)}"
            self.add([Fault(path=("batch",), message=f"one role must make the samples, but {found}")])

    # --- plugins ------------------------------------------------------------------------

    def load(self, choice: _Choice) -> type[Any] | None:
        """Return the chosen plugin's class."""
        if choice in self._refused:
            return None
        try:
            return self._host.load(choice.kind, choice.name)
        except (UnknownPluginError, DuplicatePluginError) as error:
            self.add([Fault(path=choice.path, message=str(error))])
        except PluginError as error:
            self._note_broken(choice, error)
        self._refused.add(choice)
        return None

    def made(self, choice: _Choice, *arguments: object) -> object | None:
        """Return an instance of the chosen plugin."""
        plugin_class = self.load(choice)
        if plugin_class is None:
            return None
        try:
            return plugin_class(*arguments)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything; it becomes the cause
            plugin = self._host.find(choice.kind, choice.name)
            broken = load_error(plugin, f"making {plugin_class.__qualname__}", error)
            broken.__cause__ = error
            self._note_broken(choice, broken)
            return None

    def made_with_options(
        self, choice: _Choice, table: Mapping[str, Any], options_path: KeyPath
    ) -> object | None:
        """Return an instance of the chosen plugin, which takes an instance of its options."""
        plugin_class = self.load(choice)
        if plugin_class is None:
            return None
        options = self.options(plugin_class.options, table, options_path)
        return None if options is None else self.made(choice, options)

    def options(self, options_class: type[Any], table: Mapping[str, Any], path: KeyPath) -> Any:
        try:
            return structure(options_class, table)
        except StructureError as error:
            self.add(fault.under(path) for fault in error.faults)
            return None

    def _note_broken(self, choice: _Choice, error: PluginError) -> None:
        error.add_note(f"selected by {key_text(choice.path)} in {self._file}")
        self._broken.append(error)
        self.add([Fault(path=choice.path, message=str(error))])
