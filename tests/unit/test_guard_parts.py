"""The guard's pure pieces: what passes, what of metadata is shown, ids, the pipe."""

from __future__ import annotations

import asyncio
import json

import pytest

from rolecall.guard.allowed import ALLOWED, ENTRIES, Passage
from rolecall.guard.metadata import filtered
from rolecall.guard.pipe import Pipe
from rolecall.guard.request_ids import named_rids, with_rid


def test_the_list_of_what_passes_is_the_specified_one() -> None:
    listed = {
        passage: {entry.path for entry in ENTRIES.values() if entry.passage is passage} for passage in Passage
    }
    assert listed == {
        Passage.WORK: {
            "/generate",
            "/v1/chat/completions",
            "/chat/completions",
            "/v1/completions",
            "/health",
            "/health_generate",
        },
        Passage.CANCEL: {"/abort_request", "/close_session"},
        Passage.METADATA: {
            "/v1/models",
            "/server_info",
            "/get_server_info",
            "/model_info",
            "/get_model_info",
        },
    }
    assert all(entry.path in ALLOWED for entry in ENTRIES.values())


SERVER_INFO = {
    "model_path": "/models/m",
    "served_model_name": "m",
    "tp_size": 2,
    "disaggregation_mode": "null",
    "max_total_num_tokens": 4096,
    "version": "0.5.23",
    "host": "127.0.0.1",
    "port": 30000,
    "pid": 77,
    "api_key": "secret",
    "admin_api_key": "secret",
    "dist_init_addr": "10.0.0.1:5000",
    "launch_command": ["python", "-m", "sglang.launch_server"],
    "internal_states": [{"memory_usage": {}}],
    "log_requests_target": ["/var/log/x"],
    "resident_bytes": 5,
}


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_of_server_info_only_chosen_fields_are_shown(path: str) -> None:
    shown = json.loads(filtered(path, json.dumps(SERVER_INFO).encode(), "m"))
    assert shown == {
        "model_path": "/models/m",
        "served_model_name": "m",
        "tp_size": 2,
        "disaggregation_mode": "null",
        "max_total_num_tokens": 4096,
        "version": "0.5.23",
    }


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
def test_model_info_keeps_what_routers_read(path: str) -> None:
    known = {
        "model_path": "/models/m",
        "tokenizer_path": "/models/m",
        "is_generation": True,
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "weight_version": "7",
    }
    body = json.dumps({**known, "load_format": "auto", "secret": 1}).encode()
    assert json.loads(filtered(path, body, "m")) == known


def test_model_cards_keep_their_shape() -> None:
    card = {"id": "m", "object": "model", "owned_by": "x", "root": "/models/m", "max_model_len": 9}
    body = json.dumps({"object": "list", "data": [{**card, "pid": 3}], "extra": 1}).encode()
    assert json.loads(filtered("/v1/models", body, "m")) == {"object": "list", "data": [card]}


def test_the_name_lasts_over_new_weights_from_disk() -> None:
    """SGLang calls itself by the folder of its last weights from disk."""
    renamed = json.dumps({**SERVER_INFO, "served_model_name": "/steps/7"}).encode()
    assert json.loads(filtered("/server_info", renamed, "m"))["served_model_name"] == "m"
    cards = [
        {"id": "/steps/7", "root": "/steps/7", "parent": None},
        {"id": "adapter", "root": "/adapters/a", "parent": "/steps/7"},
    ]
    body = json.dumps({"object": "list", "data": cards}).encode()
    assert json.loads(filtered("/v1/models", body, "m"))["data"] == [
        {"id": "m", "root": "m", "parent": None},
        {"id": "adapter", "root": "/adapters/a", "parent": "m"},
    ]


@pytest.mark.parametrize("body", [b"", b"nothing", b"[]", b'{"data": 3}', b'{"data": [3]}'])
def test_metadata_that_is_none_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"expected|malformed|truncated"):
        filtered("/v1/models", body, "m")


@pytest.mark.parametrize(
    ("body", "rids"),
    [
        (b'{"rid": "a", "text": "x"}', ("a",)),
        (b'{"text": "x", "rid": ["a", "b"]}', ("a", "b")),
        (b'{"text": "x"}', ()),
        (b'{"text": "say \\"rid\\" now"}', ()),
        (b'{"custom": {"rid": "inner"}}', ()),
        (b'{"rid": null, "text": "x"}', ()),
        (b'{"rid": "", "text": "x"}', ()),
        (b'{"rid": 7}', ()),
        (b'{"rid": ', ()),
        (b'["rid"]', ()),
    ],
)
def test_the_ids_of_a_body(body: bytes, rids: tuple[str, ...]) -> None:
    assert named_rids(body) == rids


@pytest.mark.parametrize(
    "body",
    [
        b'{"text": "x"}',
        b' \n{ "input_ids" : [ 1, 2], "sampling_params": {"n": 1}}',
        b'{"messages": [{"role": "user", "content": "x"}], "stream": true}',
        b'{"prompt": "x", "n": 1}',
        b'{"prompt": [1, 2]}',
        b'{"text": null, "input_ids": [1]}',
        b"{}",
        b'{"text": "nul\\u0000 and \xc3\xa4"}',
    ],
)
def test_a_single_generation_without_an_id_gets_one_and_nothing_else(body: bytes) -> None:
    given = with_rid(body, "abc")
    assert named_rids(given) == ("abc",)
    assert {"rid": "abc", **json.loads(body)} == json.loads(given)
    assert len(given) - len(body) in {len('"rid":"abc",'), len('"rid":"abc"')}


@pytest.mark.parametrize(
    "body",
    [
        b'{"rid": "mine", "text": "x"}',
        b'{"text": ["x", "y"]}',
        b'{"input_ids": [[1], [2]]}',
        b'{"input_embeds": [[0.5]]}',
        b'{"prompt": ["x", "y"]}',
        b'{"prompt": [[1], [2]]}',
        b'{"text": "x", "sampling_params": {"n": 2}}',
        b'{"text": "x", "sampling_params": [{"n": 1}]}',
        b'{"messages": [], "n": 3}',
        b'{"messages": [], "n": "odd"}',
        b"not json",
        b"[1, 2]",
        b"",
    ],
)
def test_all_other_bodies_stay_as_they_are(body: bytes) -> None:
    assert with_rid(body, "abc") == body


async def test_a_pipe_holds_its_writer_back_until_the_reader_has_taken() -> None:
    pipe = Pipe(10)
    await pipe.write(b"x" * 10)
    writing = asyncio.create_task(pipe.write(b"y"))
    await asyncio.sleep(0)
    assert not writing.done()
    assert await pipe.read() == b"x" * 10 + b"y"
    await writing
    pipe.end()
    assert await pipe.read() == b""
    assert pipe.exhausted


@pytest.mark.parametrize("let_go", [Pipe.widen, Pipe.drop])
async def test_a_pipe_that_is_widened_or_dropped_holds_nobody_back(let_go: object) -> None:
    pipe = Pipe(1)
    writing = asyncio.create_task(pipe.write(b"xx"))
    await asyncio.sleep(0)
    let_go(pipe)  # type: ignore[operator]
    await asyncio.wait_for(writing, 1)
    for _ in range(100):
        await asyncio.wait_for(pipe.write(b"more"), 1)


async def test_what_came_before_a_bad_end_is_read_before_it_is_told() -> None:
    pipe = Pipe(100)
    await pipe.write(b"x")
    pipe.end(RuntimeError("broke"))
    pipe.end()
    assert await pipe.read() == b"x"
    assert not pipe.exhausted
    with pytest.raises(RuntimeError, match="broke"):
        await pipe.read()


async def test_a_reader_is_woken_by_data_and_by_the_end() -> None:
    pipe = Pipe(100)
    reading = asyncio.create_task(pipe.read())
    await asyncio.sleep(0)
    await pipe.write(b"x")
    assert await reading == b"x"
    reading = asyncio.create_task(pipe.read())
    await asyncio.sleep(0)
    pipe.end()
    assert await reading == b""
