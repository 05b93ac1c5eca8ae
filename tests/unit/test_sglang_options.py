"""What can be said about a SGLang engine without SGLang: options, features, command, flags."""

from __future__ import annotations

import importlib.util
import os
import re
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, fields

from rolecall.api import (
    Capability,
    Disaggregation,
    EngineId,
    EngineLaunch,
    EngineStartError,
    MemoryTag,
    ModelId,
    RoleName,
)
from rolecall.config.overrides import Override, override
from rolecall.config.structure import StructureError, structure
from rolecall_plugins.engines.sglang import SglangBackend, SglangOptions, installed_flags
from rolecall_plugins.engines.sglang.command import server_command, server_environment
from rolecall_plugins.engines.sglang.installed_flags import check_server_args
from rolecall_plugins.engines.sglang.options import WeightsAsleep
from rolecall_plugins.engines.sglang.server_flags import OWNED, as_arguments

READER = Path(installed_flags.__file__).parent / "in_engine" / "rolecall_server_flags.py"


def options(**table: Any) -> SglangOptions:
    return structure(SglangOptions, table)


def launch(opts: SglangOptions, **changes: Any) -> EngineLaunch:
    made = EngineLaunch(
        engine_id=EngineId("judge/replica-0"),
        role=RoleName("genrm"),
        model=ModelId("judge"),
        model_path=Path("/models/judge"),
        served_model_name="judge",
        host="127.0.0.1",
        port=20001,
        device_ids=("4", "5"),
        weight_version=None,
        log_path=Path("/tmp/engine.log"),
        options=opts,
        tensor_parallel=2,
    )
    return evolve(made, **changes)


def value_after(command: list[str], flag: str) -> str:
    return command[command.index(flag) + 1]


# --- options ----------------------------------------------------------------------------


@pytest.mark.parametrize("flag", sorted(OWNED))
def test_flags_that_rolecall_sets_are_refused_with_what_to_use_instead(flag: str) -> None:
    with pytest.raises(StructureError) as refused:
        options(server_args={flag: "x"})
    assert f'has "{flag}", which {OWNED[flag]}; remove it' in str(refused.value)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("--port", "comes from the node's port allocator"),
        ("mem-fraction-static", 'write it as "mem_fraction_static"'),
        ("lora_paths", "empty list"),
    ],
)
def test_keys_are_written_in_one_way(key: str, said: str) -> None:
    with pytest.raises(StructureError, match=said):
        options(server_args={key: []})


def test_variables_that_rolecall_sets_are_refused() -> None:
    with pytest.raises(StructureError, match="CUDA_VISIBLE_DEVICES, but the placement decides"):
        options(environment={"CUDA_VISIBLE_DEVICES": "0"})


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "sglang-engine.md"


def names_in_first_column(block: str) -> list[str]:
    text = PAGE.read_text(encoding="utf-8")
    table = text.split(f"<!-- {block} -->")[1].split("<!-- end -->")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


def test_the_page_names_every_option_and_every_owned_flag() -> None:
    assert names_in_first_column("sglang-options") == [field.name for field in fields(SglangOptions)]
    assert sorted(names_in_first_column("sglang-owned-flags")) == sorted(OWNED)


# --- features ---------------------------------------------------------------------------


def features(static: bool = True, **table: Any) -> Any:
    return SglangBackend().features(options(**table), static=static)


def test_a_gpu_engine_sleeps_with_all_tags() -> None:
    found = features()
    assert Capability.SLEEP in found.capabilities
    assert found.memory_tags == frozenset(MemoryTag)
    assert found.problems == ()


def test_without_the_memory_saver_it_does_not_sleep() -> None:
    found = features(memory_saver=False)
    assert Capability.SLEEP not in found.capabilities
    assert "memory_saver is false" in found.no_sleep_because


def test_what_would_let_it_sleep_does() -> None:
    kinds: list[dict[str, Any]] = [{"memory_saver": False}, {"device": "cpu", "server_args": {"dp_size": 2}}]
    for table in kinds:
        ((key, value),) = features(**table).sleep_options
        changed = override(table, [Override(tuple(key.split(".")), value, "")]).table
        assert Capability.SLEEP in features(**changed).capabilities
    assert features().sleep_options == ()


@pytest.mark.parametrize(
    ("server_args", "groups", "flag"),
    [
        ({}, 1, "dp_size"),
        ({"dp_size": 2}, 2, "dp_size"),
        ({"dp_size": 4, "enable_dp_attention": True}, 4, "dp_size"),
        ({"dp_size": 2, "attn_dp_size": 4}, 4, "attn_dp_size"),
    ],
)
def test_what_divides_the_devices_of_tensor_parallel(
    server_args: dict[str, Any], groups: int, flag: str
) -> None:
    found = features(server_args=server_args)
    assert (found.attention_groups, found.attention_groups_key) == (groups, f"server_args.{flag}")


def test_a_cpu_engine_frees_its_weights() -> None:
    found = features(device="cpu")
    assert Capability.SLEEP in found.capabilities
    assert found.memory_tags == {MemoryTag.WEIGHTS}


@pytest.mark.parametrize(
    ("static", "table", "said"),
    [
        (True, {"server_args": {"load_format": "dummy"}}, "random weights"),
        (True, {"device": "cpu", "weights_while_asleep": "host_copy"}, 'needs device = "cuda"'),
        (False, {"weights_while_asleep": "host_copy", "server_args": {"dp_size": 2}}, "data-parallel"),
        (True, {"weights_while_asleep": "reload", "server_args": {"load_format": "gguf"}}, "only auto"),
    ],
)
def test_what_can_never_work_is_a_problem(static: bool, table: dict[str, Any], said: str) -> None:
    """Pitfall 1: an engine that could not bring its weights back is refused before it starts."""
    assert any(said in problem for problem in features(static, **table).problems)


def test_versioned_engines_may_start_with_random_weights() -> None:
    assert features(static=False, server_args={"load_format": "dummy"}).problems == ()


def test_static_engines_take_no_weights() -> None:
    assert features(static=True).capabilities == {
        Capability.SLEEP,
        Capability.SEVERAL_NODES,
        Capability.DISAGGREGATION,
    }
    assert Capability.UPDATE_FROM_GROUP in features(static=False).capabilities
    replicas = features(static=False, server_args={"dp_size": 2}).capabilities
    assert Capability.UPDATE_FROM_DISK in replicas
    assert Capability.UPDATE_FROM_TENSORS not in replicas


@pytest.mark.parametrize(
    ("table", "asleep"),
    [
        ({}, WeightsAsleep.HOST_COPY),
        ({"device": "cpu"}, WeightsAsleep.RELOAD),
        ({"server_args": {"dp_size": 2}}, WeightsAsleep.MEMORY_SAVER),
        ({"server_args": {"dp_size": 2, "enable_dp_attention": True}}, WeightsAsleep.HOST_COPY),
        ({"server_args": {"dp_size": 2, "attn_dp_size": 2}}, WeightsAsleep.HOST_COPY),
    ],
)
def test_where_the_weights_are_by_default(table: dict[str, Any], asleep: WeightsAsleep) -> None:
    assert options(**table).weights_asleep is asleep


# --- command ----------------------------------------------------------------------------


def test_a_head_on_two_nodes() -> None:
    command = server_command(
        launch(
            options(python="/envs/sglang/bin/python", server_args={"mem_fraction_static": 0.8}),
            tensor_parallel=4,
            pipeline_parallel=2,
            nodes=2,
            node_rank=1,
            rendezvous="10.0.0.1:27000",
            collectives_port=24000,
            weight_version="7",
        ),
        frozenset(),
    )
    assert command[:3] == ["/envs/sglang/bin/python", "-m", "sglang.launch_server"]
    wanted = {
        "--model-path": "/models/judge",
        "--port": "20001",
        "--tp-size": "4",
        "--pp-size": "2",
        "--nnodes": "2",
        "--node-rank": "1",
        "--dist-init-addr": "10.0.0.1:27000",
        "--nccl-port": "24000",
        "--weight-version": "7",
        "--mem-fraction-static": "0.8",
    }
    assert {flag: value_after(command, flag) for flag in wanted} == wanted
    assert "--enable-memory-saver" in command
    assert "--enable-weights-cpu-backup" not in command, "rolecall keeps the copy itself"


def test_the_savers_own_backup_and_a_prefill_engine() -> None:
    command = server_command(
        launch(
            options(weights_while_asleep="memory_saver"),
            disaggregation=Disaggregation.PREFILL,
            bootstrap_port=28500,
        ),
        frozenset(),
    )
    assert "--enable-weights-cpu-backup" in command
    assert value_after(command, "--disaggregation-mode") == "prefill"
    assert value_after(command, "--disaggregation-bootstrap-port") == "28500"
    assert "--weight-version" not in command, "static models have none"


def test_data_parallel_copies_share_the_devices() -> None:
    command = server_command(launch(options(server_args={"dp_size": 2}), tensor_parallel=4), frozenset())
    assert value_after(command, "--tp-size") == "2"
    assert value_after(command, "--dp-size") == "2"
    with pytest.raises(EngineStartError, match="dp_size = 3 does not divide tensor_parallel = 4"):
        server_command(launch(options(server_args={"dp_size": 3}), tensor_parallel=4), frozenset())
    attention_only = options(server_args={"dp_size": 2, "enable_dp_attention": True})
    command = server_command(launch(attention_only, tensor_parallel=4), frozenset())
    assert value_after(command, "--tp-size") == "4"


def test_an_engine_sees_its_own_devices_only() -> None:
    """Pitfall 10: physical ids, as bound; inside the engine they count from 0."""
    assert server_environment(launch(options()))["CUDA_VISIBLE_DEVICES"] == "4,5"
    on_cpu = launch(options(device="cpu", environment={"OMP_NUM_THREADS": "2"}))
    assert server_environment(on_cpu)["CUDA_VISIBLE_DEVICES"] == ""
    assert server_environment(on_cpu)["OMP_NUM_THREADS"] == "2"


def test_values_become_arguments() -> None:
    table = {
        "disable_radix_cache": True,
        "enable_metrics": False,
        "dllm_fdfo": False,
        "lora_paths": ["a=1", "b=2"],
        "json_model_override_args": {"num_hidden_layers": 2},
        "log_level": "warning",
    }
    assert as_arguments(table, {"--no-dllm-fdfo"}) == [
        "--disable-radix-cache",
        "--no-dllm-fdfo",
        *("--lora-paths", "a=1", "b=2"),
        *("--json-model-override-args", '{"num_hidden_layers": 2}'),
        *("--log-level", "warning"),
    ]


# --- flags of the installed SGLang ------------------------------------------------------

OLD_SOURCE = """
class ServerArgs:
    model_path: A[str, Arg(help="Weights.", aliases=["--model"])]
    tp_size: A[int, Arg(help="TP.", cli_name="--tensor-parallel-size", aliases=["--tp-size"])] = 1
    hidden: A[int, Arg(help="None.", no_cli=True)] = 1
    plain: int = 3
    fdfo: Annotated[bool, Arg(help="Off.", action=argparse.BooleanOptionalAction)] = True

    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--sampling-backend", type=str)
"""
NEW_SOURCE = """
class Memory:
    mem_fraction_static: A[float, "Share of the memory."] = None
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    srt = tmp_path / "sglang" / "srt"
    (srt / "arg_groups" / "fields").mkdir(parents=True)
    (srt / "server_args.py").write_text(OLD_SOURCE)
    (srt / "arg_groups" / "fields" / "memory.py").write_text(NEW_SOURCE)
    (tmp_path / "sglang" / "__init__.py").write_text("raise ImportError('it must not be imported')")
    return tmp_path


def test_flags_are_read_from_both_layouts_of_the_sources(package: Path) -> None:
    spec = importlib.util.spec_from_file_location("reader", READER)
    assert spec is not None
    assert spec.loader is not None
    reader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reader)
    assert reader.server_flags(package / "sglang") == {
        *("--model-path", "--model", "--tensor-parallel-size", "--tp-size"),
        *("--fdfo", "--no-fdfo", "--sampling-backend", "--mem-fraction-static"),
    }


async def test_a_layout_that_is_not_known_leaves_the_judgement_to_sglang(package: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(package)}  # eight flags are too few
    assert await installed_flags.installed_flags(sys.executable, environment) is None, (
        "eight flags are too few"
    )


async def test_an_interpreter_without_sglang_is_told(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho null\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(EngineStartError, match=r"SGLang is not installed .* install rolecall\[sglang\]"):
        await installed_flags.installed_flags(str(python), os.environ)
    with pytest.raises(EngineStartError, match="can't be run"):
        await installed_flags.installed_flags(str(tmp_path / "nothing"), os.environ)


def test_unknown_flags_are_told_with_the_nearest_one() -> None:
    known = frozenset({"--mem-fraction-static", "--tp-size"})
    check_server_args({"mem_fraction_static": 0.8}, known, "python")
    with pytest.raises(EngineStartError) as refused:
        check_server_args({"mem_fraction_statics": 0.8, "zzz": 1}, known, "python")
    assert 'server_args.mem_fraction_statics (did you mean "mem_fraction_static"?)' in str(refused.value)
    assert "server_args.zzz" in str(refused.value)
