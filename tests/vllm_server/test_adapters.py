"""A policy that changes while vLLM answers: every answer is by the version that it claims, and nothing stays behind."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from policies import (
    NAME,
    TOLERANCE,
    Policy,
    adapters,
    complete,
    folders,
    frozen,
    running,
    settle,
    until,
    until_asked,
    until_running,
    wait_for,
)
from safetensors.torch import load_file, save_file

import verifiers_nb as vf
import verifiers_nb.inference.adapter_versions
from verifiers_nb.inference.adapter_files import PATTERNS_SINCE, release_of
from verifiers_nb.inference.tokens import rollout_turns, turn_from_response
from verifiers_nb.inference.vllm_policy import VLLMClient, call_server, drop_unused, vllm_version
from verifiers_nb.trainer.adapters import save_adapter


@pytest.fixture
def policy() -> Policy:
    return Policy()


@pytest.fixture
def client(vllm_server: Any) -> Iterator[VLLMClient]:
    client = VLLMClient(vllm_server.url, vllm_server.api_key, tolerance=1e-3)
    yield client
    settle()
    client.close()
    assert adapters(client) == []


def test_ten_versions_with_requests_in_flight(client: VLLMClient, policy: Policy) -> None:
    """A dozen requests of all lengths are always in flight while ten versions come and go."""
    answers: list[Any] = []
    pushing = True

    async def keep_asking(worker: int) -> None:
        turn = 0
        while pushing:
            turn += 1
            tokens = 10 + (37 * worker + 91 * turn) % 30
            answers.append(await complete(client, tokens, seed=100 * worker + turn))

    async def ask() -> None:
        await asyncio.gather(*map(keep_asking, range(12)))

    def half_of_them() -> bool:
        return client.versions.current.in_flight >= 6

    asking = threading.Thread(target=asyncio.run, args=(ask(),))
    asking.start()
    try:
        for number in range(1, 11):
            wait_for(half_of_them)
            assert client.push(policy.train(number)) == policy.keep(number)
            assert len(folders(client)) <= client.max_loras + 1
        wait_for(half_of_them)
    finally:
        pushing = False
        asking.join()
    settle()
    by_version = {n: [a for a in answers if a.choices[0].policy_version == n] for n in range(1, 11)}
    assert all(by_version.values()), {n: len(each) for n, each in by_version.items()}
    assert max(policy.gap(answer) for answer in answers) < TOLERANCE
    for number, (answer, *_) in by_version.items():
        others = [n for n in by_version if n != number]
        assert min(policy.gap(answer, other) for other in others) > 100 * TOLERANCE
    assert adapters(client) == folders(client) == ["policy-v10"]


def test_no_version_meets_the_cache_of_another(client: VLLMClient, policy: Policy) -> None:
    """A prompt of 600 tokens, the same for all: most of it comes from the prefix cache."""
    prompt = "What is 12 + 30? " * 55

    async def ask_twice() -> list[Any]:
        return [await complete(client, 16, prompt=prompt) for _ in range(2)]

    hits = cache_hits(client)
    for number in range(1, 5):
        client.push(policy.train(number))
        policy.keep(number)
        for answer in asyncio.run(ask_twice()):
            assert len(turn_from_response(answer).prompt_ids) >= 600
            assert answer.choices[0].policy_version == number
            assert policy.gap(answer) < TOLERANCE
    assert cache_hits(client) - hits >= 4 * 500  # each second time
    client.push(None)
    for answer in asyncio.run(ask_twice()):
        assert answer.choices[0].policy_version == 5
        assert policy.gap(answer, version=0) < TOLERANCE


def test_the_base_model_among_adapters(client: VLLMClient, policy: Policy) -> None:
    """vLLM's CPU kernels give a row without an adapter somebody else's; no answer of ours shows it."""
    client.proved = True  # the comparison can't be made of a frozen server

    async def run() -> list[Any]:
        with frozen(client):
            first = asyncio.ensure_future(complete(client, 60, n=8))
            await until_asked(client, 1)
            await asyncio.to_thread(client.push, policy.train(1))
            policy.keep(1)
            second = [asyncio.ensure_future(complete(client, 60, seed)) for seed in range(4)]
            await until_asked(client, 5)
            await asyncio.to_thread(client.push, None)
            third = [asyncio.ensure_future(complete(client, 30, seed)) for seed in range(4)]
            await until_asked(client, 9)
        return await asyncio.gather(first, *second, *third)

    answers = asyncio.run(run())
    versions = [answer.choices[0].policy_version for answer in answers]
    assert versions == [2] + [1] * 4 + [2] * 4  # the first is asked again
    for answer, version in zip(answers, versions, strict=True):
        assert policy.gap(answer, version=0 if version == 2 else version) < TOLERANCE


def cache_hits(client: VLLMClient) -> float:
    """Return how many tokens the server has taken from its prefix cache."""
    metrics = call_server(client, "/metrics")
    return sum(
        float(value)
        for value in re.findall(r"^vllm:prefix_cache_hits_total\{.*\} (\S+)$", metrics, re.M)
    )


def test_a_version_goes_when_its_last_request_is_answered(
    client: VLLMClient, policy: Policy
) -> None:
    client.push(policy.train(1))
    policy.keep(1)

    async def run() -> list[Any]:
        with frozen(client):
            slow = asyncio.ensure_future(complete(client, 60, n=2))
            await until_asked(client, 1)
            await asyncio.to_thread(client.push, policy.train(2))
            policy.keep(2)
            quick = asyncio.ensure_future(complete(client, 10))
            await until_asked(client, 2)
            drop_unused(client, client.versions)  # as the end of any request does
            settle()
            assert sorted(adapters(client)) == folders(client) == ["policy-v1", "policy-v2"]
        return await asyncio.gather(slow, quick)

    answers = asyncio.run(run())
    settle()
    assert [answer.choices[0].policy_version for answer in answers] == [1, 2]
    assert max(policy.gap(answer) for answer in answers) < TOLERANCE
    assert adapters(client) == folders(client) == ["policy-v2"]


def test_a_push_waits_for_a_free_slot(client: VLLMClient, policy: Policy) -> None:
    """Two slots, two versions in flight: the third comes when the first has ended, and all are exact."""
    ended: list[str] = []
    client.push(policy.train(1))
    policy.keep(1)

    async def run() -> list[Any]:
        with frozen(client):
            first = asyncio.ensure_future(complete(client, 60, n=2))
            await until_asked(client, 1)
            await asyncio.to_thread(client.push, policy.train(2))
            policy.keep(2)
            second = asyncio.ensure_future(complete(client, 500, n=2))
            await until_asked(client, 2)
        third = asyncio.ensure_future(asyncio.to_thread(client.push, policy.train(3)))
        for name, each in {"request 1": first, "push 3": third, "request 2": second}.items():
            each.add_done_callback(lambda _, name=name: ended.append(name))
        await first
        with frozen(client):
            await third
        policy.keep(3)
        return [await first, await second, await complete(client, 10)]

    answers = asyncio.run(run())
    assert ended == ["request 1", "push 3", "request 2"]
    assert [answer.choices[0].policy_version for answer in answers] == [1, 2, 3]
    assert max(policy.gap(answer) for answer in answers) < TOLERANCE


def test_more_versions_than_slots(client: VLLMClient, policy: Policy, vllm_server: Any) -> None:
    """A push inside a coroutine can't wait; then the server does, and still every answer is exact."""

    async def run() -> list[Any]:
        asked = []
        for number in range(1, 5):
            client.push(policy.train(number))
            policy.keep(number)
            asked.append(asyncio.ensure_future(complete(client, 150)))
            await until(lambda: running(vllm_server) or asked[-1].done())
        return await asyncio.gather(*asked)

    answers = asyncio.run(run())
    settle()
    assert [answer.choices[0].policy_version for answer in answers] == [1, 2, 3, 4]
    assert max(policy.gap(answer) for answer in answers) < TOLERANCE
    assert adapters(client) == folders(client) == ["policy-v4"]


def test_requests_that_are_broken_off(
    client: VLLMClient, policy: Policy, vllm_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may go back to the files of a request that nobody waits for any more: they stay a while."""
    monkeypatch.setattr(verifiers_nb.inference.adapter_versions, "KEEP_SECONDS", 3600)

    async def run() -> Any:
        for number in range(1, 6):
            await asyncio.to_thread(client.push, policy.train(number))
            policy.keep(number)
            asked = [asyncio.ensure_future(complete(client, 1900, seed)) for seed in range(4)]
            await until_running(vllm_server, 4, asked)
            for each in asked:
                each.cancel()
            ended = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(each) for each in ended] == [asyncio.CancelledError] * 4
        return await complete(client, 10)

    answer = asyncio.run(run())
    assert answer.choices[0].policy_version == 5 and policy.gap(answer) < TOLERANCE
    assert folders(client) == [f"policy-v{number}" for number in range(1, 6)]
    for version in client.versions.loaded:
        version.keep_until = 0.0
    asyncio.run(complete(client, 1))
    settle()
    assert adapters(client) == folders(client) == ["policy-v5"]


@pytest.mark.parametrize("wrong", ["no such file", "cut off", "rank", "modules"])
def test_a_push_that_fails_leaves_the_old_version(
    client: VLLMClient, policy: Policy, tmp_path: Path, wrong: str
) -> None:
    client.push(policy.train(1))
    policy.keep(1)
    policy.model.save_pretrained(str(tmp_path))
    weights = tmp_path / "adapter_model.safetensors"
    expected: tuple[type[Exception], str] = (RuntimeError, "did not load the adapter")
    if wrong == "no such file":
        weights.unlink()
        expected = (FileNotFoundError, "adapter_model.safetensors")
    elif wrong == "cut off":
        weights.write_bytes(weights.read_bytes()[:1000])
    elif wrong == "rank":
        Policy(r=256).model.save_pretrained(str(tmp_path))
        expected = (RuntimeError, "a --max-lora-rank of at least")
    else:
        renamed = {k.replace("q_proj", "w_proj"): v for k, v in load_file(weights).items()}
        save_file(renamed, weights)
        expected = (RuntimeError, "expected target modules")
    with pytest.raises(expected[0], match=expected[1]):
        client.push(tmp_path)
    answer = asyncio.run(complete(client, 10))
    assert answer.choices[0].policy_version == client.version == 1
    assert policy.gap(answer) < TOLERANCE
    assert adapters(client) == folders(client) == ["policy-v1"]


@pytest.mark.parametrize(
    "settings",
    [
        {"use_dora": True},
        {"bias": "lora_only"},
        {"modules_to_save": ["lm_head"]},
        {"r": 12},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_that_vllm_gets_wrong_never_reach_it(
    client: VLLMClient, settings: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=next(iter(settings)).replace("r", "r(ank)?", 1)):
        client.push(Policy(**settings).model)
    assert (client.version, adapters(client), folders(client)) == (0, [], [])


def test_ranks_and_alphas_of_single_modules_are_served_or_refused(client: VLLMClient) -> None:
    """The server's version decides which."""
    patterns: dict[str, Any] = dict(rank_pattern={"q_proj": 12}, alpha_pattern={"down_proj": 64})
    policy, version = Policy(**patterns), vllm_version(client)
    assert release_of(version), "a real server tells its version"
    if release_of(version) < PATTERNS_SINCE:
        with pytest.raises(ValueError, match=f"rank_pattern.*alpha_pattern.*{version}"):
            client.push(policy.model)
        assert (client.version, adapters(client), folders(client)) == (0, [], [])
    else:
        client.push(policy.train(1))
        policy.keep(1)
        assert client.proved
        assert policy.gap(asyncio.run(complete(client, 32))) < TOLERANCE


@pytest.mark.parametrize("settings", [{"use_rslora": True}, {"r": 16, "lora_alpha": 7}])
def test_settings_that_vllm_gets_right(client: VLLMClient, settings: dict[str, Any]) -> None:
    policy = Policy(**settings)
    client.push(policy.train(1))
    policy.keep(1)
    assert client.proved
    assert policy.gap(asyncio.run(complete(client, 32))) < TOLERANCE


def test_the_first_push_is_compared_with_peft(client: VLLMClient, policy: Policy) -> None:
    """An adapter that changes nothing proves nothing; another base model shows."""
    client.push(policy.model)  # B is zero
    assert not client.proved
    with torch.no_grad():
        policy.model.get_base_model().model.layers[0].mlp.up_proj.base_layer.weight.mul_(1.1)
    with pytest.raises(RuntimeError, match="same base model"):
        client.push(policy.train(1))
    assert (client.version, client.proved, adapters(client)) == (1, False, ["policy-v1"])
    client.push(Policy().train(1))
    assert (client.version, client.proved) == (2, True)


def test_a_second_client_of_the_same_server(
    client: VLLMClient, policy: Policy, vllm_server: Any
) -> None:
    """Two notebooks on one server don't take each other's names."""
    other = VLLMClient(vllm_server.url, vllm_server.api_key)
    client.push(policy.train(1))
    policy.keep(1)
    assert other.push(policy.train(2)) == 1
    mine, theirs = (asyncio.run(complete(each, 16)) for each in (client, other))
    assert policy.gap(mine) < TOLERANCE
    policy.train(2)
    policy.keep(1)
    assert policy.gap(theirs) < TOLERANCE
    other.close()
    assert adapters(client) == ["policy-v1"]


def test_an_adapter_that_the_server_lost_comes_back(client: VLLMClient, policy: Policy) -> None:
    client.push(policy.train(1))
    policy.keep(1)
    call_server(client, "unload_lora_adapter", {"lora_name": "policy-v1"})

    async def run() -> list[Any]:
        return await asyncio.gather(*(complete(client, 8, seed) for seed in range(32)))

    answers = asyncio.run(run())
    assert {answer.choices[0].policy_version for answer in answers} == {1}
    assert max(policy.gap(answer) for answer in answers) < TOLERANCE


def test_sleep_and_wake(client: VLLMClient, policy: Policy, vllm_server: Any) -> None:
    """On a CPU vLLM frees no memory when it sleeps; that requests wait, and what they get, is real."""
    client.push(policy.train(1))
    policy.keep(1)
    prompt = "What is 12 + 30? " * 55
    asyncio.run(complete(client, 8, prompt=prompt))

    async def run() -> Any:
        asked = asyncio.ensure_future(complete(client, 400))
        await until(lambda: running(vllm_server) or asked.done())
        await asyncio.to_thread(client.sleep)
        slow = await asked  # it is let finish
        waiting = asyncio.ensure_future(complete(client, 8, prompt=prompt))
        await asyncio.wait([waiting], timeout=2)
        assert not waiting.done()
        await asyncio.to_thread(client.wake)
        return [slow, await waiting, await complete(client, 8, prompt=prompt)]

    answers = asyncio.run(run())
    assert max(policy.gap(answer) for answer in answers) < TOLERANCE
    assert [answer.choices[0].policy_version for answer in answers] == [1, 1, 1]
    assert len(adapters(client)) == len(folders(client)) == 1


def test_a_run_wakes_a_server_that_another_left_asleep(client: VLLMClient) -> None:
    """A run that was killed can't wake its server, and requests to one that sleeps wait for ever."""
    client.sleep(weights=True)
    assert call_server(client, "/is_sleeping") == {"is_sleeping": True}
    client.claim()
    try:
        assert call_server(client, "/is_sleeping") == {"is_sleeping": False}
        assert asyncio.run(complete(client, 8)).choices[0].token_ids
    finally:
        client.release()


def test_training_through_vllm(client: VLLMClient, tmp_path: Path) -> None:
    """A few steps on the shipped model: every rollout by a version as new as was asked for, and exact."""
    args = vf.grpo_defaults("vllm")
    args.output_dir, args.max_steps, args.learning_rate = str(tmp_path), 4, 1e-3
    trainer = vf.GRPOTrainer(
        NAME, vf.load_environment("addition"), args, peft_config=vf.lora_defaults(), client=client
    )
    trainer.train()
    gaps = [row["gap"] for row in trainer.state.log_history if "gap" in row]
    assert len(gaps) == 4 and max(gaps) < TOLERANCE
    for step in range(1, 5):  # the first version is the adapter before the first step
        rollouts = vf.read_rollouts(tmp_path / "rollouts" / f"step-{step:05d}.jsonl")
        versions = {turn.policy_version for each in rollouts for turn in rollout_turns(each)}
        assert versions <= {step, max(1, step - args.num_batches_ahead)}, (step, versions)
    settle()
    assert len(adapters(client)) == 1


def test_a_saved_adapter_is_served(client: VLLMClient, policy: Policy, tmp_path: Path) -> None:
    """By its folder; merged into the model it is served in test_generation_config.py."""
    policy.train(1)
    policy.keep(1)
    client.push(save_adapter(policy.model, tmp_path / "adapter"))
    answer = asyncio.run(complete(client, 16))
    assert answer.choices[0].policy_version == 1 and policy.gap(answer) < TOLERANCE
