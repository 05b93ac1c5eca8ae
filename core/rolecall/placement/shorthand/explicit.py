"""From a layout in short to the keys of the job file that it stands for.

Every share becomes a number of devices, and that a number of replicas; the sizes of engines stay as the
file has them. Nothing is laid out here: what comes out is planned like any job file. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from attrs import frozen

from rolecall.config.lines import KeyPath
from rolecall.config.overrides import Override
from rolecall.config.source import key_text
from rolecall.config.specs import JobConfig, ModelConfig
from rolecall.interfaces.placement_mode import Arrangement
from rolecall.placement.shorthand.arrangements import arrangements, choose_mode
from rolecall.placement.shorthand.names import model_of, name_faults
from rolecall.placement.shorthand.notation import Layout, LayoutError, Step, Term, read_layout
from rolecall.placement.wording import counted

LAYOUT_PATH: KeyPath = ("placement", "layout")
_ORIGIN = key_text(LAYOUT_PATH)


def explicit_form(text: str, config: JobConfig, modes: Mapping[str, Arrangement]) -> tuple[Override, ...]:
    """Return the keys that a layout stands for, in the order of the job file.

    Args:
        modes: what the placement modes that may be chosen declare.

    Raises:
        LayoutError: the text is no layout, or none of this job; has every fault.
    """
    layout = read_layout(text)
    faults = [*name_faults(layout, config)]
    if faults:
        raise LayoutError(faults)
    suited = arrangements(layout, config.training)
    mode, arrangement = choose_mode(layout, suited, modes, named=config.placement.mode)
    shares = _Shares.of(layout, config, arrangement)
    faults = [*shares.faults(config)]
    if faults:
        raise LayoutError(faults)
    return (_key("placement", "mode", value=mode), *shares.keys(config))


@frozen(kw_only=True)
class _Shares:
    """A layout whose names are right, with what its shares come to.

    pool: devices that a part is a part of; None if nothing says how many there are.
    """

    layout: Layout
    apart: bool
    pool: int | None

    @classmethod
    def of(cls, layout: Layout, config: JobConfig, arrangement: Arrangement) -> _Shares:
        apart = arrangement is Arrangement.APART
        return cls(layout=layout, apart=apart, pool=_pool_devices(layout, config, apart=apart))

    def devices(self, term: Term) -> int | Fraction | None:
        """Return a share in devices; None if nothing says how many those are."""
        if isinstance(term.share, int):
            return term.share
        return None if self.pool is None else term.share * self.pool

    # --- what is wrong ------------------------------------------------------------------------

    def faults(self, config: JobConfig) -> Iterator[str]:
        """Return every share that can't be had."""
        for term in self.layout.terms():
            message = self._fault(term, config)
            if message is not None:
                yield self.layout.fault(term.share_at, message)
        if self.pool is not None:
            yield from self._room_faults(self.pool)

    def _fault(self, term: Term, config: JobConfig) -> str | None:
        devices = self.devices(term)
        if devices is None:
            return "a part of what? placement.devices is not set; set it, or write a number of devices"
        if devices.denominator > 1:
            message = f"{term.share} of {self.pool} devices is {float(devices):.2f}"
            return f"{message}; write a part that divides them, or a number of devices"
        if term.role in config.roles:
            return _engine_fault(*model_of(term, config), int(devices))
        return None

    def _room_faults(self, pool: int) -> Iterator[str]:
        """What is side by side, or all that stands apart, is at most what there is."""
        together: list[Step] = [tuple(self.layout.terms())] if self.apart else list(self.layout.steps())
        for step in together:
            left: int | Fraction = pool
            for term in step:
                devices = self.devices(term) or 0
                if devices > left:
                    message = f"{float(devices):g} of {counted(pool, 'device')}, and {float(left):g} are left"
                    yield self.layout.fault(term.share_at, message)
                    break
                left -= devices

    # --- what it stands for -------------------------------------------------------------------

    def keys(self, config: JobConfig) -> Iterator[Override]:
        """Return the keys of a layout without faults, but for the mode."""
        if not self.apart and config.placement.nodes is None:
            yield _key("placement", "devices", value=self.pool)
        devices = {term: int(self.devices(term) or 0) for term in self.layout.terms()}
        for name, role in config.roles.items():
            of_role = {term: count for term, count in devices.items() if term.role == name}
            if of_role and role.devices is not None:
                yield _key("roles", name, "devices", value=sum(of_role.values()))
            for term, count in of_role.items():
                model, engine = model_of(term, config)
                replicas = count // engine.devices_per_engine
                yield _key("roles", name, "models", model, "replicas", value=replicas)
        for term, count in devices.items():
            if term.role in config.training:
                yield _key("training", term.role, "devices", value=count)


def _pool_devices(layout: Layout, config: JobConfig, *, apart: bool) -> int | None:
    """Return how many devices the job has: as the file says or, of a shared pool, as the trainer needs.

    Without either, numbers in the layout say how large a shared pool is; None if nothing does.
    """
    placement = config.placement
    if placement.nodes is not None:
        return sum(placement.nodes)
    if placement.devices is not None or apart:
        return placement.devices
    if any(isinstance(term.share, Fraction) for term in layout.terms()):
        return sum(role.devices or 0 for role in config.training.values() if role.on is None) or None
    return max(sum(int(term.share) for term in step) for step in layout.steps())


def _engine_fault(name: str, model: ModelConfig, devices: int) -> str | None:
    per_engine = model.devices_per_engine
    if devices % per_engine == 0:
        return None
    below = devices // per_engine * per_engine
    choices = " or ".join(str(count) for count in (below, below + per_engine) if count)
    found = counted(devices, "device")
    return f'{found} can\'t be divided into engines of {per_engine}, as "{name}" has them; write {choices}'


def _key(*path: str, value: Any) -> Override:
    return Override(path, value, _ORIGIN)
