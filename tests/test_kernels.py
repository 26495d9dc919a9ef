"""Notebooks in a kernel of their own: after nest_asyncio.apply(), with a run in the background, and executed by nbconvert."""

from __future__ import annotations

from pathlib import Path

import forked
import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

SETUP = """
import verifiers_nb as vf
args = vf.GRPOConfig(
    "run", per_device_train_batch_size=8, num_generations=4, max_tokens=40, max_steps=2, save_steps=1,
    eval_strategy="steps", eval_steps=1, use_cpu=True,
)
env = vf.load_environment("addition", num_eval_examples=4)
trainer = vf.GRPOTrainer("verifiers_nb/adder-1m", env, args, peft_config=vf.lora_defaults())
engine = vf.EmbeddedEngine("verifiers_nb/adder-1m", seed=0)
asked = {"max_tokens": 40, "temperature": 0.0}
"""
# A server that answers 7 to everything, in a thread of the kernel.
SERVER = """
import http.server, json, threading, openai

class Seven(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "7"}}
        about = {"id": "1", "object": "chat.completion", "created": 1, "model": "seven"}
        said = json.dumps({**about, "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *args):
        pass

listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Seven)
threading.Thread(target=listening.serve_forever, daemon=True).start()
address = f"http://127.0.0.1:{listening.server_port}/v1"
"""
# Each call of the library that people make in a notebook, the sync ones and their async twins.
CALLS = """
inputs = {"prompt": [env.get_eval_dataset()[0]["prompt"]] * 2, "answer": ["7"] * 2}
found = [
    env.evaluate(engine, engine.model, asked, num_examples=2, progress=False),
    env.generate(inputs, engine, engine.model, asked),
    await env.a_evaluate(engine, engine.model, asked, num_examples=2, progress=False),
    await env.a_generate(inputs, engine, engine.model, asked),
]
assert [len(each.reward) for each in found] == [2, 2, 2, 2], found
import asyncio

async def sync_in_async():
    return env.evaluate(engine, engine.model, asked, num_examples=2, progress=False)

many = await asyncio.gather(sync_in_async(), sync_in_async())
again = asyncio.run(env.a_evaluate(engine, engine.model, asked, num_examples=2, progress=False)) if patched else many[0]
assert [len(each.reward) for each in [*many, again]] == [2, 2, 2]
reply = await engine.chat.completions.create(model=engine.model, messages=inputs["prompt"][0], **asked)
assert reply.choices[0].message.content
with vf.serve("verifiers_nb/adder-1m", engine="embedded", progress=False) as served:
    assert len(env.evaluate(served.client, served.model, asked, num_examples=2, progress=False).reward) == 2
for kind in (openai.OpenAI, openai.AsyncOpenAI, vf.HTTPClient):
    client = kind(base_url=address, api_key="none")
    seen = env.evaluate(client, "seven", {"max_tokens": 9}, num_examples=2, progress=False)
    assert seen.completion[0][-1]["content"] == "7", seen.state
    seen = await env.a_evaluate(client, "seven", {"max_tokens": 9}, num_examples=2, progress=False)
    assert seen.completion[0][-1]["content"] == "7", seen.state
print("all calls answered")
"""
WIDGETS = """
explorer = vf.RolloutExplorer(env, engine, results=found[0])
inspector = vf.FormatInspector(env.parser, ["<think>3</think>"])
dashboard = vf.TrainingDashboard(trainer)
for widget in (explorer, inspector, dashboard):
    display(widget)
explorer.act("show", {"row": "1"})
"""


@pytest.fixture(autouse=True)
def kernels_have_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kernels begin where the imports have ended."""
    monkeypatch.setenv("JUPYTER_PATH", forked.kernels())


def execute(folder: Path, *sources: str) -> nbformat.NotebookNode:
    """Run cells in a kernel, in a folder; an error of a cell is the test's."""
    nb = new_notebook(cells=[new_code_cell(source) for source in sources])
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(nb, timeout=240, kernel_name="python3", resources=resources).execute()
    return nb


def printed(nb: nbformat.NotebookNode, cell: int, name: str = "stdout") -> str:
    """Return what a cell printed."""
    outputs = nb.cells[cell].outputs
    return "".join(o.text for o in outputs if o.output_type == "stream" and o.name == name)


def test_every_call_works_in_a_patched_kernel(tmp_path: Path) -> None:
    """Call everything before a run, train, train in a thread, and call everything again.

    What nbconvert writes of it shows the dashboard as it is at the end, not as it was at first.
    """
    from nbconvert import HTMLExporter

    begin = "patched = True\nimport nest_asyncio\nnest_asyncio.apply()"
    train = "trainer.train()\ntrainer.start()\ntrainer.wait()"
    later = "print(trainer.state.global_step, dashboard.run.condition)"
    board = "vf.TrainingDashboard(trainer)"
    nb = execute(tmp_path, begin, SETUP, SERVER, board, CALLS, WIDGETS, train, CALLS, later)
    assert (printed(nb, 4), printed(nb, 7)) == ("all calls answered\n",) * 2
    assert printed(nb, -1) == "2 Finished\n"
    del nb.metadata["widgets"]  # as JupyterLab saves it
    page, _ = HTMLExporter().from_notebook_node(nb)
    drawn = page[page.index('vf-kept" data-kept') :].partition("all calls answered")[0]
    assert "Finished" in drawn and "Not started" not in drawn and "Running" not in drawn


def test_every_call_works_in_a_kernel_and_a_run_in_the_background_is_quiet(tmp_path: Path) -> None:
    """No cell shows anything of a run that another one started, and that one shows a sentence."""
    begin = "patched = False"
    wait = "import time\nwhile trainer.run.is_active:\n    print('.')\n    time.sleep(0.2)"
    background = ["trainer.start()", wait, "trainer.wait()", "trainer.run"]
    later = "print(trainer.state.global_step, dashboard.run.condition)"
    nb = execute(
        tmp_path, begin, SETUP, SERVER, CALLS, *background, WIDGETS, "trainer.train()", CALLS, later
    )
    assert (printed(nb, 3), printed(nb, 10)) == ("all calls answered\n",) * 2
    assert printed(nb, -1) == "2 Finished\n"
    shown = [o for cell in nb.cells[4:8] for o in cell.outputs]
    (said,) = [o.data["text/plain"] for o in nb.cells[4].outputs]
    assert (
        "in the background" in said and "trainer.stop()" not in said.partition("trainer.pause()")[0]
    )
    assert set(printed(nb, 5)) == {".", "\n"}
    assert not [o for o in shown[1:] if o.get("name") == "stderr"]
    assert " at 0x" not in str(shown)
    assert nb.cells[7].outputs[0].data["text/plain"] == "No training goes on: finished, at step 2."
