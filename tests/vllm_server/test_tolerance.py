"""A server in half precision beside a trainer in float32, as on a T4: noise passes, another adapter does not."""

from __future__ import annotations

import asyncio

import pytest
import torch
from policies import NAME, Policy

import verifiers_nb as vf
from verifiers_nb.inference.peft_comparison import check_comparison, usual_tolerance
from verifiers_nb.inference.vllm_policy import PROBE, VLLMClient, compare_with_peft
from verifiers_nb.inference.vllm_server import VLLMServer


@pytest.mark.parametrize("dtype", ["half", "bfloat16"])
def test_the_less_precise_side_decides(dtype: str) -> None:
    settings = dict(kv_cache_gb=0.25, progress=False, dtype=dtype)
    with vf.serve(NAME, engine="vllm", **settings) as served:
        client, policy = served.client, Policy()
        assert isinstance(client, VLLMClient)
        assert served.push(policy.train(1)) == 1 and client.proved
        policy.keep(1)
        ask = client.completions.create
        answer = asyncio.run(ask(prompt=PROBE, max_tokens=50, extra_body={"ignore_eos": True}))
        assert policy.gap(answer) > 1e-3  # of one token, more than float32 would allow
        name, tolerance = client.versions.current.name, usual_tolerance(policy.model, client.server)
        gap, base_gap, effect = compare_with_peft(client, name, policy.model)
        print(f"{dtype}: gap {gap:.4f} of {tolerance}, effect {effect:.2f}")
        assert gap < tolerance < base_gap
        other = policy.train(2)  # it serves the first
        gap, base_gap, effect = compare_with_peft(client, name, other)
        with pytest.raises(RuntimeError, match="differ from PEFT's"):
            check_comparison(gap, base_gap, effect, tolerance)
        if dtype == "bfloat16":
            check_argument(served.server)


def check_argument(server: VLLMServer) -> None:
    """A tolerance that is given takes the place of the usual one; a policy in half precision has one of its own."""
    client = VLLMClient(server.url, server.api_key, tolerance=1e-4, server=server)
    with pytest.raises(RuntimeError, match="where 0.0001 is allowed"):
        client.push(Policy().train(1))
    assert client.version == 0
    client.tolerance = 0.2
    assert client.push(Policy().train(1)) == 1
    policy = Policy()
    policy.model.to(torch.bfloat16)
    assert client.push(policy.train(2)) == 2
    client.close()
