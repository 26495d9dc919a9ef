"""Play environments with whatever `import verifiers` is, and read texts with its parsers; print all of it as JSON.

Run as `python play.py MODULE ADDRESS`, by a Python of the peer, or with `--ours VERSION` by ours.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import sys
from typing import Any

if "--ours" in sys.argv:
    import verifiers_nb

    verifiers_nb.as_verifiers(sys.argv[-1])

import verifiers as vf

PIECES = [
    f"<{slash}{name}>" for name in ("think", "answer", "tool", "reasoning") for slash in ("", "/")
]
PIECES += [" ", "\n", "x", "42", "\\boxed{4}", "\\boxed{", "{", "}", "####", "<answer/>"]
SAMPLING = {"temperature": 1.0, "max_tokens": 50}


def plain(message: Any) -> list[Any]:
    """Return role and text of a message; the peer's results have the text of a content's parts alone."""
    content = message["content"] or ""
    text = content if isinstance(content, str) else "".join(part["text"] for part in content)
    return [message["role"], text]


def play(env: Any, address: str) -> list[Any]:
    """Return reward, completion and, from environments of 0.1.3, metrics and columns of four rollouts."""
    more: list[Any] = []
    sizes = dict(num_examples=2, rollouts_per_example=2, max_concurrent=1)
    if hasattr(vf, "ClientConfig") and hasattr(env, "evaluate_sync"):  # the peer, from 0.1.10 on
        kind = dict(client_type="openai_chat_completions", api_key_var="PEER_KEY")
        client = vf.ClientConfig(**kind, api_base_url=address)
        outputs = env.evaluate_sync(client, model="any", sampling_args=SAMPLING, **sizes)["outputs"]
        found = [(each["reward"], each["completion"]) for each in outputs]
    else:
        from openai import AsyncOpenAI

        client = AsyncOpenAI(api_key="any", base_url=address)
        results = env.evaluate(client, "any", SAMPLING, **sizes)
        found = list(zip(results.reward, results.completion, strict=True))
        if vf.__version__.startswith("0.1.3"):
            more = [results.metrics, sorted(env.make_dataset(results).column_names)]
    played = sorted([round(reward, 6), list(map(plain, said))] for reward, said in found)
    return [played, *more]


def read() -> list[Any]:
    """Return what parsers make of texts that are put together at random."""
    fields: list[Any] = [["think", "answer"], ["reasoning", ("tool", "answer")]]
    parsers = [vf.XMLParser(each) for each in fields]
    thinking = vf.ThinkParser(vf.extract_boxed_answer)
    chance, found = random.Random(0), []
    for _ in range(2000):
        text = "".join(chance.choices(PIECES, k=chance.randint(0, 12)))
        said = [{"role": "assistant", "content": text}, {"role": "user", "content": "No."}]
        for parser in parsers:
            score = round(float(parser.get_format_reward_func()(said)), 6)
            found.append([text, vars(parser.parse(text)), parser.parse_answer(said), score])
        found.append([text, thinking.parse(text), thinking.get_format_reward_func()(said)])
        found.append([text, vf.extract_boxed_answer(text), vf.extract_hash_answer(text)])
    return found


if __name__ == "__main__":
    module, address = sys.argv[1:3]
    os.environ["PEER_KEY"] = "any"
    with contextlib.redirect_stdout(sys.stderr):
        environments = importlib.import_module(module).ENVIRONMENTS
        made = {name: play(make(), address) for name, make in environments.items()}
        answer = {"rollouts": made, "parsers": read()}
    print(json.dumps(answer))
