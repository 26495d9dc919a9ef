"""Drills: nothing lost, nothing hung, nothing silently zero. One test a claim; figures are printed (pytest -s)."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import forked
import pytest

COMMON = """
import asyncio, builtins, json, os, sys
from types import SimpleNamespace
from datasets import Dataset
import verifiers_nb as vf

class Client:
    def __init__(self, say=lambda request: "yes"):
        self.chat = self.completions = self
        self.say, self.requests = say, 0
    async def create(self, **request):
        self.requests += 1
        await asyncio.sleep(0)
        said = self.say(request)
        message = said if isinstance(said, SimpleNamespace) else SimpleNamespace(content=said)
        return SimpleNamespace(choices=[SimpleNamespace(message=message)])

def rows(count=6):
    questions = [f"question {i}" for i in range(count)]
    return Dataset.from_dict({"question": questions, "answer": questions})
"""


def run_script(source: str, *arguments: str, seconds: float = 120, **environ: str) -> str:
    """Run a script in a process of its own that must end in time; return what it printed."""
    command = [sys.executable, "-c", COMMON + source, *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environ}
    began = time.monotonic()
    done = forked.run(command, env=env, timeout=seconds)
    print(f"{time.monotonic() - began:.1f} s, status {done.returncode}")
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def vf_eval(*arguments: str, cwd: Path, seconds: float = 120, **environ: str) -> Any:
    """Call vf-eval in a folder."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")}
    env |= {"OMP_NUM_THREADS": "1", "COLUMNS": "200", **environ}
    command = [sys.executable, "-m", "verifiers_nb.cli.eval", *arguments]
    return forked.run(command, cwd, env, seconds)


def wait_for(line: str, process: forked.Popen) -> None:
    """Return when a process has printed a line."""
    deadline = time.monotonic() + 60
    while not process.out.read_text().endswith(line):
        assert process.poll() is None and time.monotonic() < deadline, process.err.read_text()
        time.sleep(0.02)


ENDINGS = """
def leave(kind):
    if kind == "os_cancel":
        raise asyncio.CancelledError
    if kind in ("exit", "quit"):
        getattr(builtins, kind)()
    others = {"interrupt": KeyboardInterrupt(), "own": Own(), "closing": GeneratorExit()}
    raise {"sys.exit": SystemExit(3), **others}[kind]

class Own(BaseException):
    pass

class Env(vf.MultiTurnEnv):
    def bad(self, place, state):
        if self.place == place and state["prompt"][0]["content"] == "question 2":
            leave(self.kind)
    def setup_state(self, state):
        self.bad("setup_state", state)
        return state
    def is_completed(self, messages, state):
        self.bad("is_completed", state)
        return state["turn"] > 1
    async def env_response(self, messages, state):
        self.bad("env_response", state)
        return [{"role": "user", "content": "go on"}], state

def env_of(place, kind):
    def reward(prompt):
        if place == "reward" and prompt[0]["content"] == "question 2":
            leave(kind)
        return 1.0
    async def slow_reward(prompt):
        await asyncio.sleep(0)
        return reward(prompt)
    def group_reward(prompts):
        return [reward(prompt) for prompt in prompts]
    chosen = {"reward": reward, "async reward": slow_reward, "group reward": group_reward}
    if place.endswith("reward"):
        place, func = "reward", chosen[place]
    else:
        func = reward
    rubric = vf.Rubric([func], timeout=30.0 if kind == "own" else None)
    return Env(dataset=rows(), rubric=rubric, place=place, kind=kind)

PLACES = ["setup_state", "is_completed", "env_response", "reward", "async reward", "group reward"]
KINDS = ["exit", "quit", "sys.exit", "interrupt", "own", "os_cancel", "closing"]
"""


def test_a_hook_or_reward_that_exits_is_one_failure() -> None:
    told = json.loads(
        run_script(
            ENDINGS
            + """
told = {}
for place in PLACES:
    for kind in KINDS:
        results = env_of(place, kind).evaluate(Client(), "m", progress=False)
        state = results.state[2]
        why = state.get("error") or state.get("reward_errors")
        told[f"{place}: {kind}"] = [results.reward, str(why)]
print(json.dumps(told))
"""
        )
    )
    print(len(told), "endings, each one failure of six rollouts")
    for what, (reward, why) in told.items():
        assert reward == [1.0, 1.0, 0.0, 1.0, 1.0, 1.0], what
        assert "it raised" in why, (what, why)


OVERRIDES = """
class Own(vf.Rubric):
    async def score_rollout(self, prompt, completion, answer, state, *rest, **named):
        leave_if(prompt, self.kind)
        return await super().score_rollout(prompt, completion, answer, state, *rest, **named)
class Caller(vf.Rubric):
    async def call_reward_func(self, func, prompt, *rest, **named):
        leave_if(prompt, self.kind)
        return await super().call_reward_func(func, prompt, *rest, **named)
def leave_if(prompt, kind):
    if prompt[0]["content"] == "question 2":
        leave(kind)
async def one(completion):
    return 1.0
def groups(prompts):
    return [1.0 for _ in prompts]
told = {}
for kind in ("exit", "sys.exit", "interrupt", "own", "closing"):
    rubrics = {
        "alone": Own([one], kind=kind),
        "in a group": vf.RubricGroup([Own([one], kind=kind), vf.Rubric([one])]),
        "with groups": vf.RubricGroup([Own([one], kind=kind), vf.Rubric([groups])]),
        "calls": Caller([one, one], kind=kind),
    }
    for name, rubric in rubrics.items():
        env = vf.SingleTurnEnv(dataset=rows(), rubric=rubric)
        for how, run in (("asyncio.run", asyncio.run), ("sync", None)):
            if run:
                results = asyncio.run(env.a_generate(env.get_dataset(), Client(), "m"))
            else:
                results = env.generate(env.get_dataset(), Client(), "m")
            failed = [i for i, state in enumerate(results.state) if state.get("error")]
            told[f"{name}: {kind}, {how}"] = [failed, min(r for i, r in enumerate(results.reward) if i != 2)]
print(json.dumps(told))
"""


def test_an_override_that_exits_is_one_failed_rollout() -> None:
    """Also in tasks of its own, under the user's `asyncio.run`."""
    told = json.loads(run_script(ENDINGS + OVERRIDES))
    print(len(told), "endings")
    for what, (failed, reward) in told.items():
        assert failed == [2] and reward >= 1.0, what


def test_a_tool_that_exits_is_an_answer_to_the_model() -> None:
    answers = json.loads(
        run_script("""
from verifiers_nb.envs.tool_env import ToolEnv

class Own(BaseException):
    pass

def leave(kind: str) -> str:
    "End everything."
    others = {"interrupt": KeyboardInterrupt(), "own": Own(), "closing": GeneratorExit()}
    raise {"exit": SystemExit(3), **others}[kind]

async def leave_later(kind: str) -> str:
    "End everything."
    leave(kind)

def say(request):
    if any(message["role"] == "tool" for message in request["messages"]):
        return "done"
    calls = [
        SimpleNamespace(id=f"{kind}{name}", function=SimpleNamespace(
            name=name, arguments=json.dumps({"kind": kind})))
        for kind in ("exit", "interrupt", "own", "closing") for name in ("leave", "leave_later")
    ]
    return SimpleNamespace(content=None, tool_calls=calls)

env = ToolEnv([leave, leave_later], dataset=rows(2))
for run in (env.evaluate, lambda *a, **k: asyncio.run(env.a_evaluate(*a, **k))):
    results = run(Client(say), "m", progress=False)
    if run == env.evaluate:
        first = results
said = [m["content"] for c in first.completion for m in c if m["role"] == "tool"]
print(json.dumps(said))
""")
    )
    print(len(answers), "tool messages:", answers[:2])
    assert len(answers) == 16 and all("it raised" in said for said in answers)


def test_vf_eval_ends_when_a_reward_exits(tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text(
        COMMON
        + """
def reward(completion):
    exit()

def load_environment():
    return vf.SingleTurnEnv(dataset=rows(), rubric=vf.Rubric([reward]))
"""
    )
    done = vf_eval("leaves", "-n", "2", "-r", "2", "-t", "5", cwd=tmp_path)
    print("status", done.returncode)
    assert "it raised SystemExit" in done.stdout + done.stderr


def test_training_goes_on_when_a_reward_exits(tmp_path: Path) -> None:
    said = run_script(
        """
env = vf.load_environment("addition")
def leaves(completion):
    sys.exit(3)
env.rubric.add_reward_func(leaves, 0.5)
args = vf.GRPOConfig(
    sys.argv[1], max_steps=1, per_device_train_batch_size=8, num_generations=4, max_tokens=8,
    use_cpu=True, report_to="none", disable_tqdm=True)
trainer = vf.GRPOTrainer("verifiers_nb/adder-1m", env, args, peft_config=vf.lora_defaults())
trainer.train()
trainer.close()
print("steps", trainer.state.global_step)
""",
        str(tmp_path / "run"),
    )
    assert "steps 1" in said


@pytest.mark.parametrize("how", ["evaluate", "asyncio.run"])
def test_a_real_ctrl_c_still_ends_the_run(how: str) -> None:
    source = """
async def slowly(**request):
    print("asked", flush=True)
    await asyncio.sleep(300)
client = Client()
client.create = slowly
env = vf.SingleTurnEnv(dataset=rows())
if sys.argv[1] == "evaluate":
    env.evaluate(client, "m", progress=False)
else:
    asyncio.run(env.a_evaluate(client, "m", progress=False))
"""
    process = forked.Popen([sys.executable, "-c", COMMON + source, how])
    wait_for("asked\n", process)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    print(f"{how}: ended {time.monotonic() - began:.2f} s after Ctrl-C")
    assert process.returncode != 0 and said.rstrip().endswith("KeyboardInterrupt")


def test_a_second_ctrl_c_within_a_reward_fails_no_rollout(tmp_path: Path) -> None:
    """The first press cancels the task of `asyncio.run`; the second is raised in the reward."""
    source = """
import time
def reward(prompt):
    if prompt[0]["content"] == "question 2":
        print("scoring", flush=True)
        time.sleep(300)
    return 1.0
env = vf.SingleTurnEnv(dataset=rows(), rubric=vf.Rubric([reward]))
options = dict(progress=False, max_concurrent=1, save_path=sys.argv[1])
asyncio.run(env.a_evaluate(Client(), "m", **options))
"""
    path = tmp_path / "rollouts.jsonl"
    process = forked.Popen([sys.executable, "-c", COMMON + source, str(path)])
    wait_for("scoring\n", process)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
    assert process.wait(60) != 0
    stored = [json.loads(line) for line in path.read_text().splitlines()]
    assert [each["reward"] for each in stored] == [1.0, 1.0]


def test_os_exit_loses_no_stored_rollout(tmp_path: Path) -> None:
    source = """
def reward(prompt):
    if prompt[0]["content"] == "question 4" and sys.argv[2] == "leave":
        os._exit(9)
    return 1.0
env = vf.SingleTurnEnv(dataset=rows(), rubric=vf.Rubric([reward]))
client = Client()
results = env.evaluate(client, "m", progress=False, max_concurrent=1, save_path=sys.argv[1])
print(client.requests, sum(results.reward))
"""
    path = tmp_path / "rollouts.jsonl"
    command = [sys.executable, "-c", COMMON + source, str(path)]
    assert forked.run([*command, "leave"], timeout=60).returncode == 9
    assert len(path.read_text().splitlines()) == 4
    done = forked.run([*command, "stay"], timeout=60)
    print("4 of 6 kept, then asked:", done.stdout.split()[0])
    assert done.stdout.split() == ["2", "6.0"]


OUTAGE = """
class Flaky(Client):
    async def create(self, **request):
        asked = request["messages"][0]["content"]
        if sys.argv[2] == "outage" and int(asked.split()[-1]) % 6 == 0:
            raise RuntimeError("the server is away")
        return await super().create(**request)
def is_odd(prompt):
    return float(int(prompt[0]["content"].split()[-1]) % 2)
env = vf.SingleTurnEnv(eval_dataset=rows(90), rubric=vf.Rubric([is_odd]))
client = Flaky()
results = env.evaluate(client, "m", rollouts_per_example=2, progress=False, save_path=sys.argv[1])
print(client.requests, results)
"""


def test_an_outage_is_no_worse_model(tmp_path: Path) -> None:
    good, bad = tmp_path / "a/results.jsonl", tmp_path / "b/results.jsonl"
    run_script(OUTAGE, str(good), "well")
    said = run_script(OUTAGE, str(bad), "outage")
    assert "30 failed" in said and "reward 0.600" in said  # 90 odd ones of 150 that were answered
    command = [sys.executable, "-m", "verifiers_nb.cli.report", str(good), str(bad)]
    html = Path(forked.run(command).stdout.strip()).read_text()
    print("30 of 180 failed; compared:", html[html.index("<dl>") : html.index("</dl>")][:400])
    assert "lower" not in html and "30 of 180 rollouts failed" in html
    assert ">75<" in html  # examples in both
    again = run_script(OUTAGE, str(bad), "well")
    print("asked again:", again.split()[0])
    assert again.split()[0] == "30" and "failed" not in again and "reward 0.500" in again
    assert len(bad.read_text().splitlines()) == 180


TROUBLED = (
    COMMON
    + """
def always(completion):
    raise KeyError("gold")
def fine(completion):
    return 1.0
def load_environment():
    return vf.SingleTurnEnv(eval_dataset=rows(), rubric=vf.Rubric([fine, always]))
"""
)


def test_a_reward_that_always_raises_is_told_everywhere(tmp_path: Path) -> None:
    (tmp_path / "troubled.py").write_text(TROUBLED)
    done = vf_eval("troubled", "-n", "3", "-r", "2", "-t", "4", "--report", cwd=tmp_path)
    told = "the reward function always failed on 6 of 6 rollouts"
    print("status", done.returncode, "|", told)
    shown = " ".join(done.stdout.split())
    assert done.returncode == 3 and told in shown and "KeyError: 'gold'" in shown
    (folder,) = tmp_path.glob("outputs/evals/*/*")
    metadata = json.loads((folder / "metadata.json").read_text())
    assert metadata["reward_errors"] == {"always": {"count": 6, "first": "KeyError: 'gold'"}}
    assert metadata["usage"]["requests"] == 6 and metadata["usage"]["completion_tokens"] > 0
    (page,) = folder.glob("*.html")
    assert told in page.read_text()
    records = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert all(r["state"]["reward_errors"] == {"always": "KeyError: 'gold'"} for r in records)


def test_filtered_and_malformed_answers_fail_and_empty_ones_are_counted() -> None:
    said = run_script("""
from verifiers_nb.envs.statistics import count_troubles, trouble_lines
answers = [None, "", "yes", 42, {"a": 1}, "filtered"]
async def create(**request):
    answer = answers[int(request["messages"][0]["content"].split()[-1])]
    filtered = answer == "filtered"
    choice = SimpleNamespace(message=SimpleNamespace(content=answer),
                             finish_reason="content_filter" if filtered else "stop")
    return SimpleNamespace(choices=[choice])
client = Client()
client.create = create
env = vf.SingleTurnEnv(dataset=rows(), rubric=vf.Rubric([lambda completion: 1.0]))
results = env.evaluate(client, "m", progress=False)
print(json.dumps([results.errors, trouble_lines(count_troubles(results))]))
""")
    errors, lines = json.loads(said)
    print(lines)
    assert errors[:3] == [None] * 3 and "not text: 42" in errors[3] and "not text" in errors[4]
    assert "content_filter" in errors[5]
    assert "3 of 6 rollouts failed" in lines[0]
    assert lines[1:3] == ["1 of 6 answers had no content (null)", "1 of 6 answers was empty"]


def test_no_mean_is_infinite_and_rewards_change_nothing(tmp_path: Path) -> None:
    said = run_script(
        """
def huge(prompt):
    return 1e308 if prompt[0]["content"] == "question 2" else 1.0
def writes(prompt, completion, info):
    prompt[0]["content"] = completion[0]["content"] = "mine"
    info["mine"] = True
    return 1.0
def looks(prompt, completion, info):
    return float("mine" not in str([prompt, completion, info]))
for weight in (float("nan"), float("inf")):
    try:
        vf.Rubric([huge], weights=[weight])
    except ValueError as error:
        print(error)
rubric = vf.Rubric([huge, huge, writes, looks])
env = vf.SingleTurnEnv(dataset=rows(), rubric=rubric)
results = env.evaluate(Client(), "m", progress=False, save_path=sys.argv[1])
print(results.reward, results.errors[2])
print("looks", results.metrics["looks"])
""",
        str(tmp_path / "rollouts.jsonl"),
    )
    print(said)
    assert said.count("The weight of 'huge' is") == 2 and "OverflowError: The reward is inf" in said
    assert "[4.0, 4.0, 0.0, 4.0, 4.0, 4.0]" in said
    assert "mine" not in (tmp_path / "rollouts.jsonl").read_text()


def test_the_calculator_bounds_every_operation() -> None:
    from verifiers_nb.envs.tools import calculator

    hostile = [
        "round(1, -10**8)", "round(10**3000, -10**3000)", "round(9**3000, -400)", "pow(9, 10**9)",
        "9**9**9**9", "factorial(10**9)", "-".join(["9**3000"] * 60), "*".join(["9**3000"] * 60),
        "gcd(9**3000, 7**3000)", "floor(1e308) * floor(1e308)", "2.0**10**9", "ceil(1e308)**9",
    ]  # fmt: skip
    for expression in hostile:
        began = time.thread_time()
        answer = calculator(expression)
        seconds = time.thread_time() - began
        print(f"{expression[:40]}: {seconds:.3f} s, {answer[:60]}")
        assert seconds < 2 and len(answer) < 5000


HANGING = """
import threading
async def never(completion):
    await asyncio.Event().wait()
def blocks(completion):
    threading.Event().wait()
for func in (never, blocks):
    rubric = vf.RubricGroup([vf.Rubric([func]), vf.Rubric([lambda completion: 1.0])])
    env = vf.SingleTurnEnv(dataset=rows(), rubric=rubric, rollout_timeout=3.0)
    results = env.evaluate(Client(), "m", progress=False)
    print(results.reward, results.state[0]["reward_errors"])
    print([each.timeout for each in rubric.rubrics])
"""


def test_a_rollout_timeout_reaches_rewards() -> None:
    began = time.monotonic()
    said = run_script(HANGING, seconds=60)
    print(f"{time.monotonic() - began:.1f} s;", said)
    assert said.count("it did not return within 3.0 s") == 2
    assert said.count("[1.0, 1.0, 1.0, 1.0, 1.0, 1.0]") == 2
    assert said.count("[None, None]") == 2  # it does not stay in the rubrics


ISOLATED = """
import re, time
@vf.isolated(seconds=1.0)
def in_c(completion):
    re.fullmatch("(y+)+", "y" * 40 + "?")
    return 1.0
@vf.isolated(seconds=1.0)
async def never(completion):
    await asyncio.Event().wait()
@vf.isolated()
def dies(completion):
    os._exit(4)
@vf.isolated()
def groups(completions, parser):
    return [float(parser.parse(each[-1]["content"]) == "yes") for each in completions]
forking, most = [], []
def begin_fork():  # filelock 4.3 refuses a fork while another thread forks
    forking.append(1)
    most.append(len(forking))
    time.sleep(0.01)
os.register_at_fork(before=begin_fork, after_in_parent=forking.pop)
began = time.monotonic()
env = vf.SingleTurnEnv(dataset=rows(2), rubric=vf.Rubric([in_c, never, dies, groups]))
results = env.evaluate(Client(), "m", progress=False)
assert max(most) == 1, most
print(json.dumps([results.reward, results.state[0]["reward_errors"], time.monotonic() - began]))
assert not os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children") or not open(
    f"/proc/{os.getpid()}/task/{os.getpid()}/children").read()
"""


def test_an_isolated_reward_is_killed_in_time() -> None:
    """One that holds the interpreter in C, too; one that ends its process costs only its own score."""
    reward, errors, seconds = json.loads(run_script(ISOLATED, seconds=60))
    print(f"{seconds:.1f} s;", errors)
    assert reward == [1.0, 1.0] and seconds < 30
    for name in ("in_c", "never"):
        assert errors[name] == "TimeoutError: it did not return within 1.0 s and was killed"
    assert errors["dies"] == "RuntimeError: its process ended with status 4"


ADDED = """
import re, time
def in_c(completion):
    re.fullmatch("(y+)+", "y" * 40 + "?")
def number(completion):
    open(sys.argv[1], "w").write(str(os.getpid()))
    time.sleep(600)
rubric = vf.RubricGroup([vf.Rubric(timeout=2.0), vf.Rubric(), vf.Rubric([lambda completion: 1.0])])
rubric.add_reward_func(in_c, 0.5, isolate=True)
rubric.rubrics[1].add_reward_func(number, isolate=True)
began = time.monotonic()
env = vf.SingleTurnEnv(dataset=rows(1), rubric=rubric, rollout_timeout=6.0)
results = env.evaluate(Client(), "m", progress=False)
seconds = time.monotonic() - began
child, until = open(sys.argv[1]).read(), time.monotonic() + 30
while (left := os.path.exists(f"/proc/{child}")) and time.monotonic() < until:
    time.sleep(0.1)
print(json.dumps([results.reward, results.state[0]["reward_errors"], seconds, left]))
"""


def test_a_reward_added_with_isolate_is_killed_in_time(tmp_path: Path) -> None:
    """One that loops in C and holds the interpreter; and one whose rollout ends before its minute."""
    said = run_script(ADDED, str(tmp_path / "number"), seconds=60)
    reward, errors, seconds, left = json.loads(said)
    print(f"{seconds:.1f} s;", errors)
    assert reward == [1.0] and seconds < 30 and not left
    assert "did not return within 2.0 s" in errors["in_c"]
    assert "did not return within 6.0 s" in errors["number"]


def test_an_isolated_reward_ends_with_its_owner(tmp_path: Path) -> None:
    source = """
@vf.isolated()
def writes_its_number(completion):
    open(sys.argv[1], "w").write(str(os.getpid()))
    while True:
        pass
env = vf.SingleTurnEnv(dataset=rows(1), rubric=vf.Rubric([writes_its_number]))
env.evaluate(Client(), "m", progress=False)
"""
    number = tmp_path / "number"
    command = [sys.executable, "-c", COMMON + source, str(number)]
    process = forked.Popen(command)
    while not number.exists() or not number.read_text():
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    deadline = time.monotonic() + 60
    stat = Path(f"/proc/{number.read_text()}/stat")
    while stat.exists() and " Z " not in stat.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


WAITING = """
import time
from verifiers_nb.support import threads
threads.LONG_WAIT = 0.5
def loops(completion):
    until = time.monotonic() + 3
    while time.monotonic() < until:
        pass
    return 1.0
def sleeps(completion):
    time.sleep(3)
    return 1.0
async def awaits(completion):
    await asyncio.sleep(3)
    return 1.0
func = globals()[sys.argv[1]]
timeout = 60 if sys.argv[1] == "sleeps" else None
env = vf.SingleTurnEnv(dataset=rows(1), rubric=vf.Rubric([func], timeout=timeout))
sys.stderr = sys.stdout
env.evaluate(Client(), "m", progress=sys.argv[2] == "line")
"""


@pytest.mark.parametrize("shown", ["line", "log"])
@pytest.mark.parametrize("reward", ["loops", "sleeps", "awaits"])
def test_a_function_that_runs_for_long_is_named(reward: str, shown: str, tmp_path: Path) -> None:
    """In the event loop's thread, in a thread of its own, and waiting in the event loop."""
    script = tmp_path / "rewards.py"
    script.write_text(COMMON + WAITING)
    done = forked.run([sys.executable, str(script), reward, shown], timeout=60)
    said = done.stdout + done.stderr
    print(said[-300:])
    assert f"s for {reward} (rewards.py, line " in said
    assert ("0/1" in said) == (shown == "line")


@pytest.mark.parametrize("timeout", ["None", "5.0"])
def test_a_function_that_lets_no_other_thread_run_is_named(timeout: str, tmp_path: Path) -> None:
    """In the thread of the event loop and in one of its own: no line of Python can run."""
    source = """
import re
from verifiers_nb.support import threads
threads.LONG_WAIT = 1.0
def in_c(completion):
    re.fullmatch("(y+)+", "y" * 40 + "?")
env = vf.SingleTurnEnv(dataset=rows(1), rubric=vf.Rubric([in_c], timeout=%s))
env.evaluate(Client(), "m", progress=False)
"""
    script = tmp_path / "rewards.py"
    script.write_text(COMMON + source % timeout)
    began = time.monotonic()
    process, said = forked.Popen([sys.executable, str(script)]), [""]
    while not all(word in "".join(said) for word in (" in in_c", "isolate=True")):
        assert time.monotonic() < began + 60, said
        time.sleep(0.05)
        said = process.err.read_text().splitlines(keepends=True)
    process.kill()
    named = [line for line in said if " in in_c" in line]
    advice = [line for line in said if "isolate=True" in line]
    print(f"{time.monotonic() - began:.1f} s;", *named)
    assert len(named) == 1 and f'rewards.py", line {len(COMMON.splitlines()) + 6} in' in named[0]
    assert advice and "holds the interpreter can be added with isolate=True" in advice[0]


def test_a_reward_that_forks_is_no_hang() -> None:
    """The timer that names functions belongs to one process; a child that had it could not end."""
    said = run_script(
        """
import ctypes, time
def forks(completion):
    time.sleep(0.1)
    child = os.fork()
    if child == 0:
        ctypes.pythonapi.Py_Exit(0)
    return float(os.waitpid(child, 0)[1] == 0)
env = vf.SingleTurnEnv(dataset=rows(2), rubric=vf.Rubric([forks]))
print(env.evaluate(Client(), "m", progress=False).reward)
""",
        seconds=60,
    )
    assert said == "[1.0, 1.0]\n"


def bomb(gzipped: bool) -> Iterator[bytes]:
    """Give a reply that never ends, as it is or packed."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    while True:
        part = b" " * 2**22
        yield packer.compress(part) if gzipped else part


@pytest.mark.parametrize("gzipped", [False, True])
def test_the_size_of_a_reply_is_bounded(gzipped: bool) -> None:
    class Endless(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            if gzipped:
                self.send_header("Content-Encoding", "gzip")
            self.end_headers()
            with suppress(OSError):
                for part in bomb(gzipped):
                    self.wfile.write(part)

        def log_message(self, *_: Any) -> None:
            pass

    source = """
import resource
from verifiers_nb.inference.http import HTTPClient
client = HTTPClient(sys.argv[1])
env = vf.SingleTurnEnv(dataset=rows(1), max_retries=0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
results = env.evaluate(client, "m", progress=False)
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
print(f"{grown:.0f} {results.errors[0]}")
"""
    with ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        said = run_script(source, f"http://127.0.0.1:{server.server_port}/v1", seconds=100)
        server.shutdown()
    print("MB grown, error:", said)
    assert "larger than 64 MB" in said and int(said.split()[0]) < 500


class Silent(BaseHTTPRequestHandler):
    """Say which model is there; answer nothing else."""

    def do_GET(self) -> None:
        body = b'{"data": [{"id": "verifiers_nb/adder-1m", "owned_by": "vllm"}]}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read()  # as long as the other side waits

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def silent_server() -> Iterator[str]:
    """Serve a model that never answers; give its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Silent) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def test_vf_eval_ends_when_a_server_never_answers(tmp_path: Path) -> None:
    began = time.monotonic()
    with silent_server() as url:
        once = ("-a", '{"max_retries": 1}')
        done = vf_eval("addition", "-b", url, "-n", "1", "--timeout", "2", *once, cwd=tmp_path)
        impatient = (
            "from verifiers_nb.support import threads; threads.LONG_WAIT = 0.5; import sys; "
        )
        impatient += "from verifiers_nb.cli.eval import main; sys.exit(main())"
        command = [sys.executable, "-c", impatient, "addition", "-b", url, "-n", "1", "-r", "1"]
        told = forked.run([*command, "--timeout", "3", *once], tmp_path)
    print(f"status {done.returncode} after {time.monotonic() - began:.1f} s")
    assert done.returncode == 1 and "no answer within 2.0 s" in " ".join(done.stdout.split())
    assert f"s for an answer from {url.removesuffix('/v1')}, for rollout 0" in told.stderr


def test_a_key_in_a_message_is_kept_nowhere(tmp_path: Path) -> None:
    """Of a server's error and of a reward's; and the terminal sees no control code of theirs."""

    class Refuses(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers["Content-Length"]))
            said = b'{"choices": [{"message": {"content": "yes"}}]}'
            if b"question 0" in asked:
                said = b'{"error": {"message": "\\u001b[31mno, sk-open-sesame-123 at http://u:hunter@h"}}'
            self.send_response(400 if b"error" in said else 200)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: Any) -> None:
            pass

    reward = "def reward(prompt):\n    raise ValueError('no: http://h/?api_key=' + 'sesa' + 'me')\n"
    reward += "def load_environment():\n"
    reward += "    return vf.SingleTurnEnv(eval_dataset=rows(2), rubric=vf.Rubric([reward]))\n"
    (tmp_path / "keyed.py").write_text(COMMON + reward)
    with ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        done = vf_eval(*("keyed", "-b", url, "-m", "m", "-r", "1", "-s", "--report"), cwd=tmp_path)
        server.shutdown()
    files = [path for path in (tmp_path / "outputs").rglob("*") if path.is_file()]
    texts = [done.stdout, done.stderr, *(path.read_text() for path in files)]
    print(done.stderr[-300:])
    assert len(files) >= 3 and all("***" in text for text in texts[:2])
    assert not [text for text in texts if "sesame" in text or "hunter" in text or "\x1b" in text]
    assert "\\x1b[31mno, *** at http://***@h" in " ".join(done.stdout.split())


def test_vf_train_ends_when_a_server_never_answers(tmp_path: Path) -> None:
    """One that takes the connection and is silent, and one that only says which model it has."""
    command = [sys.executable, "-m", "verifiers_nb.cli.train", "addition", "--timeout", "1"]
    command += ["--per-device-train-batch-size", "16", "--max-steps", "2", "-o", "run"]
    with socket.create_server(("127.0.0.1", 0)) as deaf, silent_server() as url:
        address = f"http://127.0.0.1:{deaf.getsockname()[1]}/v1"
        for server, said in ((address, "no server answers at"), (url, "no answer within 1.0 s")):
            began = time.monotonic()
            done = forked.run([*command, "--endpoint", server], tmp_path)
            seconds = time.monotonic() - began
            print(f"status {done.returncode} after {seconds:.1f} s:", done.stderr)
            assert done.returncode in (1, 2) and seconds < 50
            assert said in done.stderr and "no answer within 1.0 s" in done.stderr
            assert "Traceback" not in done.stderr


READER = """
import ctypes, os, sys
from importlib import import_module
libc, number, right = ctypes.CDLL(None), 2, 1 << 2  # CAP_DAC_READ_SEARCH
libc.prctl(8, 1, 0, 0, 0)  # PR_SET_KEEPCAPS
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
rights = (ctypes.c_uint32 * 6)(right, right, right)  # effective, permitted, inherited
refused = libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), rights)
if refused or libc.prctl(47, 2, number, 0, 0):  # PR_CAP_AMBIENT_RAISE, for what it starts
    sys.exit("needs the right to read everything")
module = "verifiers_nb.cli." + sys.argv.pop(1)
sys.exit(import_module(module).main())
"""


def as_reader(module: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Call a command as a user who may read everything and write nothing of root's."""
    if os.getuid():
        pytest.skip("needs root, to be somebody who may not write")
    env = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")}
    env |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/nonexistent"}
    done = forked.run([sys.executable, "-c", READER, module, *arguments], cwd, env, timeout=600)
    if "needs the right" in done.stderr:
        pytest.skip(done.stderr)
    return done


def test_a_folder_that_may_only_be_read_is_one_sentence(tmp_path: Path) -> None:
    """New and gone on with, in vf-eval and vf-train: what is kept, and how to go on."""
    said = []
    asked = ("addition", "-n", "2", "-r", "1")
    new = as_reader("eval", *asked, "-s", cwd=tmp_path)
    said.append(new.stderr.splitlines()[-1])
    assert "outputs: Permission denied. No rollouts were saved: choose a folder" in said[-1]
    assert vf_eval(*asked, "-s", cwd=tmp_path).returncode == 0
    (results,) = tmp_path.rglob("results.jsonl")
    results.write_text(results.read_text().splitlines(keepends=True)[0])
    resumed = as_reader("eval", "addition", "--resume", results.parent.name, cwd=tmp_path)
    said.append(resumed.stderr.splitlines()[-1])
    command = f"vf-eval addition --resume {results.parent.name}"
    assert f"resume the run once this is fixed with: {command}" in said[-1]
    assert len(results.read_text().splitlines()) == 1
    small = ("--max-steps", "1", "--per-device-train-batch-size", "16", "-o", "run")
    train = [sys.executable, "-m", "verifiers_nb.cli.train", "addition", *small]
    began = as_reader("train", "addition", *small, cwd=tmp_path)
    assert forked.run(train, tmp_path).returncode == 0
    kept = sorted((tmp_path / "run").rglob("*"))
    goes_on = as_reader("train", "--resume", "run", "--max-steps", "2", cwd=tmp_path)
    assert sorted((tmp_path / "run").rglob("*")) == kept
    for done in (began, goes_on):
        said += done.stderr.splitlines()
        assert (
            "run can't be written" in said[-1] and "Nothing was changed. Name another" in said[-1]
        )
    print(*said, sep="\n")
    assert len(said) == 4
    for done in (new, resumed, began, goes_on):
        assert done.returncode == 2 and "Traceback" not in done.stderr
