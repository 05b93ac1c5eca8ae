"""Rules between the keys of one job file that need no plugin; pure, every fault at once."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterator
from pathlib import Path

from rolecall.batches.prompts_records import FIELDS
from rolecall.batches.prompts_tables import is_table, table_problem
from rolecall.config.lines import KeyPath
from rolecall.config.source import Fault
from rolecall.config.specs import (
    BatchSection,
    GatewaySection,
    JobConfig,
    ModelConfig,
    PlacementSection,
    RoleConfig,
)
from rolecall.config.words import quoted
from rolecall.nearest import did_you_mean


def job_faults(config: JobConfig, file: Path) -> Iterator[Fault]:
    """Check everything about a job that its file alone can tell."""
    yield from gateway_faults(config.gateway)
    yield from _nodes_faults(config.placement)
    yield from _training_faults(config)
    if config.batch is not None:
        yield from _prompts_faults(config.batch, file)


def _nodes_faults(placement: PlacementSection) -> Iterator[Fault]:
    if placement.nodes is not None and placement.devices is not None:
        message = (
            f"stands beside devices = {placement.devices}: the nodes say how many devices there are; drop one"
        )
        yield Fault(path=("placement", "nodes"), message=message)


def _training_faults(config: JobConfig) -> Iterator[Fault]:
    for name, role in config.training.items():
        path: KeyPath = ("training", name)
        if not name or name != name.strip():
            yield Fault(path=path, message=f"{quoted(name)} must be a name without blanks around it")
        if name in config.roles:
            yield Fault(path=path, message=f"{quoted(name)} is the name of an inference role; choose another")
        if role.on is None:
            if role.devices is None and config.placement.layout is None:
                yield Fault(
                    path=(*path, "devices"), message="is needed, or on = the role whose devices it uses"
                )
            continue
        host = config.training.get(role.on)
        at: KeyPath = (*path, "on")
        if host is None or role.on == name:
            others = [other for other in config.training if other != name]
            message = f"{quoted(role.on)} is no other training role{did_you_mean(role.on, others) or '.'}"
            yield Fault(path=at, message=f"{message} Training roles: {', '.join(others) or 'no others'}")
        elif host.on is not None:
            yield Fault(path=at, message=f"{quoted(role.on)} is itself on {quoted(host.on)}; write that one")
        elif role.devices is not None and host.devices is not None and role.devices > host.devices:
            message = f"{role.devices} are more than the {host.devices} of {quoted(role.on)}, which it is on"
            yield Fault(path=(*path, "devices"), message=message)
        if role.offload:
            message = f"is for {quoted(role.on)} to say: one process sleeps as a whole; drop it"
            yield Fault(path=(*path, "offload"), message=message)


def role_faults(role: RoleConfig, path: KeyPath) -> Iterator[Fault]:
    """Check the names that a role gives to its models."""
    for table in ("models", "aliases", "route_keys"):
        for name in getattr(role, table):
            if not name or name != name.strip():
                message = f"{quoted(name)} must be a name without blanks around it"
                yield Fault(path=(*path, table, name), message=message)
    for name, model in role.models.items():
        yield from _elasticity_faults(model, (*path, "models", name))
    if role.default_model is not None and role.default_model not in role.models:
        yield _no_model(role, (*path, "default_model"), role.default_model)
    for alias, model in role.aliases.items():
        if alias in role.models:
            message = "is the name of a model, so it can't be an alias too; give the alias another name"
            yield Fault(path=(*path, "aliases", alias), message=message)
        if model not in role.models:
            yield _no_model(role, (*path, "aliases", alias), model)
    for route_key, model in role.route_keys.items():
        if model not in role.models:
            yield _no_model(role, (*path, "route_keys", route_key), model)


def _elasticity_faults(model: ModelConfig, path: KeyPath) -> Iterator[Fault]:
    at: KeyPath = (*path, "max_replicas")
    if model.max_replicas is None:
        if model.external_replicas:
            message = (
                "means nothing without max_replicas, up to which the model is scaled out; write that too"
            )
            yield Fault(path=(*path, "external_replicas"), message=message)
        return
    if model.max_replicas < model.replicas:
        message = (
            f"{model.max_replicas} is less than the {model.replicas} replicas that the model starts with"
        )
        yield Fault(path=at, message=message)
    if model.prefill_replicas:
        message = "can't stand beside prefill_replicas: pairs are not scaled while they run; drop one of them"
        yield Fault(path=at, message=message)


def _no_model(role: RoleConfig, path: KeyPath, name: str) -> Fault:
    if name in role.aliases:
        return Fault(path=path, message=f"{quoted(name)} is an alias; write the model it stands for")
    return Fault(path=path, message=f"{quoted(name)} is not a model of this role{_known(name, role.models)}")


def _known(name: str, names: Collection[str]) -> str:
    return f"{did_you_mean(name, names) or '.'} Models: {', '.join(names)}"


def gateway_faults(gateway: GatewaySection) -> Iterator[Fault]:
    """Check who would be let in."""
    if _is_loopback(gateway.host) or gateway.bearer_token_env or gateway.allow_unauthenticated:
        return
    yield Fault(
        path=("gateway", "host"),
        message=(
            f"{quoted(gateway.host)} can be reached from other machines, so callers must send a token: set "
            "gateway.bearer_token_env to the environment variable that holds it, listen on 127.0.0.1, "
            "or write allow_unauthenticated = true to let everyone in"
        ),
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name; nobody but the resolver knows where it leads


def _prompts_faults(batch: BatchSection, file: Path) -> Iterator[Fault]:
    prompts = (file.parent / batch.prompts).absolute()
    message = None
    if not prompts.exists():
        message = f"the file {prompts} does not exist; a relative path starts from the job file's folder"
    elif is_table(prompts) and (problem := table_problem(prompts)) is not None:
        message = f"{prompts} {problem}"
    if message is not None:
        yield Fault(path=("batch", "prompts"), message=message)
    if batch.columns is not None:
        for name in batch.columns:
            if name not in FIELDS:
                hint = did_you_mean(name, FIELDS) or "."
                yield Fault(
                    path=("batch", "columns", name),
                    message=f"is no field of a prompt{hint} Fields: {', '.join(FIELDS)}",
                )
        if "prompt" not in batch.columns:
            yield Fault(path=("batch", "columns"), message="must say which one is the prompt")
