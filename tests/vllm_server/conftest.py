"""One real vLLM server for all tests in this folder, which run one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import preloaded
import pytest

from verifiers_nb.inference import vllm_server as vllm_servers
from verifiers_nb.inference.vllm_options import vllm_missing
from verifiers_nb.inference.vllm_server import VLLMServer, start_vllm
from verifiers_nb.support.processes import start_guarded

HERE = Path(__file__).parent
MISSING = vllm_missing()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip these tests where there is no vLLM."""
    for item in items:
        if MISSING and HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=MISSING))


@pytest.fixture(autouse=True)
def starts() -> Iterator[None]:
    """Begin servers where the imports of vLLM have ended."""
    with preloaded.starts():
        yield


@pytest.fixture
def whole_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin servers of this test as users do."""
    monkeypatch.setattr(vllm_servers, "start_guarded", start_guarded)


@pytest.fixture(scope="session")
def vllm_server() -> Iterator[VLLMServer]:
    """Serve the shipped model in float32, with two slots for adapters of rank 16 and less."""
    settings = dict(kv_cache_gb=0.25, max_lora_rank=16, restarts=5)
    settings["env"] = {"VLLM_SERVER_DEV_MODE": "1"}
    # The model's template knows no tools, but a grammar can hold it to hermes' way of calling them.
    tools = dict(enable_auto_tool_choice=True, tool_call_parser="hermes")
    with preloaded.starts():
        server = start_vllm("verifiers_nb/adder-1m", **settings, **tools)
    with server:
        yield server
