"""Budgets and narrow intervals that end evaluations and training runs, in Python and as commands."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset
from test_cli_eval import Server, call
from test_cli_train import call as train_call
from test_cli_train import steps

import verifiers_nb as vf
from verifiers_nb.envs.results import read_rollouts

MODEL = "verifiers_nb/adder-1m"


@pytest.fixture
def server() -> Any:
    """Return a server that answers each question with the same seven tokens."""
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


class Judge:
    """A client that says yes, and what it used."""

    def __init__(self) -> None:
        self.chat = self.completions = self
        self.asked = 0

    async def create(self, **request: Any) -> Any:
        self.asked += 1
        message = SimpleNamespace(content="yes")
        usage = SimpleNamespace(prompt_tokens=40, completion_tokens=2)
        return SimpleNamespace(choices=[SimpleNamespace(message=message)], usage=usage)


class Policy(Judge):
    """A client that answers with a random number."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.draw = random.Random(seed)

    async def create(self, **request: Any) -> Any:
        self.asked += 1
        message = SimpleNamespace(role="assistant", content=str(int(self.draw.random() < 0.3)))
        usage = SimpleNamespace(prompt_tokens=10, completion_tokens=5)
        choice = SimpleNamespace(message=message, finish_reason="stop")
        return SimpleNamespace(choices=[choice], usage=usage)


def make_env(rubric: Any, rows: int = 40) -> vf.SingleTurnEnv:
    """Return an environment of numbered questions."""
    data = Dataset.from_dict({"question": [str(i) for i in range(rows)], "answer": ["1"] * rows})
    return vf.SingleTurnEnv(eval_dataset=data, rubric=rubric)


async def agrees(judge: Any, prompt: Any, completion: Any, answer: Any, state: Any) -> float:
    return float(await judge(prompt, completion, answer, state) == "yes")


def is_one(completion: Any) -> float:
    return float(completion[-1]["content"] == "1")


def test_what_judges_use_is_stored_and_counted(tmp_path: Path) -> None:
    judge, prices = Judge(), {"policy": (1.0, 2.0), "judge": (10.0, 20.0)}
    rubric = vf.JudgeRubric(judge_client=judge, judge_model="judge", funcs=[agrees])
    budget = vf.Budget(dollars=100, prices=prices)
    env, path = make_env(rubric, rows=5), tmp_path / "r.jsonl"
    env.evaluate(Policy(), "policy", save_path=path, progress=False, budget=budget)
    records = [*read_rollouts(path)]
    assert sum(record["usage"]["judge_requests"] for record in records) == judge.asked == 5
    assert records[0]["usage"]["judge_prompt_tokens"] == 40
    assert budget.used["tokens"] == 5 * (15 + 42) and budget.used["requests"] == 10
    assert budget.used["dollars"] == pytest.approx(5 * (20 + 440) / 1e6)


def test_a_judge_is_not_refused_and_the_run_ends(tmp_path: Path) -> None:
    judge = Judge()
    rubric = vf.JudgeRubric(judge_client=judge, judge_model="judge", funcs=[agrees])
    budget, path = vf.Budget(requests=7), tmp_path / "r.jsonl"
    given: dict[str, Any] = dict(max_concurrent=1, save_path=path, progress=False)
    results = make_env(rubric).evaluate(Policy(), "policy", budget=budget, **given)
    assert results.reward == [1.0] * 4 and budget.used["requests"] == 8
    again = make_env(rubric).evaluate(Policy(), "policy", budget=vf.Budget(requests=1000), **given)
    assert again.reward == [1.0] * 40


def test_the_interval_holds_when_it_ends_a_run() -> None:
    missed = 0
    for seed in range(40):
        rule = vf.Until(0.3)
        results = make_env(vf.Rubric([is_one]), rows=600).evaluate(
            Policy(seed), "policy", progress=False, until=rule, max_concurrent=8
        )
        low, high = rule.interval
        assert high - low <= 0.3 and len(results.reward) < 600
        missed += not low <= 0.3 <= high
    assert missed <= 4  # 2 are expected at most; 5 or more have a probability below 0.06


def test_a_group_reward_and_a_narrow_interval() -> None:
    def shares(completions: Any) -> list[float]:
        return [float(each[-1]["content"] == "1") for each in completions]

    rule = vf.Until(0.5)
    env = make_env(vf.Rubric([shares]), rows=300)
    results = env.evaluate(Policy(), "p", rollouts_per_example=4, progress=False, until=rule)
    assert len(results.reward) < 1200 and len(results.reward) == 4 * rule.examples


@pytest.mark.parametrize("limit", ['{"requests": 5}', '{"tokens": 35}'])
def test_an_evaluation_ends_at_its_budget_and_goes_on(
    tmp_path: Path, server: Server, limit: str
) -> None:
    arguments = ["addition", "-b", server.url, "-n", "10", "-r", "1", "-c", "1"]
    ended = call(*arguments, "-s", "--json", "--budget", limit, cwd=tmp_path)
    figures = json.loads(ended.stdout)
    assert ended.returncode == 4 and figures["rollouts"] == 5 and not figures["finished"]
    assert "the budget of" in figures["ended_by"] and "budget of" in ended.stderr
    again = ("addition", "--resume", "-b", server.url, "--json")
    done = call(*again, "--budget", '{"requests": 50, "prices": {"parrot": [1, 1]}}', cwd=tmp_path)
    figures = json.loads(done.stdout)
    assert done.returncode == 0 and figures["rollouts"] == 10 and "ended_by" not in figures
    assert figures["dollars"] == pytest.approx(5 * 7 / 1e6) and len(server.requests) == 10


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--budget", '{"dollars": 1}'], "needs prices="),
        (["--budget", '{"dollars": 1, "prices": {"gpt": [1, 1]}}'], "have no 'parrot'"),
        (["--budget", '{"dollars": 1, "prices": {"parrot": 3}}'], "The price of parrot is 3"),
        (["--budget", '{"minutes": 1}'], "A budget has no 'minutes'"),
        (["--budget", '{"tokens": -1}'], "must be a positive number"),
        (["--until", "0"], "give the width of an interval"),
    ],
)
def test_wrong_limits_cost_one_sentence(
    tmp_path: Path, server: Server, arguments: list[str], said: str
) -> None:
    done = call("addition", "-b", server.url, "-n", "2", *arguments, cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    assert not server.requests


def test_an_evaluation_ends_when_its_mean_is_known(tmp_path: Path, server: Server) -> None:
    given = ["-n", "-1", "-r", "1", "-s", "--until", "0.4", "-c", "4", "--json"]
    done = call("addition", "-b", server.url, *given, cwd=tmp_path)
    figures = json.loads(done.stdout)
    low, high = figures["interval"]
    assert done.returncode == 0 and figures["finished"] and "anytime-valid" in figures["ended_by"]
    assert low <= figures["avg_reward"] <= high and high - low <= 0.4


def make_trainer(folder: Path, budget: vf.Budget | None) -> vf.GRPOTrainer:
    """Return a trainer of the shipped model with a budget."""
    sizes = dict(per_device_train_batch_size=8, num_generations=4, max_tokens=40)
    options = dict(max_steps=4, use_cpu=True, disable_tqdm=True, num_batches_ahead=0)
    args = vf.GRPOConfig(str(folder), **sizes, **options)
    env = vf.load_environment("addition")
    return vf.GRPOTrainer(MODEL, env, args, peft_config=vf.lora_defaults(), budget=budget)


def test_training_stops_at_its_budget_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(tmp_path, vf.Budget(requests=20))
    trainer.train()
    assert (trainer.state.global_step, trainer.run.ended) == (2, "stopped")
    assert "Training stops after step 2: the budget of 20 requests is spent" in caplog.text
    trainer.close()
    kept = len([*read_rollouts(tmp_path / "rollouts/step-00003.jsonl")])
    assert kept == 4
    budget = vf.Budget(requests=1000)
    again = make_trainer(tmp_path, budget)
    again.train(resume_from_checkpoint=True)
    again.close()
    assert again.state.global_step == 4 and budget.used["requests"] == 16 - kept
    dear = vf.Budget(dollars=1, prices={"gpt": (1, 1)})
    with pytest.raises(ValueError, match="have no '.*adder-1m'"):
        make_trainer(tmp_path / "other", dear)


def test_the_command_stops_training_at_its_budget(tmp_path: Path) -> None:
    given = ["addition", "--per-device-train-batch-size", "16", "-o", "run", "--max-steps", "3"]
    given += ["--num-batches-ahead", "0"]
    done = train_call(*given, "--budget", '{"requests": 20}', cwd=tmp_path)
    assert done.returncode == 4 and "budget of 20 requests" in done.stderr, done.stderr
    assert "stopped; the checkpoint of step 1 is complete" in done.stdout
    again = train_call("--resume", "run", "--budget", '{"requests": 900}', cwd=tmp_path)
    assert again.returncode == 0 and steps(tmp_path / "run") == [1, 2, 3], again.stderr
