"""SmolLM2-135M-Instruct on a real vLLM: three steps of training, an idle server beside it, and a format."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import preloaded
import psutil
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


def processor_seconds(pid: int) -> float:
    """Return what a process and its descendants have used of the processor."""
    parent = psutil.Process(pid)
    each = [process.cpu_times() for process in (parent, *parent.children(recursive=True))]
    return sum(times.user + times.system for times in each)


def test_three_steps_with_exact_tokens(server: VLLMServer, tmp_path: Path) -> None:
    client = VLLMClient(server.url, server.api_key, tolerance=1e-3)
    trainer = real_model.make_trainer(tmp_path, client=client)
    trainer.train()
    gaps = [entry["gap"] for entry in trainer.state.log_history if "gap" in entry]
    assert len(gaps) == 3 and max(gaps) < 1e-3
    trainer.close()


def test_an_idle_server_leaves_the_processor_to_the_trainer(server: VLLMServer) -> None:
    before = processor_seconds(server.process.pid)
    time.sleep(3)
    assert processor_seconds(server.process.pid) - before < 0.6


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
