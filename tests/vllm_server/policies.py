"""A policy that changes, and the questions that tests ask about a server and what it has of it."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from peft import LoraConfig, get_peft_model

import verifiers_nb as vf
from verifiers_nb.inference.tokens import turn_from_response
from verifiers_nb.inference.vllm_policy import VLLMClient, call_server
from verifiers_nb.inference.vllm_server import VLLMServer, get

NAME = "verifiers_nb/adder-1m"
TOLERANCE = 1e-3
LORA: dict[str, Any] = dict(
    r=8,
    lora_alpha=16,
    target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    task_type="CAUSAL_LM",
)


class Policy:
    """A model whose adapter changes by chance, and that remembers each version."""

    def __init__(self, **settings: Any) -> None:
        torch.manual_seed(3)  # the adapter's first matrices change much
        self.model = get_peft_model(
            vf.get_model(NAME, dtype=torch.float32), LoraConfig(**{**LORA, **settings})
        ).eval()
        self.kept: dict[int, dict[str, torch.Tensor]] = {}

    def train(self, seed: int) -> Any:
        """Change the adapter so much that no two versions can be taken for each other."""
        torch.manual_seed(seed)
        for name, weight in self.model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.1)
        return self.model

    def keep(self, version: int) -> int:
        """Remember the adapter as it is now."""
        state = self.model.state_dict()
        self.kept[version] = {n: weight.clone() for n, weight in state.items() if "lora_" in n}
        return version

    @torch.inference_mode()
    def gap(self, response: Any, version: int | None = None) -> float:
        """Compare a response's log-probabilities with those of the version that it claims, or of another."""
        turn = turn_from_response(response)
        if version is None:
            version = turn.policy_version
        ids = torch.tensor([turn.prompt_ids + turn.completion_ids])
        if version == 0:
            with self.model.disable_adapter():
                logits = self.model(ids).logits
        else:
            self.model.load_state_dict(self.kept[version], strict=False)
            logits = self.model(ids).logits
        logprobs = logits[0, len(turn.prompt_ids) - 1 : -1].log_softmax(-1)
        mine = logprobs[range(len(turn.completion_ids)), turn.completion_ids]
        return float((mine - torch.tensor(turn.logprobs)).abs().max())


def wait_for(condition: Callable[[], Any], seconds: float = 300) -> Any:
    """Wait until a condition holds and return it."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)
    return value


async def until(condition: Callable[[], Any], asked: Sequence[asyncio.Future[Any]] = ()) -> None:
    """Wait in a coroutine until a condition holds; none of these requests may be over by then."""

    def holds() -> Any:
        over = [request for request in asked if request.done()]
        assert not over, f"over too early: {over}"
        return condition()

    await asyncio.to_thread(wait_for, holds)


def running(server: VLLMServer) -> int:
    """Return how many sequences a server's engine is computing."""
    _, metrics = get(server.port, "/metrics", server.api_key)
    counts = re.findall(rb"^vllm:num_requests_running\{.*\} (\S+)$", metrics, re.M)
    return int(sum(map(float, counts)))


async def until_running(
    server: VLLMServer, count: int, asked: Sequence[asyncio.Future[Any]]
) -> None:
    """Wait until an engine computes so many sequences; none of these requests may be over by then."""
    await until(lambda: running(server) >= count, asked)


async def until_asked(client: VLLMClient, count: int) -> None:
    """Wait until a client has so many requests in flight: where the server is frozen they stay."""
    await until(lambda: client.versions.in_flight == count)


@contextmanager
def frozen(client: VLLMClient) -> Iterator[None]:
    """Hold back what the server computes: no request in flight ends before what is done meanwhile.

    Else each would have to be so long that it outlasts a push on the busiest machine. An adapter is loaded meanwhile,
    but the first one's comparison with PEFT would wait for ever.
    """
    call_server(client, "/sleep?level=0&mode=keep", {})
    try:
        yield
    finally:
        call_server(client, "/wake_up?tags=scheduling", {})


def settle() -> None:
    """Wait until unused versions are unloaded and deleted."""
    for thread in threading.enumerate():
        if thread.name.endswith("(retire)"):
            thread.join()


def adapters(client: VLLMClient) -> list[str]:
    """List the adapters that the server has."""
    return [card["id"] for card in call_server(client, "models")["data"] if card["parent"]]


def folders(client: VLLMClient) -> list[str]:
    """List the versions whose files are there."""
    roots = client.folders.roots.values()
    return sorted(path.name[:-9] for root in roots for path in root.glob("policy-v*"))


def complete(
    client: VLLMClient, tokens: int, seed: int = 0, prompt: str = "What is 12 + 30?", n: int = 1
) -> Any:
    """Ask for exactly so many tokens, `n` times in one request: many keep the server busy for long."""
    return client.completions.create(
        prompt=prompt, max_tokens=tokens, seed=seed, n=n, extra_body={"ignore_eos": True}
    )
