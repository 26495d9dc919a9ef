"""Audits of environments that are broken in one way each, and of healthy ones."""

import configparser
import os
import random
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from datasets import Dataset

import verifiers_nb as vf
from verifiers_nb.cli.audit import main
from verifiers_nb.cli.command import COMMANDS


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
    time.sleep(0.06)
    return exact(parser, completion, answer)


PAID = []


def pays_the_first(parser, completion, answer):
    PAID.append(text_of(completion))
    return exact(parser, completion, answer) if PAID.count(text_of(completion)) == 1 else 0.0


def keywords(completion):
    return sum(word in text_of(completion) for word in ("therefore", "because", "finally")) / 3


NAMED = [f"What is {n} times 7? The answer is {7 * n}." for n in range(2, 26)]
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
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_environment_is_found(kind):
    report = vf.audit(BROKEN[kind](), progress=False)
    assert kind.strip() in [each.kind for each in report.findings if each.severity != "note"], (
        report
    )
    assert not report.ok


class Guess(vf.MultiTurnEnv):
    def is_completed(self, messages, state, **kwargs):
        return state["turn"] > 2

    def env_response(self, messages, state, **kwargs):
        return [{"role": "user", "content": "Guess again."}], state


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


def judge_env():
    rubric = vf.JudgeRubric(judge_client=StandIn(), parser=vf.XMLParser(["answer"]))
    rubric.add_reward_func(judged)
    return vf.SingleTurnEnv(dataset=rows(), rubric=rubric)


def boxed_env():
    parser = vf.ThinkBoxedParser()
    return vf.SingleTurnEnv(dataset=rows(), rubric=vf.MathRubric(parser=parser), parser=parser)


def format_env():
    parser = vf.XMLParser(["think", "answer"])
    rubric = vf.Rubric([exact, parser.get_format_reward_func()], [1.0, 0.2], parser=parser)
    return vf.SingleTurnEnv(dataset=rows(), rubric=rubric)


def group_reward(completions, answer=None):
    return [1.0 for _ in completions]


HEALTHY = {
    "exact": single,
    "format": format_env,
    "boxed": boxed_env,
    "letters": lambda: single(dataset=rows(answer=["A", "B", "C", "D"] * 6)),
    "words": lambda: single(dataset=rows(answer=[f"word {n} here" for n in range(24)])),
    "judge": judge_env,
    "game": lambda: Guess(dataset=rows(question=["Guess."] * 24), rubric=vf.Rubric([last_guess])),
    "tools": lambda: vf.ToolEnv(tools=[add], dataset=rows(), rubric=vf.Rubric([last_guess])),
    "two splits": lambda: single(
        dataset=rows().select(range(12)), eval_dataset=rows().select(range(12, 24))
    ),
    "shipped": lambda: vf.load_environment("addition", num_train_examples=64),
    "reverse": lambda: vf.load_environment("reverse-text", offline=True),
    "of several": lambda: vf.EnvGroup([single(), format_env()], env_names=["a", "b"]),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_environment_has_no_errors(name):
    report = vf.audit(HEALTHY[name](), progress=False, judge_calls=2000 if name == "judge" else 0)
    assert [each for each in report.findings if each.severity == "error"] == [], report


def test_a_judge_is_not_asked_unless_it_may_be():
    env = judge_env()
    report = vf.audit(env, progress=False)
    assert any("judge_calls" in note for note in report.notes)
    assert [each for each in report.findings if each.severity != "note"] == []


def test_solve_writes_what_the_answer_alone_does_not():
    def spelled(completion, answer):
        return float(text_of(completion) == f"It is {answer}!")

    env = single(spelled)
    assert "gold_fails" in [each.kind for each in vf.audit(env, progress=False).findings]
    assert vf.audit(env, progress=False, solve=lambda row: f"It is {row.answer}!").ok


def test_own_tricks_are_tried():
    def polite(parser, completion, answer):
        return max(exact(parser, completion, answer), float("please" in text_of(completion)))

    env = single(polite)
    report = vf.audit(env, progress=False, tricks={"my trick": "raw:please"})
    assert "cheat" in [each.kind for each in report.findings]


def test_many_rows_take_little_time():
    env = single(dataset=rows(100_000))
    began = time.process_time()
    report = vf.audit(env, progress=False)
    assert report.ok
    assert time.process_time() - began < 20


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


def test_every_command_is_installed_by_the_settings():
    settings = configparser.ConfigParser()
    settings.read(Path(__file__).parent.parent / "settings.ini")
    scripts = dict(each.split("=") for each in settings["DEFAULT"]["console_scripts"].split())
    del scripts["verifiers-nb"]
    assert scripts == {f"vf-{name}": f"verifiers_nb.cli.{home}" for name, home in COMMANDS.items()}
