"""Two real servers that act as one: an evaluation that outlives the loss of one, and what any endpoint can give."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import preloaded
import pytest
from policies import NAME, TOLERANCE, Policy, complete, settle, wait_for

import verifiers_nb as vf
from verifiers_nb.inference import vllm_server as vllm_servers
from verifiers_nb.inference.endpoints import Endpoints, connect
from verifiers_nb.inference.http import HTTPClient
from verifiers_nb.inference.tokens import rollout_turns, turn_from_response
from verifiers_nb.inference.vllm_log import ServerError
from verifiers_nb.inference.vllm_policy import VLLMClient
from verifiers_nb.inference.vllm_server import VLLMServer, start_vllm
from verifiers_nb.support.processes import descendants


@pytest.fixture(scope="module")
def second_server(vllm_server: Any) -> Iterator[VLLMServer]:
    """A server that starts again when it is killed, with the first one's key."""
    env = {"VLLM_API_KEY": vllm_server.api_key}
    with preloaded.starts():
        server = start_vllm(NAME, kv_cache_gb=0.25, max_lora_rank=16, restarts=5, env=env)
    with server:
        yield server


@pytest.fixture
def both(vllm_server: Any, second_server: VLLMServer) -> Iterator[Endpoints]:
    both = connect([vllm_server.url, second_server.url], vllm_server.api_key)
    assert isinstance(both, Endpoints)
    yield both
    settle()
    both.close()


def kill(server: VLLMServer) -> None:
    """End all of a server's processes at once, as running out of memory does."""
    for pid in descendants(server.pid):
        os.kill(pid, signal.SIGKILL)


def test_an_evaluation_outlives_the_loss_of_a_server(
    both: Endpoints, second_server: VLLMServer
) -> None:
    policy, env = Policy(), vf.load_environment("addition")
    both.push(policy.train(1))
    policy.keep(1)
    first, second = both.endpoints
    outputs: list[vf.GenerateOutputs] = []

    def evaluate() -> None:
        rows = env.get_eval_dataset()
        rows = rows.select([i % len(rows) for i in range(160)])
        arguments = {"max_tokens": 60, "seed": 0, "extra_body": {"ignore_eos": True}}
        outputs.append(env.generate(rows, both, both.model, arguments, max_concurrent=48))

    evaluation = threading.Thread(target=evaluate)
    evaluation.start()
    wait_for(lambda: (second.requests > 30 and second.busy) or not evaluation.is_alive())
    assert evaluation.is_alive()
    starts = second_server.starts
    kill(second_server)
    wait_for(lambda: second.out)
    both.push(policy.train(2))  # a version that the lost server has to be given later
    policy.keep(2)
    evaluation.join()

    [output] = outputs
    assert len(output.state) == 160
    assert not [state["error"] for state in output.state if state.get("error")]
    turns = [turn for state in output.state for turn in rollout_turns(state)]
    assert len(turns) == 160 and {turn.policy_version for turn in turns} == {1, 2}
    assert max(gap(policy, state) for state in output.state) < TOLERANCE

    wait_for(lambda: second.out is None)
    assert second_server.starts == starts + 1
    before = first.requests, second.requests
    answers = asyncio.run(ask(both, 8))
    assert (first.requests - before[0], second.requests - before[1]) == (4, 4)
    assert {answer.choices[0].policy_version for answer in answers} == {2}
    assert max(policy.gap(answer) for answer in answers) < TOLERANCE


def gap(policy: Policy, state: vf.State) -> float:
    return policy.gap(state["responses"][0])


async def ask(client: Any, count: int, tokens: int = 16) -> list[Any]:
    return await asyncio.gather(*(complete(client, tokens, seed) for seed in range(count)))


def test_versions_on_two_servers(both: Endpoints) -> None:
    """Both get each version, from one thread while requests of another run, and numbers agree."""
    policy = Policy()
    for number in range(1, 4):
        answering = threading.Thread(target=lambda: asyncio.run(ask(both, 8, 100)))
        answering.start()
        assert both.push(policy.train(number)) == policy.keep(number)
        answers = asyncio.run(ask(both, 8))
        answering.join()
        assert {answer.choices[0].policy_version for answer in answers} == {number}
        assert max(policy.gap(answer) for answer in answers) < TOLERANCE
    assert both.push(None) == 4
    assert max(policy.gap(a, version=0) for a in asyncio.run(ask(both, 4))) < TOLERANCE


def test_a_refused_push_leaves_both_as_they_were(both: Endpoints) -> None:
    policy = Policy()
    both.push(policy.train(1))
    policy.keep(1)
    with pytest.raises(ValueError, match="r(ank)?=?.*12"):
        both.push(Policy(r=12).model)
    with pytest.raises(RuntimeError, match="max-lora-rank"):
        both.push(Policy(r=32).model)
    answers = asyncio.run(ask(both, 4))
    assert {answer.choices[0].policy_version for answer in answers} == {1}
    assert max(policy.gap(answer) for answer in answers) < TOLERANCE


def test_any_endpoint_evaluates_but_only_exact_tokens_train(vllm_server: Any) -> None:
    """A server of OpenAI's protocol and no more: evaluation works, training says what is missing."""
    plain = HTTPClient(vllm_server.url, vllm_server.api_key, model=NAME)
    env = vf.load_environment("addition")
    results = env.evaluate(plain, NAME, {"temperature": 0.0}, num_examples=8, progress=False)
    assert not any(state.get("error") for state in results.state) and max(results.reward) > 0
    with pytest.raises(ValueError, match="has no token ids"):
        turn_from_response(results.state[0]["responses"][0])


def test_a_server_is_known_by_its_address(vllm_server: Any) -> None:
    root = vllm_server.url.removesuffix("/v1")
    client = connect(root, vllm_server.api_key)
    assert type(client) is VLLMClient and client.model == NAME
    assert asyncio.run(complete(client, 4)).choices[0].policy_version == 0
    client.close()
    with pytest.raises(Exception, match="401"):
        connect(root, "another key")


def test_a_server_that_is_lost_for_good(
    second_server: VLLMServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rollouts fail with its own error, and don't wait for it; it comes last, since it ends the server."""
    monkeypatch.setattr(vllm_servers, "RECOVERED_SECONDS", float("inf"))
    second_server.restarts_left = 0
    client = VLLMClient(second_server.url, second_server.api_key, server=second_server)
    client.retries = 1
    env = vf.load_environment("addition")
    wait_for(lambda: second_server.logged[0] == second_server.log.stat().st_size)
    kill(second_server)
    output = env.generate(env.get_eval_dataset().select(range(4)), client, NAME)
    said = {state["error"].partition(":")[0] for state in output.state}
    assert (said, type(second_server.error)) == ({"ServerError"}, ServerError)
    assert "LoRA" not in str(second_server.error)  # a push that it refused long ago
    client.close()
