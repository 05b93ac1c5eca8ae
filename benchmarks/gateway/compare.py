"""rolecall's gateway and direct client beside other proxies: one machine, one run, ratios.

    python benchmarks/gateway/compare.py [--quick] [--only rolecall,sglang-router,...]
        [--works unary-2k-64,...] [--seconds 4] [--rounds 5] [--json FILE]

README.md here says what is measured and how to read it. Whatever is started is ended, also by Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from attrs import asdict, frozen
from measure import HERE, Bench, Server, compile_programs, measure, working
from processes import BenchmarkError, Cores, Processes, pinned
from proxies import PROXIES, Proxy, start
from report import Machine, as_json, installed, verdict_table, work_table
from works import (
    CLIENT,
    DIRECT,
    ROLECALL,
    TARGETS,
    WORKS,
    Round,
    Rounds,
    Work,
    judge,
    with_added_latency,
)

SUBJECTS = [DIRECT, *(proxy.name for proxy in PROXIES), CLIENT]

_Told = TypeVar("_Told")


@frozen(kw_only=True)
class Plan:
    """What one run is to do. ``proxies`` are the installed ones of ``subjects``, what was asked for."""

    subjects: Sequence[str]
    proxies: Sequence[Proxy]
    works: Sequence[Work]
    rounds: int


# --- one work -----------------------------------------------------------------------------


def measured(bench: Bench, plan: Plan, work: Work) -> dict[str, list[Round]]:
    """Run all rounds of one work; subjects take turns."""
    with working(bench, work) as engine_port:
        if work.clients:
            return _clients_by_turns(bench, plan, work, engine_port)
        found: dict[str, list[Round]] = {}
        running: dict[str, Server] = {}
        for _ in range(plan.rounds):
            turn: dict[str, Round] = {}
            if DIRECT in plan.subjects:
                turn[DIRECT] = measure(bench, work, Server(name=DIRECT, port=engine_port), engine_port)
            for proxy in plan.proxies:
                if work.takes(proxy.name):
                    turn[proxy.name] = _of_proxy(bench, work, proxy, engine_port, running)
            if CLIENT in plan.subjects and work.takes(CLIENT):
                turn[CLIENT] = _client_burst(bench, work, engine_port)
            for subject, one in with_added_latency(turn).items():
                found.setdefault(subject, []).append(one)
        for server in running.values():
            if server.process:
                server.process.end()
        return found


def _of_proxy(bench: Bench, work: Work, proxy: Proxy, engine_port: int, running: dict[str, Server]) -> Round:
    try:
        server = running.pop(proxy.name, None) or start(bench, proxy, engine_port, work.path)
    except BenchmarkError as error:
        return Round(fault=f"it did not start: {error}")
    one = measure(bench, work, server, engine_port)
    assert server.process is not None
    if work.fresh or one.fault:
        server.process.end()
    else:
        running[proxy.name] = server
    return one


# --- rolecall's client ----------------------------------------------------------------------


def _client_burst(bench: Bench, work: Work, engine_port: int) -> Round:
    def with_gateway(gateway: str) -> Round:
        said = _client_process(bench, "burst", "--gateway", gateway, "--calls", str(work.callers))
        return Round(figures=said["figures"], fault=said["fault"])

    try:
        return _beside_gateway(bench, work, engine_port, with_gateway)
    except BenchmarkError as error:
        return Round(fault=str(error))


def _clients_by_turns(bench: Bench, plan: Plan, work: Work, engine_port: int) -> dict[str, list[Round]]:
    def with_gateway(gateway: str) -> dict[str, list[Round]]:
        words = ["overhead", "--gateway", gateway, "--engine", f"http://127.0.0.1:{engine_port}"]
        words += [
            "--callers",
            str(work.callers),
            "--seconds",
            str(bench.seconds),
            "--rounds",
            str(plan.rounds),
        ]
        said: Mapping[str, list[dict[str, float]]] = _client_process(bench, *words)
        return {subject: [Round(figures=one) for one in rounds] for subject, rounds in said.items()}

    try:
        return _beside_gateway(bench, work, engine_port, with_gateway)
    except BenchmarkError as error:
        return {CLIENT: [Round(fault=str(error))]}


def _beside_gateway(bench: Bench, work: Work, engine_port: int, ask: Callable[[str], _Told]) -> _Told:
    """Run a gateway for clients to learn from where the engine is; it is not what is measured."""
    proxy = next(proxy for proxy in PROXIES if proxy.name == ROLECALL)
    server = start(bench, proxy, engine_port, work.path, core=bench.cores.load)
    assert server.process is not None
    try:
        return ask(f"http://127.0.0.1:{server.port}")
    finally:
        server.process.end()


def _client_process(bench: Bench, *words: str) -> Any:
    command = [sys.executable, str(HERE / "clients.py"), *words]
    client = bench.processes.start(command, core=bench.cores.subject, piped=True)
    try:
        return json.loads(client.line())
    finally:
        client.end()


# --- the run --------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> None:
    only: list[str] = options.only or SUBJECTS
    versions = {proxy.name: proxy.version() for proxy in PROXIES if proxy.name in only}
    works = [work for work in WORKS if work.name in (options.works or _usual_works(options.quick))]
    plan = Plan(
        subjects=only,
        proxies=[proxy for proxy in PROXIES if versions.get(proxy.name)],
        works=works,
        rounds=options.rounds or (1 if options.quick else 5),
    )
    machine, cores = Machine.here(), Cores.chosen()
    seconds = options.seconds or (1.0 if options.quick else 4.0)
    print(f"{machine.line()}\n{installed(versions)}\n", flush=True)
    for warning in _warnings(machine, cores, quick=options.quick):
        print(f"Note: {warning}\n", flush=True)
    found: dict[str, Rounds] = {}
    with tempfile.TemporaryDirectory(prefix="rolecall-gateway-") as name, pinned(cores.load):
        folder = Path(name)
        with Processes(folder) as processes:
            bench = Bench(
                folder=folder,
                processes=processes,
                cores=cores,
                seconds=seconds,
                warm_s=min(1.0, seconds / 2),
            )
            compile_programs(bench)
            for work in plan.works:
                found[work.name] = measured(bench, plan, work)
                print(f"{work_table(work, found[work.name])}\n", flush=True)
    verdicts = [judge(target, found[target.work]) for target in TARGETS if target.work in found]
    print(verdict_table(verdicts, {work.name: work.title for work in WORKS}))
    if options.json:
        ran = {"seconds": seconds, "rounds": plan.rounds, "cores": asdict(cores)}
        told = as_json(machine, versions, ran, found, verdicts)
        Path(options.json).write_text(json.dumps(told, indent=1) + "\n")


def _usual_works(quick: bool) -> list[str]:
    return [work.name for work in WORKS if not (quick and work.callers > 2_000)]


def _warnings(machine: Machine, cores: Cores, *, quick: bool) -> list[str]:
    found: list[str] = []
    if quick:
        found.append("a quick run shows that everything works; its figures mean nothing.")
    if machine.load_before > 0.3 * machine.cores:
        found.append("the machine is busy: latencies and rates are worthless, CPU times are too high.")
    if cores.load == cores.subject:
        found.append("there is one core only, so the load generator takes time from what it measures.")
    return found


def _names(known: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return names

    return parse


def _end(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round of a second: does everything work?")
    parser.add_argument("--only", type=_names(SUBJECTS), help=f"some of {', '.join(SUBJECTS)}")
    names = [work.name for work in WORKS]
    parser.add_argument("--works", type=_names(names), help=f"some of {', '.join(names)}")
    parser.add_argument("--seconds", type=float, help="of each measurement")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--json", metavar="FILE", help="write everything there, every round")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        run(parser.parse_args())
    except BenchmarkError as error:
        raise SystemExit(f"compare: {error}") from error
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
