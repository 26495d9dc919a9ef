"""Rubrics against real sockets, real processes and an independent oracle."""

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from openai import AsyncOpenAI, OpenAI

from verifiers_nb.parsers.base import Parser
from verifiers_nb.rubrics.group import RubricGroup
from verifiers_nb.rubrics.judge import JudgeRubric
from verifiers_nb.rubrics.math import MathRubric, equal_answers
from verifiers_nb.rubrics.rubric import Rubric
from verifiers_nb.support.math_process import MathProcess
from verifiers_nb.support.notations import differ_in_kind


def columns(completions, answer="42", prompts=None):
    n = len(completions)
    prompts = prompts or ["6 * 7?"] * n
    return prompts, completions, [answer] * n, [{} for _ in range(n)], ["default"] * n, [{}] * n


# --- the judge, over HTTP -------------------------------------------------------------------------


class FaultyJudge(BaseHTTPRequestHandler):
    """Answer yes; before that, each prompt meets the server's faults, one by one."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = request["messages"][0]["content"]
        with self.server.lock:
            fault = next(iter(self.server.faults[self.server.seen[prompt] :]), None)
            self.server.seen[prompt] += 1
        if fault == "drop":
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        message = {"role": "assistant", "content": "yes"}
        answer = {"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
        body = json.dumps(
            {"id": "x", "object": "chat.completion", "created": 0, "model": "m", **answer}
        )
        self.send_response(fault or 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("retry-after-ms", "5")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *args):
        pass


@pytest.fixture
def judge_server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), FaultyJudge)
    server.daemon_threads = True
    server.lock, server.seen, server.faults = threading.Lock(), Counter(), []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


async def said_yes(judge, prompt, completion, answer, state):
    return float(await judge(prompt, completion, answer, state) == "yes")


@pytest.mark.parametrize("client_class", [AsyncOpenAI, OpenAI])
@pytest.mark.parametrize("faults", [[], [429, 500, 503], ["drop", 429]])
def test_judge_survives_faults_and_asks_once(judge_server, client_class, faults):
    judge_server.faults = faults
    url = f"http://127.0.0.1:{judge_server.server_port}/v1"
    client = client_class(base_url=url, api_key="none", timeout=10)
    rubric = JudgeRubric(judge_client=client, judge_prompt="{response}", funcs=[said_yes])
    completions = [f"answer {i % 5}" for i in range(40)]
    scores = asyncio.run(rubric.score_rollouts(*columns(completions)))
    assert scores.reward == [1.0] * 40
    assert set(judge_server.seen.values()) == {len(faults) + 1}
    assert not rubric.failures


def test_judge_that_stays_down_costs_only_its_reward(judge_server):
    judge_server.faults = [500] * 100
    url = f"http://127.0.0.1:{judge_server.server_port}/v1"
    client = AsyncOpenAI(base_url=url, api_key="none")
    rubric = JudgeRubric(judge_client=client, judge_retries=1, funcs=[said_yes])
    group = RubricGroup([rubric, Rubric([lambda completion: 1.0])])
    scores = asyncio.run(group.score_rollouts(*columns(["a", "b"])))
    assert scores.reward == [1.0, 1.0]
    assert rubric.failures == {"said_yes": 2}
    assert set(judge_server.seen.values()) == {2}


def test_judge_without_a_key_says_so(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ValueError, match="OPENAI_API_KEY"):
        asyncio.run(JudgeRubric().judge("p", "c", "a", {}))


# --- groups and hanging functions -----------------------------------------------------------------


def test_group_functions_find_their_groups_in_any_order():
    def share(completions, answers):
        return [completions.count(c) / len(completions) for c in completions]

    source = random.Random(0)
    rows = [(f"prompt {i % 7}", source.choice("abc")) for i in range(200)]
    source.shuffle(rows)
    expected = [
        sum(row == other for other in rows) / sum(row[0] == other[0] for other in rows)
        for row in rows
    ]
    prompts, completions = map(list, zip(*rows, strict=True))
    scores = asyncio.run(Rubric([share]).score_rollouts(*columns(completions, prompts=prompts)))
    assert scores.reward == expected


def test_hanging_function_neither_stops_the_others_nor_the_end_of_the_process():
    script = """
import asyncio, time
from verifiers_nb.rubrics.rubric import Rubric
def hangs(completion):
    while completion == "bad": time.sleep(0.01)
    return 1.0
rubric = Rubric([hangs], timeout=2.0)
rows = ["p"] * 3, ["good", "bad", "good"], [""] * 3, [{}] * 3, ["t"] * 3, [{}] * 3
print(asyncio.run(rubric.score_rollouts(*rows)).reward, dict(rubric.failures))
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert run.stdout.strip() == "[1.0, 0.0, 1.0] {'hangs': 1}", run.stderr
    assert "did not return within 2.0 s" in run.stderr


# --- mathematics ----------------------------------------------------------------------------------

PIECES = [
    *r"1 2 12 3.5 .5 007 1,000 x n i e ab cm and \pi \frac{1}{2} \frac12 \sqrt{2} \sqrt3".split(),
    *r"\dfrac{x}{3} x^2 2^{10} x_1 \text{Yes} \text{m} \infty \cup \cdot \le \{ \} \left( \right)".split(),
    *"+-*/=,(){}[]<>!%$^|",
    " ",
    r"\ ",
]
TRICKY = [
    *[
        "",
        " ",
        "}",
        "{",
        "cm",
        r"\text{ cm}",
        r"\displaystyle",
        "$",
        '"',
        r"\frac",
        r"\ldots",
        "0/0",
    ],
    *["1/0", r"\frac{1}{0}", "nan", "zoo", r"\infty", "50%", r"50\%", "0.5", "50", "1,000", "1000"],
    *["x=5", "5", "5=x", "x=5,y=2", "(1,2)", "[1,2]", r"\{1,2\}", r"\{2,1\}", "1,2", "1 2", "x<1"],
    *[
        "0.333333",
        r"\frac13",
        "A",
        r"\text{A}",
        "a",
        "yes",
        "Yes",
        r"\emptyset",
        r"\{\}",
        "-0",
        "0",
    ],
    *[
        "90^\\circ",
        "90",
        r"\sqrt{8}",
        r"2\sqrt{2}",
        "x(x+1)",
        "x^2+x",
        "e",
        "E",
        "2i",
        r"\boxed{5}",
    ],
]


def reference(gold, response):
    from math_verify import parse, verify

    equal = bool(verify(parse(f"\\boxed{{{gold}}}"), parse(f"\\boxed{{{response}}}")))
    return equal and not differ_in_kind(gold, response)  # a set is no point for us


def differ_in_spaces(first, second):
    """Say whether texts are the same but for spaces: such are equal, also where math-verify can't read them."""
    return "".join(first.split()) == "".join(second.split())


def test_always_agrees_with_math_verify():
    source = random.Random(1)
    answers = ["".join(source.choices(PIECES, k=source.randint(1, 7))) for _ in range(150)]
    pairs = [(gold, response) for gold in TRICKY for response in source.sample(TRICKY, 5)]
    pairs += [(text, text) for text in TRICKY + answers]
    pairs += [(gold, source.choice(answers)) for gold in answers]
    pairs += [(gold, gold.replace(" ", "").replace("+", " + ")) for gold in answers]

    async def ours():
        return await asyncio.gather(*(equal_answers(*pair, processes=2) for pair in pairs))

    verdicts = asyncio.run(ours())
    wrong = [
        (pair, verdict)
        for pair, verdict in zip(pairs, verdicts, strict=True)
        if verdict != reference(*pair) and not (verdict and differ_in_spaces(*pair))
    ]
    assert not wrong
    assert 50 < sum(verdicts) < len(pairs) - 50


def test_fast_parsing_is_in_effect_and_reads_the_same():
    script = """
import json, sys, time
from verifiers_nb.support.math_process import parse_fast_first
from math_verify import parse
from sympy import srepr
def cost(offset):
    start = time.process_time()
    for i in range(20): parse("\\\\boxed{(%d,%d)}" % (i + offset, i))
    return time.process_time() - start
def read(texts): return [[p if isinstance(p, str) else srepr(p) for p in parse(t)] for t in texts]
texts = json.load(sys.stdin)
full, slow = read(texts), cost(0)
parse_fast_first()
from math_verify.parser import parse_latex_cached
parse_latex_cached.cache_clear()
fast = read(texts)
print(json.dumps([[t, a, b] for t, a, b in zip(texts, full, fast) if a != b]), cost(50) / slow)
"""
    source = random.Random(2)
    texts = ["".join(source.choices(PIECES, k=source.randint(1, 8))) for _ in range(400)]
    texts = [f"\\boxed{{{text}}}" for text in TRICKY + texts]
    run = subprocess.run(
        [sys.executable, "-c", script], input=json.dumps(texts), capture_output=True, text=True
    )
    differing, _, ratio = run.stdout.rpartition(" ")
    assert json.loads(differing) == [], run.stderr
    assert float(ratio) < 0.5  # 0.016 s the full way, 0.002 this way, on an idle core


def test_an_answer_that_ends_the_process_ends_nothing_else():
    process = MathProcess()
    assert process.submit("0.5", "1/2").result(120)
    first = process.process
    endless, next_one = process.submit("7", "9^{9^{9^{9}}}"), process.submit("0.5", "1/2")
    time.sleep(0.2)
    os.kill(first.pid, signal.SIGKILL)
    assert endless.result(120) is False
    assert next_one.result(120) is True
    assert process.process is not first


def test_the_watchdog_ends_what_no_signal_can():
    script = """
import sys
from verifiers_nb.support import math_process as room
room.VERIFY_SECONDS = 0
room.compare_answers = lambda gold, response: 9 ** 9 ** 9 == 7 if response == "endless" else True
room.answer_questions(sys.stdin, sys.stdout)
"""
    questions = '["7", "7"]\n["7", "endless"]\n["7", "7"]\n'
    run = subprocess.run(
        [sys.executable, "-c", script], input=questions, capture_output=True, text=True, timeout=120
    )
    assert run.stdout == "ready\ntrue\n"
    assert run.returncode == 1


def test_scores_in_threads_at_once():
    rubric = MathRubric(parser=Parser(), processes=2)
    completions = [r"\frac{1}{2}", r"\cos(\pi/3)", "0.5", r"50\%", "2", r"\sin(1)"]

    def score():
        return asyncio.run(rubric.score_rollouts(*columns(completions, r"\frac12"))).reward

    results = []
    threads = [threading.Thread(target=lambda: results.append(score())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[1.0, 1.0, 1.0, 1.0, 0.0, 0.0]] * 8


def test_processes_end_with_the_parent():
    script = """
import os, sys
from verifiers_nb.support.math_process import MathProcess
process = MathProcess()
assert process.submit("0.5", "1/2").result()
print(process.process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    pid = int(run.stdout)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/stat") as stat:
                if stat.read().rpartition(")")[2].split()[0] == "Z":
                    break
        except FileNotFoundError:
            break
        time.sleep(0.05)
    else:
        pytest.fail(f"process {pid} outlived its parent")
