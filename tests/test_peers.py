"""The same environments and texts here and in the real `verifiers`, early and late: every reward and message is the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from wheels import ROOT, EmptyEnvironment, run, uv

from verifiers_nb.bridges.ship import completion_of, serve_json

HERE = Path(__file__).parent / "peers"
VERSIONS = {"0.1.3.post0": "written_for_0_1_3", "0.1.11": "written_for_0_1_11"}


def answer_of(request: dict[str, Any]) -> dict[str, Any]:
    """Return a model's message: calls of the tools that it has, then tags, then an answer; nothing if asked for that."""
    if request["messages"][-1]["content"] == "Say nothing.":
        return {"role": "assistant", "content": ""}
    turn = sum(message["role"] == "assistant" for message in request["messages"])
    names = [tool["function"]["name"] for tool in request.get("tools") or ()]
    given = {"add": {"a": 13 if turn else 1}, "shout": {"text": "hey"}}
    if names and turn < 2:
        calls = [
            {
                "id": f"{name}-{turn}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(given[name])},
            }
            for name in names
        ]
        return {"role": "assistant", "content": None, "tool_calls": calls}
    tags = (
        "<think>Put it into <answer> tags.</think><tool>look</tool>",
        "<think>So</think><answer>1</answer>",
    )
    return {"role": "assistant", "content": tags[min(turn, 1)]}


def played(python: Path | str, module: str, *given: str) -> tuple[dict[str, Any], list[Any]]:
    """Return what a Python prints of a module's environments, and the requests that it sent."""
    asked: list[Any] = []

    def answer(request: Any) -> tuple[int, Any]:
        kept = ("temperature", "max_tokens", "max_completion_tokens")
        words = [[m["role"], m.get("content") or ""] for m in request["messages"]]
        asked.append([words, {name: request[name] for name in kept if name in request}])
        return 200, completion_of(answer_of(request), "any")

    with serve_json(answer) as address:
        done = run(
            python,
            HERE / "play.py",
            module,
            address,
            *given,
            cwd=HERE,
            env={"PYTHONPATH": str(ROOT) if given else ""},
        )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout), sorted(asked, key=json.dumps)


@pytest.mark.parametrize("version", VERSIONS)
def test_rewards_and_messages_are_those_of_verifiers(version: str, tmp_path: Path) -> None:
    peer = EmptyEnvironment(tmp_path / "peer")
    packages = (f"verifiers=={version}", "math-verify")
    if uv("--python", peer.python, *packages, tested=False).returncode:
        pytest.skip(f"verifiers {version} cannot be installed here: it needs a package registry")
    theirs, asked_by_them = played(peer.python, VERSIONS[version])
    ours, asked_by_us = played(sys.executable, VERSIONS[version], "--ours", version)
    assert ours["rollouts"] == theirs["rollouts"]
    assert asked_by_us == asked_by_them
    differ = [(a, b) for a, b in zip(ours["parsers"], theirs["parsers"], strict=True) if a != b]
    assert not differ, differ[:5]
