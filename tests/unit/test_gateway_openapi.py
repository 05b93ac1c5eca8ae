"""The OpenAPI documents: generated, in step with what runs, and saying what the checks say."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from rolecall.api import Endpoint, PayloadError, PayloadShape, check_native_payload
from rolecall.discovery.snapshot import Snapshot
from rolecall.engines.replica_state import ReplicaState
from rolecall.gateway.openapi import openapi_document
from rolecall.gateway.openapi_schemas import components
from rolecall.plugins.host import PluginHost
from rolecall.plugins.kinds import PluginKind
from rolecall.testing.plain_role import PassesOn, PlainRole
from rolecall.testing.plane import plane
from rolecall.testing.snapshots import model_entry, snapshot_of

ROOT = Path(__file__).parents[2]
METHODS = ("get", "post", "put", "patch", "delete", "options")


def generator() -> Any:
    spec = importlib.util.spec_from_file_location("generate_openapi", ROOT / "docs" / "generate_openapi.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = generator()
DOCUMENTS: dict[str, dict[str, Any]] = GENERATOR.documents()


def test_the_committed_documents_are_the_generated_ones() -> None:
    committed = {path.name: path.read_text(encoding="utf-8") for path in GENERATOR.FOLDER.iterdir()}
    assert committed == {name: GENERATOR.written(document) for name, document in DOCUMENTS.items()}, (
        "run: python docs/generate_openapi.py"
    )
    assert len(committed) == 3


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_schema_is_one(name: str) -> None:
    for schema in DOCUMENTS[name]["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    for operations in DOCUMENTS[name]["paths"].values():
        for operation in operations.values():
            said = [operation.get("requestBody", {}), *operation["responses"].values()]
            shown = [media for part in said for media in part.get("content", {}).values()]
            for schema in [media["schema"] for media in shown if "schema" in media]:
                Draft202012Validator.check_schema(schema)


# --- in step with what runs -------------------------------------------------------------


@pytest.mark.parametrize("name", DOCUMENTS)
async def test_a_gateway_serves_what_its_document_says_and_nothing_else_there(name: str) -> None:
    role = name.removesuffix(".json")
    plugin = PluginHost.from_environment().load(PluginKind.ROLE, role)
    served = PlainRole(plugin=plugin(plugin.options()))
    async with (
        plane(served) as running,
        httpx.AsyncClient(base_url=running.url, timeout=10, verify=False) as http,
    ):
        for path, operations in DOCUMENTS[name]["paths"].items():
            for method in METHODS:
                answer = await http.request(method, path)
                if method in operations:
                    assert str(answer.status_code) in operations[method]["responses"], f"{method} {path}"
                else:
                    assert answer.status_code == 405
                    allowed = {word.strip().lower() for word in answer.headers["allow"].split(",")}
                    assert allowed - {"head"} == set(operations), path
        for path in ("/generate/", "/health/", "/v1", "/v1/completions", "/openapi.json", "/docs", "/"):
            answer = await http.get(path)
            assert answer.status_code == 404, path
            assert "location" not in answer.headers


# --- schemas and checks -----------------------------------------------------------------


def validator(name: str) -> Draft202012Validator:
    whole = Resource.from_contents({"components": {"schemas": components()}}, DRAFT202012)
    registry: Any = Registry().with_resource("urn:document", whole)
    return Draft202012Validator({"$ref": f"urn:document#/components/schemas/{name}"}, registry=registry)


NATIVE = validator("NativePayload")
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.sampled_from([0.5, "", "x", [], [1], [1, -1], [1, True], ["x"], {}, {"n": 1}, {"n": 2}, {"n": None}]),
    st.sampled_from([{"n": True}, {"n": "1"}, {"temperature": 0}]),
)
FIELDS = ("text", "input_ids", "sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num")
MORE = ("token_ids_logprob", "return_prompt_token_ids", "lora_path", "messages", "anything")


def refused(payload: dict[str, Any]) -> str:
    try:
        check_native_payload(payload)
    except PayloadError as error:
        return str(error)
    return ""


@example({"text": "x", "sampling_params": {"n": True}})
@example({"text": "x", "sampling_params": {"n": 1}})
@example({"text": None, "input_ids": [1]})
@given(st.dictionaries(st.sampled_from([*FIELDS, *MORE]), VALUES, max_size=3))
def test_the_native_schema_says_what_the_check_says(payload: dict[str, Any]) -> None:
    reason = refused(payload)
    assert NATIVE.is_valid(payload) == (not reason), f"{payload}: {reason or 'taken'}"


@pytest.mark.parametrize("field", ["model", "route_key", "rid", "stream", "bootstrap_host", "bootstrap_room"])
@pytest.mark.parametrize("value", [None, "", " ", "m", "x y", 5, True, [], ["a"], ["a", ""], {}], ids=repr)
@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions"])
async def test_the_gateways_own_fields_are_described_as_they_are_checked(
    gateway: httpx.AsyncClient, path: str, field: str, value: Any
) -> None:
    chat = path != "/generate"
    payload = {"messages": [{}]} if chat else {"text": "x"}
    answer = await gateway.post(path, json={**payload, field: value})
    described = validator("Chat" if chat else "NativePayload").is_valid({**payload, field: value})
    if field in ("model", "route_key") and isinstance(value, str) and value != "m":
        described = False  # which names there are is no matter of schemas
    assert (answer.status_code == 200) == described, answer.text


@pytest.fixture
async def gateway() -> Any:
    async with plane(PlainRole()) as running:
        running.publish(route_keys={"m": "m"})
        async with httpx.AsyncClient(base_url=running.url, timeout=10, verify=False) as http:
            yield http


@pytest.mark.parametrize("state", list(ReplicaState))
def test_snapshots_are_what_the_schema_says(state: ReplicaState) -> None:
    models = {
        "a": model_entry("a", ["http://h:1", "http://h:2"], state=state),
        "b": model_entry("b", router_url="http://r:1"),
    }
    snapshot: Snapshot = snapshot_of(models, policy="p", route_keys={"k": "a"}, aliases={"x": "b"})
    shown = snapshot.to_dict()
    schema = validator("Snapshot")
    schema.validate(shown)
    for change in ({"schema_version": 1}, {"more": 1}, {"topology_revision": "1"}, {"models": []}):
        assert not schema.is_valid({**shown, **change})
    assert not schema.is_valid({name: value for name, value in shown.items() if name != "routing"})


# --- what a role says of its own --------------------------------------------------------

BODY = {"application/json": {"schema": {"type": "object", "required": ["grown"]}}}


class Described(PassesOn):
    more_payloads = (
        PayloadShape(
            request={"type": "object", "properties": {"question": {"type": "string"}}},
            answer={"type": "object", "required": ["verdict"]},
        ),
    )

    def endpoints(self) -> Sequence[Any]:
        grow = {"summary": "Grow.", "responses": {"202": {"description": "Growing.", "content": BODY}}}
        old = {"summary": "Old.", "responses": {"200": {"description": "Old.", "content": BODY}}}
        return (
            Endpoint(method="post", path="/grow/{amount:int}", handler=_handler, operation=grow),
            Endpoint(method="GET", path="/grow/{amount:int}", handler=_handler),
            Endpoint(method="GET", path="/engines", handler=_handler, query={"schema": "1"}, operation=old),
        )


async def _handler(request: Any, gateway: Any) -> Any:
    raise AssertionError


def test_a_roles_own_operations_stand_in_its_document() -> None:
    paths = openapi_document("critic", Described())["paths"]
    grow = paths["/grow/{amount}"]
    assert grow["post"]["summary"] == "Grow."
    assert grow["post"]["responses"]["202"]["content"] == BODY
    assert {"400", "401", "429", "431", "500", "503"} < set(grow["post"]["responses"])
    assert "default" in grow["get"]["responses"]
    for operation in grow.values():
        (amount,) = operation["parameters"]
        assert (amount["name"], amount["in"], amount["required"]) == ("amount", "path", True)


def test_what_a_query_selects_stands_beside_what_is_served_without_it() -> None:
    documents = [
        openapi_document("critic", plugin)["paths"]["/engines"]["get"] for plugin in (PassesOn(), Described())
    ]
    plain, both = documents
    schema = next(each for each in both["parameters"] if each["name"] == "schema")
    assert schema["schema"]["enum"] == ["2", "1"]
    assert "`1`: Old." in schema["description"]
    answer = both["responses"]["200"]
    assert len(answer["content"]["application/json"]["schema"]["anyOf"]) == 2
    assert (
        plain["responses"]["200"]["headers"]["ETag"]["required"],
        answer["headers"]["ETag"]["required"],
    ) == (
        True,
        False,
    )
    for status in ("304", "400", "429", "503"):
        assert both["responses"][status] == plain["responses"][status]
    assert both["summary"] == plain["summary"]


def test_what_a_role_takes_beside_the_native_payload_stands_in_its_document() -> None:
    operation = openapi_document("critic", Described())["paths"]["/generate"]["post"]
    request = operation["requestBody"]["content"]["application/json"]["schema"]["anyOf"]
    assert request[0] == {"$ref": "#/components/schemas/NativePayload"}
    assert set(request[1]["properties"]) == {"model", "route_key", "rid", "question"}
    answer = operation["responses"]["200"]["content"]["application/json"]["schema"]["anyOf"]
    assert answer[1] == {"type": "object", "required": ["verdict"]}
