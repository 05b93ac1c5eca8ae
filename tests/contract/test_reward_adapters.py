"""The first-party reward adapters keep the contract of their kind."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from typing import Any, ClassVar

import pytest

from rolecall.api import Prompt, Sample
from rolecall.testing import RewardAdapterContract
from rolecall.testing.samples import make_sample
from rolecall_plugins.rewards.code_tests.adapter import CodeTests
from rolecall_plugins.rewards.exact_match import ExactMatch
from rolecall_plugins.rewards.genrm_judge import GenRMJudge
from rolecall_plugins.rewards.math_verify.adapter import MathVerify
from rolecall_plugins.rewards.remote_http.adapter import RemoteHTTP
from rolecall_plugins.rewards.weighted import Weighted


class TestExactMatch(RewardAdapterContract):
    plugin = ExactMatch


class TestExactMatchAnywhere(RewardAdapterContract):
    plugin = ExactMatch
    options: ClassVar = {"where": "anywhere", "ignore_case": False}


class TestWeighted(RewardAdapterContract):
    plugin = Weighted
    options: ClassVar = {"parts": [{"adapter": "exact_match"}]}


class TestWeightedWithAJudge(RewardAdapterContract):
    plugin = Weighted
    options: ClassVar = {
        "parts": [{"adapter": "exact_match", "weight": 0.5}, {"adapter": "genrm_judge", "weight": 2.0}],
        "combine": "sum",
    }
    verdicts = ("yes", "no")


class _TestsInMetadata(RewardAdapterContract):
    def samples(self) -> list[Sample]:
        """Two programs that pass all, some and none of the tests, and no program."""
        tests = ["assert f(1) == 2", {"code": "assert f(0) == 1"}]
        prompt = Prompt(prompt_id="prompt-0", text="f?", answer="x", metadata={"tests": tests})
        programs = ("def f(x): return x + 1", "def f(x): return 2", "def f(x): return 1 / 0")
        responses = [f"```python\n{program}\n```" for program in programs]
        return [make_sample(prompt, index, text) for index, text in enumerate([*responses, "none"])]


class TestCodeTests(_TestsInMetadata):
    plugin = CodeTests


class TestCodeTestsAllOrNothing(_TestsInMetadata):
    plugin = CodeTests
    options: ClassVar = {"pays": "all", "concurrency": 2}


@pytest.mark.skipif(find_spec("math_verify") is None, reason="needs rolecall[math-verify]")
class TestMathVerify(RewardAdapterContract):
    plugin = MathVerify
    options: ClassVar = {"processes": 2, "compare_s": 60.0}

    def samples(self) -> list[Sample]:
        """Right in three ways, wrong, without an answer, and empty."""
        prompt = Prompt(prompt_id="prompt-0", text="1/2 + 1/4?", answer="\\frac{3}{4}")
        responses = ("0.75", "It is $\\frac{6}{8}$.", "3/4", "\\boxed{1}", "I do not know", "")
        return [make_sample(prompt, index, text) for index, text in enumerate(responses)]


class _Scores(BaseHTTPRequestHandler):
    """Gives the length of a response as its reward."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = json.dumps({"reward": len(asked["response"]) / 100}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        del format, args


class TestRemoteHTTP(RewardAdapterContract):
    plugin = RemoteHTTP

    @pytest.fixture(autouse=True)
    def _served(self) -> Iterator[None]:
        with ThreadingHTTPServer(("127.0.0.1", 0), _Scores) as server:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            self.options = {"url": f"http://127.0.0.1:{server.server_address[1]}/score", "concurrency": 3}
            yield
            server.shutdown()
            server.block_on_close = False


class TestGenRMJudge(RewardAdapterContract):
    plugin = GenRMJudge
    verdicts = ("yes", "no")


class TestGenRMJudgeThatWritesJson(RewardAdapterContract):
    plugin = GenRMJudge
    options: ClassVar = {
        "form": "json",
        "field": "verdict.grade",
        "schema": {"required": ["verdict", "why"], "properties": {"why": {"type": "string"}}},
        "verdicts": {"good": 1.0, "bad": 0.0},
    }
    verdicts = (
        '{"verdict": {"grade": 7}, "why": "it is short"}',
        'Here it is: ```json\n{"verdict": {"grade": "bad"}, "why": ""}\n```',
    )
    garbage = (
        *RewardAdapterContract.garbage,
        "7",
        '{"verdict": {"grade": 7}}',
        '{"verdict": {"grade": 70}, "why": ""}',
        '{"verdict": {"grade": NaN}, "why": ""}',
        '{"verdict": {"grade": 7}, "why": ""} {"verdict": {"grade": 0}, "why": ""}',
    )


class TestGenRMJudgeThatIsAskedHowLikelyYesIs(RewardAdapterContract):
    plugin = GenRMJudge
    options: ClassVar = {"form": "log_prob", "yes": ["yes", "right"]}
    verdicts = (" Yes", "right", " no")
    garbage = (*RewardAdapterContract.garbage, "yesterday", "0", "1")


class TestGenRMJudgeThatGradesInAChat(RewardAdapterContract):
    plugin = GenRMJudge
    options: ClassVar = {"ask": "chat", "system": "Grade.", "verdicts": {}, "high": 10.0}
    verdicts = ("7", "Grade: 3", "0.5", "10")
