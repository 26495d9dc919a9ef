"""A real vLLM with two replicas of its model, which counts nothing that its metrics could show."""

from __future__ import annotations

import json
import urllib.request

import pytest
from policies import NAME, TOLERANCE, Policy

from verifiers_nb.inference.vllm_policy import REPLICA, VLLMClient, count_replicas
from verifiers_nb.inference.vllm_server import VLLMServer, get, start_vllm


def logprobs(server: VLLMServer, model: str, replica: int) -> list[float]:
    """Return the log-probabilities of a replica's greedy answer."""
    body = dict(model=model, prompt="What is 12 + 30?", max_tokens=6, temperature=0, logprobs=0)
    headers = {"Authorization": f"Bearer {server.api_key}", "Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{server.url}/completions",
        json.dumps(body).encode(),
        headers | {REPLICA: str(replica)},
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["logprobs"]["token_logprobs"]


@pytest.mark.usefixtures("whole_starts")
def test_each_replica_serves_the_policy() -> None:
    """The server says how many it has, the first push proves each, and later ones are in each."""
    options = dict(kv_cache_gb=0.25, max_lora_rank=16)
    replicas = dict(data_parallel_size=2, disable_log_stats=True)
    policy = Policy()
    with start_vllm(NAME, **options, **replicas) as server:
        client = VLLMClient(server.url, server.api_key, tolerance=TOLERANCE, server=server)
        assert b'engine="1"' not in get(server.port, "/metrics", server.api_key)[1]
        assert count_replicas(client, NAME) == 2
        base = logprobs(server, NAME, 1)
        answers = []
        for seed in (1, 2):
            client.push(policy.train(seed))
            name = client.versions.current.name
            first, second = (logprobs(server, name, replica) for replica in (0, 1))
            assert first == pytest.approx(second, abs=TOLERANCE)
            answers.append(second)
        assert client.proved
        assert base != pytest.approx(answers[0], abs=0.1)
        assert answers[0] != pytest.approx(answers[1], abs=0.1)
        client.close()
