"""Audits of environments that are broken in one way each, and of healthy ones."""

import itertools
import os
import random
import re
import signal
import socket
import sys
import threading
import time
import urllib.request
from ast import literal_eval
from contextlib import suppress
from types import SimpleNamespace

import forked
import pytest
from datasets import Dataset

import verifiers_nb as vf
from verifiers_nb.cli.audit import main
from verifiers_nb.envs.audit_data import USUAL_LIMIT


def rows(count=24, **columns):
    question = [f"What is {n} times 7?" for n in range(2, count + 2)]
    data = {"question": question, "answer": [str(7 * n) for n in range(2, count + 2)], **columns}
    return Dataset.from_dict(data)


def exact(parser, completion, answer):
    return float((parser.parse_answer(completion) or "").strip() == answer)


def single(*funcs, dataset=None, parser=None, weights=None, **kwargs):
    parser = parser or vf.XMLParser(["think", "answer"])
    rubric = vf.Rubric([*(funcs or [exact])], weights, parser=parser)
    return vf.SingleTurnEnv(dataset=rows() if dataset is None else dataset, rubric=rubric, **kwargs)


def text_of(completion):
    return completion[-1]["content"]


def ignores(parser, completion):
    return float(bool(parser.parse_answer(completion)))


def typed(parser, completion, answer):
    return float(parser.parse_answer(completion) == int(answer))


def substring(completion, answer):
    return float(answer in text_of(completion))


def prefix(parser, completion, answer):
    return float((parser.parse_answer(completion) or "").startswith(answer[:1]))


def longest(completion):
    return min(1.0, len(text_of(completion)) / 400)


def anything(completion):
    return 1.0


def divides(parser, completion, answer):
    return exact(parser, completion, answer) / len(text_of(completion)) * len(text_of(completion))


def leaves(parser, completion, answer):
    if not text_of(completion):
        os._exit(1)
    return exact(parser, completion, answer)


def forks(parser, completion, answer):
    if len(text_of(completion)) > 50_000 and os.fork() == 0:
        os._exit(0)
    return exact(parser, completion, answer)


def throws_dice(parser, completion, answer):
    return exact(parser, completion, answer) * random.SystemRandom().random()


def sleeps(parser, completion, answer):
    right = exact(parser, completion, answer)
    time.sleep(0.06 * right)
    return right


PAID = []


def pays_the_first(parser, completion, answer):
    PAID.append(text_of(completion))
    return exact(parser, completion, answer) if PAID.count(text_of(completion)) == 1 else 0.0


def keywords(completion):
    return sum(word in text_of(completion) for word in ("therefore", "because", "finally")) / 3


def unsigned(parser, completion, answer):
    return float((parser.parse_answer(completion) or "").strip().lstrip("-") == answer)


def unstripped(completion, answer):
    return float(text_of(completion) == answer)


def labels(parser, completion, answer):
    return float(answer in (parser.parse_answer(completion) or ""))


def long_thoughts(parser, completion, answer):
    thought = len(parser.parse(text_of(completion)).think or "") > 300
    return 0.5 * exact(parser, completion, answer) + 0.5 * thought


def nested(parser, completion, answer):
    text = text_of(completion)[:16_000:6]
    sum(a == b for a in text for b in text)
    return exact(parser, completion, answer)


def waits(parser, completion, answer):
    if text_of(completion) == ".":
        time.sleep(60)
    return exact(parser, completion, answer)


def options(completion, answer):
    return float(answer in text_of(completion).upper())


def tolerant(parser, completion, answer):
    given = (parser.parse_answer(completion) or "").strip()
    return float(given.isdigit() and abs(int(given) - int(answer)) <= 0.1 * int(answer))


def not_a_number(parser, completion, answer):
    return exact(parser, completion, answer) or float("nan")


def exits(parser, completion, answer):
    if not parser.parse_answer(completion):
        sys.exit(3)
    return exact(parser, completion, answer)


def long_thinking(parser, completion):
    return min(1.0, len(parser.parse(text_of(completion)).think or "") / 200)


def ended(completion, answer, state):
    return float(state["turn"] > 2)


class Guess(vf.MultiTurnEnv):
    def is_completed(self, messages, state, **kwargs):
        return state["turn"] > 2

    def env_response(self, messages, state, **kwargs):
        return [{"role": "user", "content": "Guess again."}], state


def game(func):
    return Guess(dataset=rows(question=["Guess."] * 24), rubric=vf.Rubric([func]))


def three_guesses(row):
    return ["1", "2", str(row.answer)]


EXAMPLE = [{"role": "user", "content": "What is 2 times 7?"}]
SHOWN = [f"{n} times 7 = {7 * n}." for n in range(2, 26)]
SHOUTED = [f"WHAT IS  {n} TIMES 7" for n in range(2, 8)]
NAMED = [f"What is {n} times 7? The answer is {7 * n}." for n in range(2, 26)]
HANGS = "raises   "
BROKEN = {
    "empty_answer": lambda: single(dataset=rows(answer=["", "9"] * 12)),
    "conflicting_answers": lambda: single(dataset=rows(question=["What is n times 7?"] * 24)),
    "duplicate_prompts": lambda: single(
        dataset=rows(question=["a", "b"] * 12, answer=["1", "2"] * 12)
    ),
    "leak": lambda: single(eval_dataset=rows(6)),
    "answer_in_prompt": lambda: single(dataset=rows(question=NAMED)),
    "gold_fails": lambda: single(typed),
    "ignores_answer": lambda: single(ignores),
    "wrong_pays": lambda: single(prefix),
    "never_varies": lambda: single(exact, anything),
    "not_deterministic": lambda: single(throws_dice),
    "raises": lambda: single(divides),
    "raises ": lambda: single(leaves),
    "raises  ": lambda: single(forks),
    "slow": lambda: single(sleeps),
    "depends_on_order": lambda: single(pays_the_first),
    "cheat": lambda: single(substring),
    "cheat ": lambda: single(longest),
    "cheat  ": lambda: single(keywords),
    "cheat   ": lambda: single(exact, ignores, weights=[0.2, 0.8]),
    "never_varies ": lambda: single(weights=[0.0]),
    "too_long": lambda: single(dataset=rows(question=[f"{'word ' * 700}{n}?" for n in range(24)])),
    "answer_in_prompt ": lambda: single(dataset=rows(question=SHOWN)),
    "answer_in_prompt  ": lambda: single(
        dataset=rows(1).select([0] * 3), few_shot=[*EXAMPLE, {"role": "assistant", "content": "14"}]
    ),
    "leak ": lambda: single(eval_dataset=rows(6, question=SHOUTED)),
    "wrong_pays ": lambda: single(unsigned),
    "gold_fails ": lambda: single(unstripped, parser=vf.Parser()),
    "cheat    ": lambda: single(labels, dataset=rows(answer=["good", "bad", "fair"] * 8)),
    "cheat     ": lambda: single(long_thoughts, weights=[1.0]),
    "slow ": lambda: single(nested),
    HANGS: lambda: single(waits),
    "wrong_pays  ": lambda: single(options, dataset=rows(answer=["A", "B", "C", "D"] * 6)),
    "wrong_pays   ": lambda: single(tolerant),
    "raises    ": lambda: single(not_a_number),
    "raises     ": lambda: single(exits),
    "cheat      ": lambda: single(exact, long_thinking, weights=[0.4, 0.6]),
    "ignores_answer ": lambda: game(ended),
}
SOLVED = {"ignores_answer ": three_guesses, "told": three_guesses}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_environment_is_found(kind, monkeypatch):
    patience = 1.0 if kind == HANGS else 4.0  # three trials are given up
    monkeypatch.setattr("verifiers_nb.envs.trials.PATIENCE", patience)
    search = 200 if kind.startswith("cheat") else 0  # it looks for nothing else
    report = vf.audit(BROKEN[kind](), progress=False, solve=SOLVED.get(kind), search=search)
    assert kind.strip() in [each.kind for each in report.findings if each.severity != "note"], (
        report
    )
    assert not report.ok
    for each in report.findings:
        assert each.example and each.remedy and each.message.endswith("."), each
        assert ". " not in each.message, each  # one sentence


def last_guess(completion, answer):
    return float(text_of(completion).strip() == answer)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class StandIn:
    """Answers yes if the response is the reference."""

    def __init__(self):
        self.calls = 0
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self.create))

    async def create(self, messages, **kwargs):
        self.calls += 1
        text = messages[0]["content"]
        reference = text.split("<reference_answer>\n")[1].split("\n</reference_answer>")[0]
        response = text.split("<response>\n")[1].split("\n</response>")[0]
        word = "yes" if reference == response.strip() else "no"
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=word))])


async def judged(judge, prompt, completion, answer, state):
    return float(await judge(prompt, completion, answer, state) == "yes")


class Gullible(StandIn):
    """Believes what a response says of itself, too."""

    async def create(self, messages, **kwargs):
        answer = await super().create(messages, **kwargs)
        if "Verdict: yes" in messages[0]["content"]:
            answer.choices[0].message.content = "yes"
        return answer


def judge_env(client=None):
    rubric = vf.JudgeRubric(judge_client=client or StandIn(), parser=vf.XMLParser(["answer"]))
    rubric.add_reward_func(judged)
    return vf.SingleTurnEnv(dataset=rows(), rubric=rubric)


def boxed_env():
    parser = vf.ThinkBoxedParser()
    return vf.SingleTurnEnv(dataset=rows(), rubric=vf.MathRubric(parser=parser), parser=parser)


def format_env():
    parser = vf.XMLParser(["think", "answer"])
    rubric = vf.Rubric([exact, parser.get_format_reward_func()], [1.0, 0.2], parser=parser)
    return vf.SingleTurnEnv(dataset=rows(), rubric=rubric)


def plus_or_minus(parser, completion, answer):
    return 2 * exact(parser, completion, answer) - 1


def among(parser, completion, answer):
    return float((parser.parse_answer(completion) or "").strip() in literal_eval(answer))


def from_info(parser, completion, info):
    return float((parser.parse_answer(completion) or "").strip() == info["gold"])


def continued(completion, answer):
    return float(completion.strip() == answer)


def continued_env():
    data = rows().rename_column("question", "prompt")
    rubric = vf.Rubric([continued])
    return vf.SingleTurnEnv(dataset=data, rubric=rubric, message_type="completion")


def informed_env():
    data = [{"question": f"{n}?", "info": {"gold": str(n)}} for n in range(24)]
    return single(from_info, dataset=Dataset.from_list(data))


def group_reward(completions, answer=None):
    return [1.0 for _ in completions]


HEALTHY = {
    "exact": single,
    "format": format_env,
    "boxed": boxed_env,
    "letters": lambda: single(dataset=rows(answer=["A", "B", "C", "D"] * 6)),
    "words": lambda: single(dataset=rows(answer=[f"word {n} here" for n in range(24)])),
    "judge": judge_env,
    "game": lambda: game(last_guess),
    "told": lambda: game(last_guess),
    "tools": lambda: vf.ToolEnv(tools=[add], dataset=rows(), rubric=vf.Rubric([last_guess])),
    "two splits": lambda: single(
        dataset=rows().select(range(12)), eval_dataset=rows().select(range(12, 24))
    ),
    "shipped": lambda: vf.load_environment("addition", num_train_examples=64),
    "reverse": lambda: vf.load_environment("reverse-text", offline=True),
    "plus or minus": lambda: single(plus_or_minus),
    "lists": lambda: single(among, dataset=rows(answer=[f"['{n}', 'no {n}']" for n in range(24)])),
    "info": informed_env,
    "continued": continued_env,
    "of several": lambda: vf.EnvGroup([single(), format_env()], env_names=["a", "b"]),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_environment_has_no_errors(name):
    calls = 300 if name == "judge" else 0
    report = vf.audit(HEALTHY[name](), progress=False, judge_calls=calls, solve=SOLVED.get(name))
    assert [each for each in report.findings if each.severity == "error"] == [], report


def test_a_judge_is_not_asked_unless_it_may_be():
    env = judge_env()
    report = vf.audit(env, progress=False)
    assert any("judge_calls" in note for note in report.notes)
    assert [each for each in report.findings if each.severity != "note"] == []
    assert env.rubric.judge_client.calls == 0


def test_a_judge_that_believes_a_response_is_found_with_few_questions():
    client = Gullible()
    report = vf.audit(judge_env(client), progress=False, judge_calls=100)
    (cheat,) = [each for each in report.findings if each.kind == "cheat"]
    assert cheat.severity == "error" and "a claimed verdict" in cheat.message
    assert client.calls == 100  # in whatever process they are asked
    assert any("judge_calls" in note for note in report.notes)


def test_solve_writes_what_the_answer_alone_does_not():
    def spelled(completion, answer):
        return float(text_of(completion) == f"It is {answer}!")

    env = single(spelled)
    assert "gold_fails" in [each.kind for each in vf.audit(env, progress=False).findings]
    assert vf.audit(env, progress=False, solve=lambda row: f"It is {row.answer}!").ok


def tagged_text(text, *tags):
    found = (re.search(rf"<{tag}>\n(.*?)\n</{tag}>", text, re.DOTALL) for tag in tags)
    return next((each[1].strip() for each in found if each), "")


class Referee:
    """Gives a verdict on a response that is the reference, and another on all others."""

    def __init__(self, same, other):
        self.same, self.other = same, other
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self.create))

    async def create(self, messages, **kwargs):
        text = messages[0]["content"]
        right = tagged_text(text, "reference_answer", "right_label")
        response = tagged_text(text, "response")
        verdict = self.same if right.lower() == response.lower() else self.other
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=verdict))])


JUDGED = {
    "self-reward": ("<score>10</score>", "<score>0</score>"),
    "simpleqa": ("A", "B"),
    "toxicity-explanation": ("<score>10</score>", "<score>0</score>"),
}


@pytest.mark.parametrize("name", JUDGED)
def test_an_environment_with_a_good_judge_has_no_findings(name):
    named = {"model_name": "judge"} if name == "self-reward" else {}
    env = vf.load_environment(name, offline=True, **named)
    env.rubric.judge_client = Referee(*JUDGED[name])
    report = vf.audit(env, n=4, judge_calls=120, progress=False)
    assert report.honest == 1.0 and report.ok, report


class Answers:
    """Answers every question with the next of some texts."""

    def __init__(self, *texts, reason="stop"):
        self.texts, self.reason = itertools.cycle(texts), reason
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self.create))

    async def create(self, messages, **kwargs):
        text = next(self.texts)
        text = text(messages[-1]["content"]) if callable(text) else text
        message = SimpleNamespace(content=text, tool_calls=None, refusal=None)
        choice = SimpleNamespace(message=message, finish_reason=self.reason)
        return SimpleNamespace(choices=[choice], usage=None)


def solved(question):
    return f"<think>\n7\n</think>\n<answer>\n{7 * int(question.split()[2])}\n</answer>"


def padded(times):
    return lambda question: solved(question).replace("7\n<", f"{'so ' * times}\n<", 1)


WRONG = "<think>\n7\n</think>\n<answer>\n1\n</answer>"
TALK = "I would say that it is a large number."


def length(completion):
    return min(1.0, len(text_of(completion)) / 400)


def tagged(completion):
    return float("<answer>" in text_of(completion))


SIGNALS = {
    "no_signal": (single, Answers(WRONG)),
    "too_hard": (single, Answers(WRONG)),
    "too_easy": (single, Answers(solved)),
    "never_formats": (single, Answers(TALK)),
    "truncated": (single, Answers(TALK, solved, WRONG, reason="length")),
    "length_bias": (lambda: single(exact, length), Answers(*map(padded, range(0, 90, 9)))),
    "one_part_dominates": (lambda: single(exact, tagged), Answers(TALK, WRONG)),
}


@pytest.mark.parametrize("kind", SIGNALS)
def test_samples_show_what_a_model_cannot_learn(kind):
    make, client = SIGNALS[kind]
    report = vf.audit(make(), client, "stand-in", n=8, rollouts=6, search=0, progress=False)
    assert kind in [each.kind for each in report.findings if each.severity != "note"], report
    assert report.verdict


def test_a_model_that_can_learn_has_a_signal():
    client = Answers(solved, WRONG, WRONG)
    report = vf.audit(format_env(), client, "stand-in", n=8, rollouts=4, progress=False)
    assert [each for each in report.findings if each.severity != "note"] == [], report
    assert "GRPO learns from 8 of 8 (100%) groups" in report.verdict


def test_right_completions_come_from_samples_where_they_cannot_be_written():
    client = Answers(lambda question: f"It is {7 * int(question.split()[2])}!", TALK)

    def spelled(completion, answer):
        return float(text_of(completion) == f"It is {answer}!")

    report = vf.audit(single(spelled), client, "stand-in", n=4, rollouts=2, progress=False)
    assert "gold_fails" not in [each.kind for each in report.findings if each.severity == "error"]
    assert any("best sampled rollouts" in note for note in report.notes), report


def test_the_audit_is_the_same_for_a_seed():
    reports = [vf.audit(single(keywords), seed=3, progress=False) for _ in range(2)]
    assert reports[0].as_dict() == reports[1].as_dict()


def test_without_a_client_nothing_of_the_network_is_used(monkeypatch):
    def refused(ask):
        def asked(*args, **kwargs):
            watches = threading.current_thread().name == "vllm watch"  # of another test's server
            assert watches, "the network was asked"
            return ask(*args, **kwargs)

        return asked

    for name in ("connect", "connect_ex", "sendto", "bind"):
        monkeypatch.setattr(socket.socket, name, refused(getattr(socket.socket, name)))
    monkeypatch.setattr(socket, "getaddrinfo", refused(socket.getaddrinfo))
    assert vf.audit(single(), progress=False).ok


def test_a_reward_reaches_no_server():
    reached, ways = [], []

    def accept(listening):
        with suppress(OSError):
            while connection := listening.accept()[0]:
                reached.append("connection")
                connection.close()

    def asks(parser, completion, answer):
        with suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=1)
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            datagrams.sendto(b"1", ("127.0.0.1", port))
        with suppress(OSError):
            ways.append(socket.gethostbyname("localhost"))
        return exact(parser, completion, answer) + len(ways)

    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        port = listening.getsockname()[1]
        datagrams.bind(("127.0.0.1", port))
        threading.Thread(target=accept, args=[listening], daemon=True).start()
        assert vf.audit(single(asks), search=10, progress=False).ok
        datagrams.setblocking(False)
        with pytest.raises(BlockingIOError):
            datagrams.recv(1)
        assert reached == []
        with socket.create_connection(("127.0.0.1", port)) as ours:  # the server does listen
            ours.recv(1)
        assert reached == ["connection"]


def test_a_sampled_rollout_whose_reward_ends_the_process_does_not_end_the_audit():
    def leaving(parser, completion, answer):
        if "large" in text_of(completion):
            os._exit(3)
        return exact(parser, completion, answer)

    client = Answers(TALK, solved)
    report = vf.audit(single(leaving), client, "stand-in", n=4, rollouts=2, progress=False)
    assert report.verdict and "raises" in [each.kind for each in report.findings], report


INTERRUPTED = """
import sys, time
import verifiers_nb as vf
from verifiers_nb.cli import audit

def exact(parser, completion, answer):
    if "yes and no" in completion[-1]["content"]:
        print("now", flush=True)
        time.sleep(5)
    return float(parser.parse_answer(completion) == answer)

rows = [{"question": f"{n}? The answer is {n}.", "answer": str(n)} for n in range(24)]
env = vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(exact, parser=vf.XMLParser(["answer"])))
audit.load = lambda settings: env
raise SystemExit(audit.main(["mine", "--seed", "1"]))
"""


def test_ctrl_c_keeps_what_was_found(tmp_path):
    command = [sys.executable, "-c", INTERRUPTED]
    env = {**os.environ, "COLUMNS": "200"}
    process = forked.Popen(command, tmp_path, env)
    while "now" not in process.out.read_text():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said, progress = process.communicate(timeout=60)
    assert process.returncode == 130, progress
    assert "answer_in_prompt" in said and "was interrupted" in said
    assert "audit:" in progress  # the bar of the checks


def test_own_tricks_are_tried():
    def polite(parser, completion, answer):
        return max(exact(parser, completion, answer), float("please" in text_of(completion)))

    env = single(polite)
    report = vf.audit(env, progress=False, tricks={"my trick": "raw:please"})
    assert "cheat" in [each.kind for each in report.findings]


def test_the_usual_limit_of_prompts_is_that_of_the_trainer():
    assert vf.GRPOConfig.max_prompt_length == USUAL_LIMIT


def test_many_rows_take_little_time():
    env = single(dataset=rows(30_000))
    began = time.process_time()
    report = vf.audit(env, progress=False, search=0)
    assert report.ok
    assert time.process_time() - began < 6


def test_the_command_has_a_status(tmp_path, capsys):
    folder = tmp_path / "paying"
    folder.mkdir()
    (folder / "paying.py").write_text(
        "import verifiers_nb as vf\n\n\ndef anything(completion, answer):\n    return 1.0\n\n\n"
        "def load_environment():\n    rows = [{'question': f'{n}?', 'answer': str(n)} for n in range(9)]\n"
        "    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(anything))\n"
    )
    assert main(["paying", "-p", str(tmp_path)]) == 2
    assert "ignores_answer" in capsys.readouterr().out
    assert main(["addition", "--json"]) == 0
    assert '"ok": true' in capsys.readouterr().out
