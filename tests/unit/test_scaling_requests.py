"""What may be asked for, as JSON: at the gateway's endpoints, and what becomes of it there."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from rolecall.api import PayloadError, scale_endpoints
from rolecall.discovery.registry import Registry
from rolecall.discovery.source import SnapshotSource
from rolecall.errors import JobError, ScaleConflictError, ScaleRefused, UnknownScaleOperationError
from rolecall.gateway.app import build_gateway
from rolecall.gateway.settings import GatewaySettings
from rolecall.scaling.request import (
    OnPartial,
    ScaleIn,
    ScaleOut,
    ScaleRequest,
    scale_in_from,
    scale_out_from,
)
from rolecall.testing.asgi_server import serving
from rolecall.testing.plain_role import PassesOn, PlainRole

OUT: dict[str, Any] = {"id": "1", "action": "scale_out", "final": True}


def test_a_request_is_read_with_all_of_its_fields() -> None:
    assert scale_out_from({"total": 3}) == ScaleOut(total=3)
    body = {
        "urls": ["http://a:1/", "http://a:1", "https://[::1]:30000/engine"],
        "model_path": "/m",
        "model": "p",
    }
    assert scale_out_from({**body, "on_partial": "roll_back", "timeout_s": 5, "dry_run": True}) == ScaleOut(
        urls=("http://a:1", "https://[::1]:30000/engine"),
        model_path="/m",
        model="p",
        on_partial=OnPartial.ROLL_BACK,
        timeout_s=5.0,
        dry_run=True,
    )
    assert scale_in_from({"total": 1, "force": True}) == ScaleIn(total=1, force=True)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "total"),
        ({"total": 0}, "total"),
        ({"total": True}, "total"),
        ({"total": 2, "urls": ["http://a:1"]}, "total"),
        ({"urls": []}, "urls"),
        ({"urls": ["a:1"]}, "urls"),
        ({"urls": ["http://me:secret@a:1"]}, "urls"),
        ({"urls": ["http://a:1?x=1"]}, "urls"),
        ({"urls": ["http://a:65536"]}, "urls"),
        ({"urls": ["http://a:1\n"]}, "urls"),
        ({"total": 2, "model_path": "/m"}, "model_path"),
        ({"total": 2, "model": ""}, "model"),
        ({"total": 2, "timeout_s": 0}, "timeout_s"),
        ({"total": 2, "timeout_s": float("nan")}, "timeout_s"),
        ({"total": 2, "on_partial": "hope"}, "on_partial"),
        ({"total": 2, "dry_run": 1}, "dry_run"),
        ({"total": 2, "force": True}, "force"),
    ],
)
def test_a_wrong_field_is_named(body: dict[str, Any], field: str) -> None:
    with pytest.raises(PayloadError) as refused:
        scale_out_from(body)
    assert refused.value.field == field
    assert field in str(refused.value)


def test_in_needs_a_total_and_knows_no_urls() -> None:
    for body, field in (({}, "total"), ({"total": 1, "urls": ["http://a:1"]}, "urls")):
        with pytest.raises(PayloadError) as refused:
            scale_in_from(body)
        assert refused.value.field == field


# --- the endpoints ----------------------------------------------------------------------


class Elastic(PassesOn):
    def endpoints(self) -> Any:
        return scale_endpoints()


class Service:
    """Remembers what it was asked; raises ``error`` if it has one."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.error: Exception | None = None

    async def begin(self, request: ScaleRequest) -> dict[str, Any]:
        return self._answer(request)

    async def status(self, operation: str, wait_s: float) -> dict[str, Any]:
        return self._answer((operation, wait_s))

    async def cancel(self, operation: str) -> dict[str, Any]:
        return self._answer(("cancel", operation))

    async def operations(self) -> list[dict[str, Any]]:
        return [OUT, {**OUT, "id": "2", "action": "scale_in"}]

    def _answer(self, asked: Any) -> dict[str, Any]:
        self.asked.append(asked)
        if self.error is not None:
            raise self.error
        return OUT


async def ask(service: Service | None, method: str, path: str, **options: Any) -> httpx.Response:
    role = PlainRole(plugin=Elastic())
    source = SnapshotSource(Registry().reader(role.name), role=role.name)
    gateway = build_gateway(role, source, GatewaySettings(max_wait_s=3, max_body_bytes=200), scaling=service)
    async with serving(gateway) as url, httpx.AsyncClient(base_url=url) as http:
        return await http.request(method, path, **options)


async def test_a_begun_operation_is_202_and_a_dry_run_200() -> None:
    service = Service()
    begun = await ask(service, "POST", "/scale_out", json={"total": 2})
    dry = await ask(service, "POST", "/scale_in", json={"total": 2, "dry_run": True})
    assert (begun.status_code, begun.json(), dry.status_code) == (202, OUT, 200)
    assert service.asked == [ScaleOut(total=2), ScaleIn(total=2, dry_run=True)]


async def test_status_waits_as_long_as_a_gateway_lets_anybody_wait() -> None:
    service = Service()
    assert (await ask(service, "GET", "/scale_out/1?wait_s=60")).json() == OUT
    assert (await ask(service, "POST", "/scale_out/1/cancel")).json() == OUT
    assert service.asked == [("1", 3), ("1", 0.0), ("cancel", "1")]
    wrong = await ask(service, "GET", "/scale_out/1?wait_s=-1")
    assert (wrong.status_code, wrong.json()["error"]["field"]) == (400, "wait_s")


async def test_each_kind_of_operation_is_at_its_own_path() -> None:
    service = Service()
    assert (await ask(service, "GET", "/scale_in")).json()["operations"][0]["id"] == "2"
    assert (await ask(service, "GET", "/scale_in/1")).status_code == 404
    assert (await ask(service, "POST", "/scale_in/1/cancel")).status_code == 404
    assert ("cancel", "1") not in service.asked


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (ScaleRefused("no room"), 400, "bad_request"),
        (ScaleConflictError("5 is under way"), 409, "conflict"),
        (UnknownScaleOperationError("none"), 404, "not_found"),
        (JobError("it is gone"), 503, "unavailable"),
    ],
)
async def test_what_the_service_says_becomes_a_status(error: Exception, status: int, kind: str) -> None:
    service = Service()
    service.error = error
    answer = await ask(service, "POST", "/scale_out", json={"total": 2})
    assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)
    assert str(error) in answer.json()["error"]["message"]


async def test_a_gateway_without_a_way_to_the_service_says_so() -> None:
    answer = await ask(None, "POST", "/scale_out", json={"total": 2})
    assert (answer.status_code, answer.json()["error"]["type"]) == (501, "not_here")
    assert (await ask(None, "POST", "/scale_out", json={"total": "2"})).status_code == 400
    assert (await ask(None, "POST", "/scale_out", content=b"{" + b" " * 300 + b"}")).status_code == 413
