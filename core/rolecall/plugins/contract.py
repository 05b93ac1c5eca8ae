"""From a plugin's entry point to its class: import the module, call its hook, check the class.

Called by the host for a plugin that was selected, and by ``rolecall plugins check`` for all. A
fault in the plugin becomes a :class:`PluginError` naming plugin, distribution and version; an
exception that its code raised is kept as the cause. Every broken rule of a class is told at
once. A module is judged by a pluggy manager of its own, so no plugin can disturb another.
"""

from __future__ import annotations

import importlib
import inspect
import re
import types
from collections.abc import Iterator
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints

import attrs
import pluggy

from rolecall.errors import PluginContractError, PluginLoadError
from rolecall.interfaces.router import RouterBackend
from rolecall.nearest import did_you_mean
from rolecall.plugins import hookspecs
from rolecall.plugins.installed import PluginInfo
from rolecall.plugins.kinds import PluginKind
from rolecall.plugins.trace import Trace

PROTOCOLS: dict[PluginKind, type[Any]] = {
    PluginKind.ROLE: hookspecs.Role,
    PluginKind.ROUTING_POLICY: hookspecs.RoutingPolicy,
    PluginKind.PLACEMENT_MODE: hookspecs.PlacementMode,
    PluginKind.REWARD_ADAPTER: hookspecs.RewardAdapter,
    PluginKind.ENGINE_BACKEND: hookspecs.EngineBackend,
    PluginKind.BATCH_SINK: hookspecs.BatchSink,
    PluginKind.OBSERVER: hookspecs.Observer,
}
"""What the class of each kind must offer."""

_HOOKS = types.ModuleType("hooks")
vars(_HOOKS).update({kind.hook: getattr(hookspecs, kind.hook) for kind in PluginKind})
"""The hooks and nothing else: pluggy looks at every name of what it is given, for every plugin anew."""

PARTS: dict[str, type[Any]] = {"router": RouterBackend}
"""Class attributes that are classes with a contract of their own, and that contract."""


def load_class(info: PluginInfo, trace: Trace) -> type[Any]:
    """Import the plugin's module and return its class, checked; each step is told to ``trace``.

    Raises:
        PluginLoadError: its code raised; that exception is the cause.
        PluginContractError: hook or class break the contract; the message has every rule broken.
    """
    with trace.step(f"{info}: import of {info.target}"):
        module = _import_module(info)
    with trace.step(f"{info}: {info.kind.hook}"):
        plugin_class = _call_hook(info, module)
    with trace.step(f"{info}: check of {getattr(plugin_class, '__qualname__', plugin_class)!s}"):
        return _checked(info, plugin_class)


def _checked(info: PluginInfo, plugin_class: object) -> type[Any]:
    if not isinstance(plugin_class, type):
        found = "nothing" if plugin_class is None else f"an instance of {type(plugin_class).__qualname__}"
        raise PluginContractError(f"{info}: {info.kind.hook} must return a class, it returned {found}")
    faults = tuple(_class_faults(info, plugin_class))
    if faults:
        lines = "".join(f"\n  - {fault}" for fault in faults)
        raise PluginContractError(
            f"{info} breaks the contract of its kind ({plugin_class.__qualname__}):{lines}"
        )
    return plugin_class


def _import_module(info: PluginInfo) -> types.ModuleType:
    if not all(part.isidentifier() for part in info.target.split(".")):
        raise PluginContractError(
            f'{info}: its entry point must name a module and nothing more, found "{info.target}". '
            f"The module implements {info.kind.hook}, which returns the class"
        )
    try:
        return importlib.import_module(info.target)
    except (Exception, SystemExit) as error:
        raise load_error(info, f"importing {info.target}", error) from error


def _call_hook(info: PluginInfo, module: types.ModuleType) -> object:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(_HOOKS)
    try:
        manager.register(module)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        message = _misspelt_hooks(manager, module) or _misfit_hooks(module)
        raise PluginContractError(f"{info}: {message or error}") from error
    hook = getattr(manager.hook, info.kind.hook)
    if not hook.get_hookimpls():
        raise PluginContractError(f"{info}: {_missing_hook(manager, module, info.kind)}")
    try:
        return hook()
    except (Exception, SystemExit) as error:
        raise load_error(info, info.kind.hook, error) from error


def load_error(info: PluginInfo, step: str, error: BaseException) -> PluginLoadError:
    """Return what says that a plugin's own code raised at a step; the caller makes ``error`` its cause."""
    return PluginLoadError(
        f"{info} could not be loaded: {step} raised {type(error).__name__}: {error}. "
        f"The fault is in {info.distribution}, or in what it needs (see: pip check)"
    )


def _misspelt_hooks(manager: pluggy.PluginManager, module: types.ModuleType) -> str:
    hooks = [kind.hook for kind in PluginKind]
    unknown = [caller.name for caller in manager.get_hookcallers(module) or () if not caller.has_spec()]
    return "; ".join(
        f'"{name}" in {module.__name__} is marked as a hook but is none'
        f"{did_you_mean(name, hooks) or '. Hooks: ' + ', '.join(hooks)}"
        for name in unknown
    )


def _misfit_hooks(module: types.ModuleType) -> str:
    hooks = {kind.hook: getattr(module, kind.hook, None) for kind in PluginKind}
    signatures = {name: inspect.signature(hook) for name, hook in hooks.items() if callable(hook)}
    return "; ".join(
        f"{name} in {module.__name__} must take no argument, found {name}{signature}"
        for name, signature in signatures.items()
        if signature.parameters
    )


def _missing_hook(manager: pluggy.PluginManager, module: types.ModuleType, kind: PluginKind) -> str:
    if callable(getattr(module, kind.hook, None)):
        return f"{kind.hook} in {module.__name__} must be marked with @hookimpl (from rolecall.api)"
    implemented = {caller.name for caller in manager.get_hookcallers(module) or ()}
    others = [
        f"it implements {other.hook}, which belongs in the group {other.group}"
        for other in PluginKind
        if other.hook in implemented
    ]
    found = f"; {' and '.join(others)}" if others else ""
    return f"{module.__name__} must implement {kind.hook}, being registered in the group {kind.group}{found}"


# --- the class --------------------------------------------------------------------------


def _class_faults(info: PluginInfo, plugin_class: type[Any]) -> Iterator[str]:
    yield from _member_faults(info, plugin_class, PROTOCOLS[info.kind])


def _member_faults(info: PluginInfo, plugin_class: type[Any], protocol: type[Any]) -> Iterator[str]:
    for member, hint in class_attributes(protocol).items():
        if not hasattr(plugin_class, member):
            yield f'the class attribute "{member}" is missing'
            continue
        value = getattr(plugin_class, member)
        if not _is_a(value, hint):
            yield f'"{member}" must be {_type_text(hint)}, found {_value_text(value)}'
        elif member == "options":
            yield from _options_faults(value)
        elif member == "name" and value != info.name:
            yield f'"name" is "{value}", but the entry point is called "{info.name}"; make them equal'
        elif member == "api_version" and value != hookspecs.ROLECALL_API:
            behind = "rolecall" if value > hookspecs.ROLECALL_API else info.distribution
            yield (
                f'"api_version" is {value}; this rolecall supports {hookspecs.ROLECALL_API} only. '
                f"Install a newer {behind}"
            )
        elif member in PARTS and isinstance(value, type):
            faults = _member_faults(info, value, PARTS[member])
            yield from (f'"{member}" ({value.__qualname__}): {fault}' for fault in faults)
    for method in methods(protocol):
        found = inspect.getattr_static(plugin_class, method, None)
        # A class that inherits from the protocol has its methods, with empty bodies.
        if found is None or found is inspect.getattr_static(protocol, method):
            yield f'the method "{method}" is missing'
        elif not callable(getattr(plugin_class, method)):
            yield f'"{method}" must be a method, found {_value_text(found)}'


def class_attributes(protocol: type[Any]) -> dict[str, Any]:
    """Return the class attributes that a protocol asks for, with their types."""
    hints = get_type_hints(protocol)
    return {name: get_args(hint)[0] for name, hint in hints.items() if get_origin(hint) is ClassVar}


def methods(protocol: type[Any]) -> tuple[str, ...]:
    """Return the methods that a protocol asks for."""
    return tuple(
        name for name, member in vars(protocol).items() if inspect.isfunction(member) and name[0] != "_"
    )


def _options_faults(options: type[Any]) -> Iterator[str]:
    if not attrs.has(options):
        yield f'"options" must be an attrs class, found {options.__qualname__}; mark it with @attrs.frozen'
        return
    try:
        attrs.resolve_types(options)
    except NameError as error:
        yield f'the types of "options" ({options.__qualname__}) can\'t be resolved: {error}'


def _is_a(value: object, hint: Any) -> bool:
    """Whether a class attribute has the type its protocol declares; a bool is not an int."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(_is_a(value, argument) for argument in arguments)
    if origin in (tuple, frozenset):
        return isinstance(value, origin) and all(_is_a(item, arguments[0]) for item in value)
    if origin is type:
        return isinstance(value, type)
    return isinstance(value, hint) and (hint is not int or not isinstance(value, bool))


def _type_text(hint: Any) -> str:
    """Write a type without the modules that its names come from: ``frozenset[Need]``."""
    if isinstance(hint, type) and not get_args(hint):
        return hint.__name__
    return re.sub(r"(\w+\.)+(?=\w)", "", str(hint))


def _value_text(value: object) -> str:
    """Write a value; an object by its class, since the address in its own text helps nobody."""
    text = repr(value)
    return f"an instance of {type(value).__qualname__}" if re.search(r" at 0x[0-9a-f]+>", text) else text
