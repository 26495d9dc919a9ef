"""Mistakes that people make: each is taken as it was meant, or answered with a sentence that says what to do."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, DatasetDict

import verifiers_nb as vf
from verifiers_nb.inference.endpoints import Endpoints
from verifiers_nb.inference.vllm_policy import VLLMClient

MODEL = "verifiers_nb/adder-1m"
ROWS = [{"question": "1 + 1?", "answer": "2"}, {"question": "2 + 2?", "answer": "4"}]


def right(completion: Any, answer: str) -> float:
    """Score a completion whose last message is the answer."""
    return float(completion[-1]["content"] == answer)


def environment(**settings: Any) -> vf.Environment:
    """Return an environment of two sums."""
    given: dict[str, Any] = {"dataset": ROWS, "rubric": vf.Rubric([right]), **settings}
    return vf.SingleTurnEnv(**given)


def results(env: vf.Environment | None = None) -> vf.types.GenerateOutputs:
    """Return two rollouts, both of which say 2."""
    client = vf.ScriptedClient(["2"] * 2)
    return (env or environment()).evaluate(client, "scripted", progress=False)


def config(**settings: Any) -> vf.GRPOConfig:
    """Return settings for a run that no test starts."""
    sizes = dict(per_device_train_batch_size=2, num_generations=2, use_cpu=True)
    return vf.GRPOConfig("never-written", **{**sizes, **settings})


def trainer(*given: Any, **named: Any) -> vf.GRPOTrainer:
    """Make a trainer as it was asked for."""
    return vf.GRPOTrainer(*given, **{"peft_config": vf.lora_defaults(), **named})


def len_of(completion: Any) -> float:
    """Score the number of messages."""
    return float(len(completion))


def misspelt(completion: Any, anwser: str) -> float:
    """Ask for what no rubric has."""
    return 1.0


class OwnRubric(vf.Rubric):
    """May offer more than `Rubric` does, once it is made."""


def stripped(completion: Any, answer: str) -> float:
    """Take a completion for a text."""
    return float(completion.strip() == answer)


def matched(completion: Any, answer: str) -> float:
    """Take it for a text in another way."""
    return float(re.search(answer, completion) is not None)


DATA = Dataset.from_list(ROWS)
SERVER = VLLMClient("http://127.0.0.1:9/v1", model=MODEL)  # which nobody asks
SERVERS = Endpoints([SERVER])
RANK_12 = vf.lora_defaults(r=12)
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "results as the first argument of the explorer": (
        lambda: vf.RolloutExplorer(results()),
        "GenerateOutputs by name: vf.RolloutExplorer(results=results)",
    ),
    "results as its second argument": (
        lambda: vf.RolloutExplorer(environment(), results()),
        "(env, results=results)",
    ),
    "a file as its first argument": (
        lambda: vf.RolloutExplorer("rollouts.jsonl"),
        "vf.RolloutExplorer(results=results)",
    ),
    "completions without a format": (
        lambda: vf.FormatInspector(["a", "b"]),
        "vf.FormatInspector(parser, completions)",
    ),
    "results without a format": (
        lambda: vf.FormatInspector(results()),
        "vf.FormatInspector(parser, completions)",
    ),
    "completions that are numbers": (
        lambda: vf.FormatInspector(vf.XMLParser(["answer"]), [3]),
        "a list of strings or of lists of messages, not [3]",
    ),
    "a structural tag of an unknown type": (
        lambda: vf.FormatInspector({"type": "no such"}),
        "This is not a structural tag: format is {'type': 'no such'}: the types of formats are",
    ),
    "a dashboard of no run": (lambda: vf.TrainingDashboard([]), "the list is empty"),
    "the name of a tool": (
        lambda: vf.ToolEnv("calculator", dataset=ROWS),
        "A tool is a function, not 'calculator'",
    ),
    "an adapter of a rank that vLLM does not take": (
        lambda: trainer(MODEL, environment(), config(), client=SERVER, peft_config=RANK_12),
        "which supports the ranks 8, 16, 32, 64, 128, 256, 320, 512: use r=16",
    ),
    "the same on several servers": (
        lambda: trainer(MODEL, environment(), config(), client=SERVERS, peft_config=RANK_12),
        "of rank 12 can't be served by vLLM",
    ),
    "a server for such adapters": (
        lambda: vf.serve(MODEL, "vllm", max_lora_rank=12),
        "of rank 12 can't be served by vLLM",
    ),
    "the environment before the model": (
        lambda: trainer(environment(), MODEL, config()),
        "takes model, env (a vf.Environment), args (a vf.GRPOConfig)",
    ),
    "the settings before the environment": (
        lambda: trainer(MODEL, config(), environment()),
        "but model is a str, env is a GRPOConfig, args is a SingleTurnEnv",
    ),
    "the adapter in place of the tokenizer": (
        lambda: vf.GRPOTrainer(MODEL, environment(), config(), vf.lora_defaults()),
        "processing_class is a LoraConfig",
    ),
    "reward functions in place of the environment": (
        lambda: trainer(MODEL, [right], config()),
        "env is a list",
    ),
    "the trainer's arguments of TRL": (
        lambda: vf.GRPOTrainer(MODEL, reward_funcs=[right], args=config(), train_dataset=ROWS),
        "no 'reward_funcs': here that is vf.Rubric(funcs, weights) of the environment",
    ),
    "an environment without a rubric, trained on": (
        lambda: trainer(MODEL, vf.SingleTurnEnv(dataset=ROWS), config()),
        "no reward function, so there is nothing to learn: give it rubric=",
    ),
    "a dataset's name": (
        lambda: environment(dataset="openai/gsm8k"),
        "load it first, with datasets.load_dataset('openai/gsm8k', split='train')",
    ),
    "a dataset with splits": (
        lambda: environment(dataset=DatasetDict(train=DATA, test=DATA)),
        "DatasetDict of train, test: choose a split, dataset['train']",
    ),
    "a dataset that is none": (
        lambda: environment(dataset=7),
        "is a int: give a datasets.Dataset or a list of dicts",
    ),
    "a misspelt argument of a reward function": (
        lambda: environment(rubric=vf.Rubric([right, misspelt])),
        "'misspelt' asks for anwser. It may ask for prompt, completion, answer, state, task, info",
    ),
    "one in a rubric of one's own": (
        lambda: environment(rubric=OwnRubric([misspelt])),
        "'misspelt' asks for anwser.",
    ),
    "one in a group of rubrics": (
        lambda: environment(rubric=vf.RubricGroup([OwnRubric([misspelt])])),
        "'misspelt' asks for anwser.",
    ),
    "weights as a dict": (
        lambda: vf.Rubric([right], weights={"right": 1.0}),
        "weights is a dict: give a list of numbers",
    ),
    "a function in place of a rubric": (
        lambda: environment(rubric=right),
        "rubric is a function: give vf.Rubric([function",
    ),
    "a learning rate in quotes": (
        lambda: config(learning_rate="1e-3"),
        "learning_rate is the string '1e-3': write a number",
    ),
    "max_completion_length": (lambda: config(max_completion_length=9), "that is max_tokens."),
    "max_new_tokens": (lambda: config(max_new_tokens=9), "that is max_tokens."),
    "max_seq_length": (lambda: config(max_seq_length=9), "that is max_seq_len."),
    "use_vllm": (lambda: config(use_vllm=True), "that is vf.serve(model).client"),
    "reward_weights": (lambda: config(reward_weights=[1.0]), "that is vf.Rubric(funcs, weights)"),
    "a misspelt setting": (lambda: config(lerning_rate=1.0), "that is learning_rate."),
    "a setting that nobody has": (lambda: config(colour="red"), "GRPOConfig has no 'colour'."),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_it_is_answered_with_what_to_do(mistake: str) -> None:
    make, sentence = REFUSED[mistake]
    with pytest.raises((TypeError, ValueError), match=re.escape(sentence)) as raised:
        make()
    assert "\n" not in str(raised.value)


def test_a_list_of_dicts_is_a_dataset() -> None:
    assert results(environment(dataset=ROWS, eval_dataset=ROWS[:1])).reward == [1.0]
    assert environment(dataset=lambda: ROWS).get_dataset()["answer"][:] == ["2", "4"]


@pytest.mark.parametrize("weights", [1.0, [1.0], None, []])
def test_one_function_and_one_weight_make_a_rubric(weights: Any) -> None:
    rubric = vf.Rubric(right, weights=weights)
    assert rubric.reward_weights == [1.0] and results(environment(rubric=rubric)).reward == [1, 0]


def test_one_weight_is_that_of_every_function() -> None:
    assert vf.Rubric([right, len_of], weights=0.5).reward_weights == [0.5, 0.5]


@pytest.mark.parametrize("function", [stripped, matched])
def test_a_completion_taken_for_a_text(function: Any, caplog: pytest.LogCaptureFixture) -> None:
    found = results(environment(rubric=vf.Rubric(function)))
    said = (
        "A completion is a list of messages; the text of the last one is completion[-1]['content']"
    )
    assert caplog.text.count(said) == 1
    assert all(said in state["reward_errors"][function.__name__] for state in found.state)


def within(completion: Any) -> float:
    """Look for a text in a list of messages."""
    return float("2" in completion)


def equal(completion: Any, answer: str) -> float:
    """Compare a list of messages with a text."""
    return float(completion == answer)


@pytest.mark.parametrize("function", [within, equal])
def test_a_completion_silently_taken_for_a_text(function: Any) -> None:
    """The warning names the line of the reward function, which would be 0.0 in every rollout."""
    with pytest.warns(UserWarning, match=re.escape("completion[-1]['content']")) as warned:
        assert results(environment(rubric=vf.Rubric(function))).reward == [0.0, 0.0]
    line = function.__code__.co_firstlineno + 2
    assert {(each.filename, each.lineno) for each in warned} == {(__file__, line)}


def test_results_of_a_sync_call_can_be_awaited(caplog: pytest.LogCaptureFixture) -> None:
    async def ask() -> Any:
        return await environment().evaluate(vf.ScriptedClient(["2"] * 2), "m", progress=False)  # type: ignore[misc]

    assert asyncio.run(ask()).reward == [1.0, 0.0]
    assert "Remove the await, or await env.a_evaluate" in caplog.text


def test_answers_that_are_numbers(caplog: pytest.LogCaptureFixture) -> None:
    environment(dataset=[{"question": "1 + 1?", "answer": 2}])
    assert "The answers are numbers (the first is 2)" in caplog.text
    assert "compare with str(answer)" in caplog.text
    caplog.clear()
    environment()
    assert "numbers" not in caplog.text


def test_a_missing_evaluation_set_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    env = environment()
    for _ in range(3):
        results(env)
    assert caplog.text.count("No eval_dataset") == 1
    results(environment())  # another environment, another sentence
    assert caplog.text.count("No eval_dataset") == 2


# Each in a fork that knows another place of the hub, since their imports take longest.
OFFLINE = """
import json, os, socket, sys, time
import verifiers_nb as vf
vf.get_model_and_tokenizer("verifiers_nb/adder-1m")  # imports count for themselves
look_up = socket.getaddrinfo

def told(host, *given, **more):
    if host != "hub.invalid" or port is None:
        return look_up(host, *given, **more)
    return look_up("127.0.0.1", port, *given[1:], **more)

for network, port in json.loads(sys.argv[1]).items():
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    socket.getaddrinfo = told
    for load in (vf.get_model, vf.get_tokenizer):
        start = time.monotonic()
        try:
            load("Qwen/Qwen9-nowhere")
        except FileNotFoundError as error:
            print(f"{network}: {time.monotonic() - start:.1f} s: {error}", flush=True)
    os._exit(0)
"""


def test_a_model_that_is_not_there_while_offline(tmp_path: Path) -> None:
    """It takes less than five seconds to say so."""
    full = socket.socket()  # its queue of connections is full, so that no further one is answered
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    waiting = [socket.socket() for _ in range(4)]
    for each in waiting:
        each.setblocking(False)
        each.connect_ex(full.getsockname())
    hub, lost = "http://hub.invalid", full.getsockname()[1]
    ports = {"no name is known": None, "nobody listens": 9, "packets are lost": lost}
    env = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    env |= {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
    call = [sys.executable, "-c", OFFLINE, json.dumps(ports)]
    done = subprocess.run(call, capture_output=True, text=True, env=env, timeout=200)
    for each in (full, *waiting):
        each.close()
    lines = [line.split(": ", 2) for line in done.stdout.splitlines()]
    assert [network for network, *_ in lines] == [each for each in ports for _ in range(2)], done
    # The client of the Hub tries for minutes.
    assert max(float(seconds.removesuffix(" s")) for _, seconds, _ in lines) < 15, lines
    sentence = f"{hub} can't be reached, and it is not in the local cache"
    assert all(sentence in message for *_, message in lines), lines
