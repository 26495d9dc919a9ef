"""SmolLM2-135M-Instruct on a real vLLM: two steps of training, and a format."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import preloaded
import pytest
import real_model

from verifiers_nb.inference.vllm_policy import VLLMClient
from verifiers_nb.inference.vllm_server import VLLMServer, start_vllm
from verifiers_nb.parsers.structural_tags import json_tag

pytestmark = real_model.MISSING
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server() -> Iterator[VLLMServer]:
    with preloaded.starts():
        server = start_vllm(real_model.NAME, kv_cache_gb=0.5, max_lora_rank=16, max_model_len=512)
    with server:
        yield server


def test_two_steps_with_exact_tokens(server: VLLMServer, tmp_path: Path) -> None:
    """The second is of the adapter that the first has taught."""
    client = VLLMClient(server.url, server.api_key, tolerance=1e-3)
    trainer = real_model.make_trainer(tmp_path, client=client, max_steps=2)
    trainer.train()
    gaps = [entry["gap"] for entry in trainer.state.log_history if "gap" in entry]
    assert len(gaps) == 2 and max(gaps) < 1e-3
    trainer.close()


def test_a_structural_tag_holds_over_its_whole_vocabulary(server: VLLMServer) -> None:
    client = VLLMClient(server.url, server.api_key)
    asked = client.chat.completions.create(
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        response_format=json_tag(SCHEMA).to_response_format(),
        max_tokens=40,
        temperature=1.0,
        seed=0,
    )
    reply = asyncio.run(asked)
    assert {*json.loads(reply.choices[0].message.content)} == {"city"}
    client.close()
