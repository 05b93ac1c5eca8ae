"""rolecall's direct client as a process, at what its targets say; prints one JSON object.

    python clients.py burst --gateway URL --calls 2000
    python clients.py overhead --gateway URL --engine URL --callers 64 --seconds 4 --rounds 5

``burst``: that many calls at once through one ``InferenceClient``; seconds until all are answered, and the
memory that each cost. ``overhead``: the client, its bare transport, and the transport with each request
encoded and each answer decoded, by turns. On asyncio's own event loop, as a training script has it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from statistics import quantiles
from typing import Any

from processes import memory_mb, reset_peaks
from works import BARE, BARE_JSON, CLIENT, WORKS

from rolecall.client.codec import decode, encode
from rolecall.client.inference_client import GENERATE_PATH, InferenceClient
from rolecall.client.transport import Outgoing, Transport
from rolecall.errors import RequestError

PAYLOAD: dict[str, Any] = json.loads(next(work for work in WORKS if work.name == "client-64").body())
del PAYLOAD["model"]
BODY = json.dumps(PAYLOAD).encode()
HEADERS = [(b"content-type", b"application/json"), (b"accept-encoding", b"identity")]
WARM_S = 0.5
MOST_BURST_S = 120.0

Call = Callable[[], Awaitable[object]]


async def burst(gateway: str, calls: int) -> dict[str, Any]:
    async with InferenceClient(gateway, max_concurrency=calls, timeout_s=MOST_BURST_S) as client:
        await client.generate(PAYLOAD)
        reset_peaks(["self"])
        idle_mb = memory_mb(["self"])
        began = time.monotonic()
        answers = await asyncio.gather(
            *(client.generate(PAYLOAD) for _ in range(calls)), return_exceptions=True
        )
        seconds = time.monotonic() - began
        peak_mb = memory_mb(["self"], peak=True)
    faults = [answer for answer in answers if isinstance(answer, RequestError)]
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, RequestError):
            raise answer
    return {
        "figures": {
            "seconds": seconds,
            "per_second": (calls - len(faults)) / seconds,
            "failed": len(faults),
            "idle_mb": idle_mb,
            "peak_mb": peak_mb,
            "kb_a_call": (peak_mb - idle_mb) * 1024 / calls,
        },
        "fault": f"{len(faults)} calls failed, the first: {faults[0]}" if faults else "",
    }


async def overhead(
    gateway: str, engine: str, *, callers: int, seconds: float, rounds: int
) -> dict[str, list[dict[str, float]]]:
    async with InferenceClient(gateway, max_concurrency=callers) as client:
        kind = type(client._transport)  # pyright: ignore[reportPrivateUsage]
        transport: Transport = kind(max_concurrency=callers)  # pyright: ignore[reportCallIssue, reportUnknownVariableType]

        async def bare(body: bytes = BODY) -> bytes:
            request = Outgoing(method="POST", url=engine + GENERATE_PATH, headers=HEADERS, body=body)
            incoming = await transport.send(request)
            answer = b"".join([chunk async for chunk in incoming.chunks()])
            await incoming.aclose()
            return answer

        async def bare_json() -> object:
            return decode(await bare(encode(PAYLOAD)))

        subjects: dict[str, Call] = {
            CLIENT: lambda: client.generate(PAYLOAD),
            BARE: bare,
            BARE_JSON: bare_json,
        }
        found = {subject: list[dict[str, float]]() for subject in subjects}
        for _ in range(rounds):
            for subject, call in subjects.items():
                await _callers(call, callers, WARM_S)
                found[subject].append(await _callers(call, callers, seconds))
        await transport.aclose()
    return found


async def _callers(call: Call, callers: int, seconds: float) -> dict[str, float]:
    latencies: list[float] = []

    async def call_on() -> None:
        while (began := time.perf_counter()) < ends:
            await call()
            latencies.append((time.perf_counter() - began) * 1e6)

    cpu, began = time.process_time(), time.perf_counter()
    ends = began + seconds
    await asyncio.gather(*(call_on() for _ in range(callers)))
    took, used = time.perf_counter() - began, time.process_time() - cpu
    percentiles = quantiles(latencies, n=100)
    return {
        "cpu_us": used / len(latencies) * 1e6,
        "per_second": len(latencies) / took,
        "p50_us": percentiles[49],
        "p99_us": percentiles[98],
        "failed": 0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["burst", "overhead"])
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--engine")
    parser.add_argument("--calls", type=int, default=2_000)
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.what == "burst":
        found: object = asyncio.run(burst(options.gateway, options.calls))
    else:
        found = asyncio.run(
            overhead(
                options.gateway,
                options.engine,
                callers=options.callers,
                seconds=options.seconds,
                rounds=options.rounds,
            )
        )
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
