"""vf-eval as a process: what it says, what it leaves, stopped, killed, continued, and called wrongly."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import forked
import pyarrow.parquet
import pytest

from verifiers_nb.envs.results import read_rollouts

COMMAND = [sys.executable, "-m", "verifiers_nb.cli.eval"]
ENVIRON = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")} | {
    "OMP_NUM_THREADS": "1"
}


def call(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Call the command in a folder, in a process that has imported; what libraries read when imported wants a new one."""
    command, env = [*COMMAND, *arguments], {**ENVIRON, **environ}
    if not any(name.startswith("HF_") for name in environ):
        return forked.run(command, cwd, env)
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)


class Handler(BaseHTTPRequestHandler):
    """Answer as an OpenAI-compatible server with one model, after a pause."""

    server: Server

    def do_GET(self) -> None:
        self.reply({"data": [{"id": "parrot"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append({**body, "key": self.headers.get("Authorization")})
        time.sleep(self.server.pause)
        while len(self.server.requests) > self.server.silent_after:
            time.sleep(0.05)
        message = {"role": "assistant", "content": "<answer>\n7\n</answer>\x1b[31m"}
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        self.reply({"id": "1", "model": body["model"], "choices": [choice], "usage": usage})

    def reply(self, value: Any) -> None:
        data = json.dumps(value).encode()
        status = 401 if self.server.key and self.server.key not in str(self.headers) else 200
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    """A server on a free port that notes what it is asked."""

    daemon_threads = True
    request_queue_size = 1024  # with the default of 5, the kernel drops connections of a burst
    pause, key, silent_after = 0.0, "", 1000

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[dict[str, Any]] = []
        self.url = f"http://127.0.0.1:{self.server_port}/v1"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_the_shipped_model_answers_without_a_key(tmp_path: Path) -> None:
    done = call("addition", "-n", "2", "-r", "2", "-s", "-S", '{"seed": 1}', cwd=tmp_path)
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1 and "adder-1m answers in this process" in done.stderr
    for shown in ("correct_answer", "± error", "pass@2", "pass^2", "tokens", "rollout "):
        assert shown in done.stdout
    (folder,) = (tmp_path / "outputs/evals/addition--verifiers_nb--adder-1m").iterdir()
    assert len([*read_rollouts(folder / "results.jsonl")]) == 4
    metadata = json.loads((folder / "metadata.json").read_text())
    assert metadata["finished"] and metadata["model"] == "verifiers_nb/adder-1m"
    assert metadata["usage"]["requests"] == 4 and "avg_correct_answer" in metadata


def test_json_is_all_there_is_on_standard_output(tmp_path: Path) -> None:
    done = call("addition", "-n", "1", "-r", "1", "--json", "--fail-under", "99", cwd=tmp_path)
    figures = json.loads(done.stdout)
    assert done.returncode == 1 and figures["rollouts"] == 1 and figures["failed"] == 0
    assert figures["scores"]["reward"]["standard_error"] is None  # one example has none
    assert not (tmp_path / "outputs").exists()  # nothing is kept without -s


def test_a_server_and_its_one_model(tmp_path: Path, server: Server) -> None:
    arguments = ["addition", "-b", server.url, "-n", "2", "-r", "1", "-t", "9", "-T", "0.5"]
    done = call(
        *arguments, "-S", '{"temperature": 0}', "-k", "MY_KEY", cwd=tmp_path, MY_KEY="s3cret"
    )
    assert done.returncode == 0 and "\x1b" not in done.stdout and "\\x1b[31m" in done.stdout
    asked = server.requests[0]
    assert asked["model"] == "parrot" and asked["key"] == "Bearer s3cret"
    assert asked["max_completion_tokens"] == 9 and asked["temperature"] == 0
    assert "10 tokens read and 4 written" in done.stdout


def test_endpoints_have_names(tmp_path: Path, server: Server) -> None:
    (tmp_path / "configs").mkdir()
    entry = {"model": "parrot-2", "url": server.url, "key": "NO_KEY"}
    (tmp_path / "configs/endpoints.py").write_text(f"ENDPOINTS = {{'bird': {entry}}}")
    done = call("addition", "-m", "bird", "-n", "1", "-r", "1", cwd=tmp_path)
    assert done.returncode == 0 and server.requests[-1]["model"] == "parrot-2"


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_evaluation_goes_on(tmp_path: Path, server: Server, sent: signal.Signals) -> None:
    server.pause, server.silent_after = 0.2, 8  # so that it can't be done before it is stopped
    arguments = ["addition", "-b", server.url, "-n", "10", "-r", "2", "-c", "2"]
    command = [*COMMAND, *arguments, "-s"]
    process = forked.Popen(command, tmp_path, ENVIRON)
    while len(server.requests) < 6:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(sent)
    _, said = process.communicate(timeout=60)
    (folder,) = tmp_path.glob("outputs/evals/*/*")
    kept = len([*read_rollouts(folder / "results.jsonl")])
    assert 2 <= kept < 20
    if sent != signal.SIGKILL:
        assert process.returncode == 130 and "Traceback" not in said
        command = f"vf-eval addition --resume {folder.name} --api-base-url {server.url}"
        assert f"resume with: {command}" in said and said.count("vf-eval: stopped") == 1
    server.silent_after = 1000
    unnamed = call("addition", "--resume", cwd=tmp_path)
    assert (
        unnamed.returncode == 2
        and f"used --api-base-url {server.url}. A saved run may" in unnamed.stderr
    )
    again = ("addition", "--resume", "-b", server.url, "--json", "-k", "AGAIN")
    done = call(*again, cwd=tmp_path, AGAIN="again")
    figures = json.loads(done.stdout)
    assert figures["path"].endswith(folder.name) and figures["rollouts"] == 20
    # None is paid for twice; a last request of the stopped run may be read as late as now.
    assert [each["key"] for each in server.requests].count("Bearer again") == 20 - kept
    usage = json.loads((folder / "metadata.json").read_text())["usage"]
    assert (usage["requests"], usage["completion_tokens"]) == (20, 40)  # of before the kill, too
    nothing = call("addition", "--resume", cwd=tmp_path)
    assert nothing.returncode == 2 and "was stopped" in nothing.stderr


def test_an_environment_of_ones_own_keeps_its_results(tmp_path: Path) -> None:
    own = tmp_path / "environments/my_sums"
    own.mkdir(parents=True)
    source = "from verifiers_nb.environments.addition import load_environment"
    (own / "my_sums.py").write_text(source)
    arguments = ["my-sums", "-n", "1", "-r", "1", "-s", "--offline", "-a", '{"seed": 3}']
    assert call(*arguments, cwd=tmp_path, OPENAI_API_KEY="k").returncode == 0
    assert len([*own.glob("outputs/evals/my-sums--verifiers_nb--adder-1m/*/results.jsonl")]) == 1


MENDED = """
from datasets import Dataset

import verifiers_nb as vf


def right(completion, answer):
    open("calls.txt", "a").write("right\\n")
    return float(answer in completion[-1]["content"])


def short(completion):
    open("calls.txt", "a").write("short\\n")
    return float(len(completion[-1]["content"]) < 100)


def load_environment():
    rows = [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(4, 8)]
    rubric = vf.Rubric([right, short], weights=[1.0, 0.5])
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=rubric)
"""


def test_stored_rollouts_are_scored_again(tmp_path: Path, server: Server) -> None:
    """Only the function that was mended is called, no model is asked, and the old rollouts stay as they were."""
    (home := tmp_path / "environments/mine").mkdir(parents=True)
    (home / "mine.py").write_text(MENDED)
    done = call("mine", "-b", server.url, "-n", "4", "-r", "2", "-s", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (folder,) = home.glob("outputs/evals/*/*")
    before, asked = (folder / "results.jsonl").read_bytes(), len(server.requests)
    mended = MENDED.replace("< 100", "< 10").replace("0.5]", "0.25]")
    (home / "mine.py").write_text(f"{mended}\n")  # of another size, or Python takes its old bytes
    (tmp_path / "calls.txt").unlink()
    done = call("mine", "--rescore", str(folder), "-b", server.url, "--report", cwd=tmp_path)
    assert done.returncode == 0 and len(server.requests) == asked, done.stderr
    assert (tmp_path / "calls.txt").read_text() == "short\n" * 8
    assert "called short; kept right" in done.stdout
    assert "reward: 0.750 → 0.250, -0.500 (95 % interval" in done.stdout
    assert "short: 1.000 → 0.000, -1.000" in done.stdout
    assert (folder / "results.jsonl").read_bytes() == before
    stored = [*read_rollouts(folder / "rescored-1" / "results.jsonl")]
    assert sorted(record["reward"] for record in stored) == [0.0] * 6 + [1.0] * 2
    assert (folder / "rescored-1" / "comparison.html").exists()
    arguments = ["--rescore", str(folder), "--rescore-all", "--json", "-b", server.url]
    figures = json.loads(call("mine", *arguments, cwd=tmp_path).stdout)
    assert figures["called"] == ["right", "short"] and figures["path"].endswith("rescored-2")
    assert figures["differences"]["reward"]["difference"]["n"] == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rescore", "FOLDER"], "the environment is missing: vf-eval ENV [options]"),
        ([], "the environment is missing"),
        (["addition", "--rescore", "nowhere"], "there is no evaluation of addition with the id"),
        (["mine", "--rescore", "FOLDER"], "line 1 is not a rollout"),
    ],
)
def test_what_cannot_be_scored_again(tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "environments/mine").mkdir(parents=True)
    (tmp_path / "environments/mine/mine.py").write_text(MENDED)
    (folder := tmp_path / "saved").mkdir()
    (folder / "metadata.json").write_text('{"env_id": "mine"}')
    (folder / "results.jsonl").write_text('{"index": 0, "prompt": "1 + 1?"}\n')
    done = call(*[each.replace("FOLDER", str(folder)) for each in arguments], cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1
    assert not [*folder.glob("rescored-*")]


def test_a_full_disk_leaves_no_half_of_new_scores(tmp_path: Path, server: Server) -> None:
    (home := tmp_path / "environments/mine").mkdir(parents=True)
    (home / "mine.py").write_text(MENDED)
    call("mine", "-b", server.url, "-n", "4", "-r", "2", "-s", cwd=tmp_path)
    (folder,) = home.glob("outputs/evals/*/*")
    before = (folder / "results.jsonl").read_bytes()
    code = "import resource, sys; from verifiers_nb.cli.eval import main; "
    code += "resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500)); sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "mine", "--rescore", str(folder), "-b", server.url]
    done = forked.run(command, tmp_path, ENVIRON)
    assert done.returncode == 2 and "The old file is unchanged" in done.stderr, done.stderr
    assert (folder / "results.jsonl").read_bytes() == before
    assert not [*folder.glob("rescored-*/*")]


def test_a_verifier_scores(tmp_path: Path) -> None:
    verifier = ["--verifier", "regex_format", "--verifier-args", '{"pattern": "."}']
    done = call("addition", "-n", "1", "-r", "1", *verifier, "--json", cwd=tmp_path)
    assert [*json.loads(done.stdout)["scores"]] == ["reward", "regex_format"]


class Hub(BaseHTTPRequestHandler):
    """Answer as the Hugging Face Hub does to a program that commits to an empty dataset."""

    server: HubServer

    def do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url, path = self.server.url, self.path.partition("?")[0]
        reply: Any = {"id": "me/rollouts", "sha": "0" * 40, "siblings": []}
        if path.endswith("/preupload/main"):
            files = [each["path"] for each in json.loads(body)["files"]]
            modes = {name: "lfs" if name.endswith(".parquet") else "regular" for name in files}
            reply = {
                "files": [
                    {"path": n, "uploadMode": m, "shouldIgnore": False} for n, m in modes.items()
                ]
            }
        elif path.endswith("/objects/batch"):
            upload = {"actions": {"upload": {"href": f"{url}/upload", "header": {}}}}
            reply = {
                "transfer": "basic",
                "objects": [{**o, **upload} for o in json.loads(body)["objects"]],
            }
        elif path == "/upload":
            self.server.files.append(body)
        elif path.endswith("/commit/main"):
            self.server.commits.append(path)
            reply = {
                "commitOid": "0" * 40,
                "commitUrl": f"{url}/datasets/me/rollouts/commit/{'0' * 40}",
            }
        elif re.search("/(tree|paths-info)/[^/]+$", path):  # the dataset is there, and empty
            reply = []
        missing = re.search("/tree/[^/]+/|/resolve/", path)
        data = b"{}" if missing else json.dumps(reply).encode()
        self.send_response(404 if missing else 200)
        self.send_header("X-Error-Code", "EntryNotFound")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_HEAD = do

    def log_message(self, *_: Any) -> None:
        pass


class HubServer(ThreadingHTTPServer):
    """A hub on a free port that notes commits and keeps the large files of them."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Hub)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.commits: list[str] = []
        self.files: list[bytes] = []


def test_rollouts_go_to_the_hub(tmp_path: Path, server: Server) -> None:
    arguments = ["addition", "-b", server.url, "-n", "2", "-r", "1", "-H", "-D", "me/rollouts"]
    with HubServer() as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        environ = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_none", "HF_HUB_DISABLE_XET": "1"}
        done = call(*arguments, cwd=tmp_path, HF_HUB_OFFLINE="0", **environ)
        hub.shutdown()
    assert done.returncode == 0 and "pushed to the hub as me/rollouts" in done.stderr, done.stderr
    assert {*hub.commits} == {"/api/datasets/me/rollouts/commit/main"}
    (pushed,) = hub.files
    rows = pyarrow.parquet.read_table(io.BytesIO(pushed)).to_pylist()
    assert len(rows) == 2 and rows[0]["correct_answer"] in (0.0, 1.0)
    assert "What is" in rows[0]["prompt"][-1]["content"] and rows[0]["completion"]


def test_a_hub_that_refuses_costs_one_sentence(tmp_path: Path, server: Server) -> None:
    arguments = ["addition", "-b", server.url, "-n", "1", "-r", "1", "-H", "-D", "me/rollouts"]
    failed = call(*arguments, cwd=tmp_path, HF_ENDPOINT="http://127.0.0.1:9", HF_HUB_OFFLINE="0")
    assert failed.returncode == 2 and "could not be pushed" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_failed_rollouts_are_told(tmp_path: Path) -> None:
    done = call("addition", "-n", "1", "-r", "2", "-S", '{"nonsense": 1}', cwd=tmp_path)
    assert done.returncode == 1 and "2 of 2 rollouts failed" in done.stdout


WRONG = {
    "did you mean --model?": ["addition", "--modle", "a"],
    "did you mean 'addition'": ["adition"],
    "is not the name": ["not a name"],
    "invalid JSON": ["addition", "-a", "{a: 1}"],
    "not a JSON object": ["addition", "-S", "[1]"],
    "0 is too small": ["addition", "-n", "0"],
    "is not a whole number": ["addition", "-r", "x"],
    "no server answers": ["addition", "-b", "http://127.0.0.1:9/v1"],
    "is not an API address": ["addition", "-b", "http://127.0.0.1:99999"],
    "there is no endpoint": ["addition", "--endpoint", "nobody"],
    "set OPENAI_API_KEY": ["addition", "-m", "gpt-5"],
    "no endpoints file": ["addition", "-e", "missing.py"],
    "NO_SUCH_KEY": ["addition", "-k", "NO_SUCH_KEY"],
    "it ships": ["addition", "-m", "verifiers_nb/adder-1b"],
    "name it with --resume": ["addition", "--repair"],
    "'no_such_verifier'": ["addition", "--verifier", "no_such_verifier"],
    "argument: 'pattern'": ["addition", "--verifier", "regex_format"],
    "failed to load": ["addition", "-a", '{"num_eval_examples": -7}'],
    "was stopped": ["addition", "--resume"],
    "no adapter in 'missing'": ["addition", "--endpoint", "embedded", "--adapter", "missing"],
    "id 'x'": ["addition", "--resume", "x"],
}


@pytest.mark.parametrize("said", WRONG)
def test_a_wrong_call_costs_one_sentence(tmp_path: Path, said: str) -> None:
    failed = call(*WRONG[said], cwd=tmp_path)
    assert failed.returncode == 2 and said in failed.stderr
    assert "Traceback" not in failed.stderr and len(failed.stderr.strip().splitlines()) == 1
    assert not [*tmp_path.iterdir()]


def test_a_refused_key_is_told_before_anything_runs(tmp_path: Path, server: Server) -> None:
    server.key = "right"
    failed = call("addition", "-b", server.url, "-k", "K", cwd=tmp_path, K="wrong")
    assert failed.returncode == 2 and "rejects the key" in failed.stderr and not server.requests


LAZY = """
import verifiers_nb as vf

def rows():
    raise OSError("the rows could not be fetched")

def load_environment():
    return vf.SingleTurnEnv(dataset=rows)
"""


def test_rows_that_cannot_be_made_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "lazy_rows.py").write_text(LAZY)
    refused = call("lazy-rows", "-n", "1", cwd=tmp_path)
    assert refused.returncode == 2 and "the rows could not be fetched" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text("")  # not even root can make a folder in a file
    done = call("addition", "-n", "1", "-r", "1", "-s", cwd=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "outputs" in done.stderr and "Not a directory" in done.stderr


WANDERS = """
import os
import threading
import time

from datasets import Dataset

import verifiers_nb as vf


def right(completion, answer):
    {reward}
    return float(answer in completion[-1]["content"])


def load_environment():
    rows = [{{"question": f"{{n}} + 1?", "answer": "7"}} for n in range(40)]
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric([right]))
"""


def own_environment(folder: Path, reward: str) -> list[str]:
    """Write an environment whose reward does something first; return the arguments that evaluate it."""
    own = folder / "environments/wanders"
    own.mkdir(parents=True)
    (own / "wanders.py").write_text(WANDERS.format(reward=reward))
    return ["wanders", "-n", "40", "-r", "1", "-s"]


def test_a_reward_that_changes_the_directory(tmp_path: Path, server: Server) -> None:
    (away := tmp_path / "away").mkdir()
    arguments = own_environment(tmp_path, f"os.chdir({str(away)!r})")
    done = call(*arguments, "-b", server.url, cwd=tmp_path, OPENAI_API_KEY="k")
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.count("changed the working directory") == 1
    (results,) = tmp_path.rglob("results.jsonl")
    assert results.is_relative_to(tmp_path / "environments/wanders/outputs/evals")
    assert [each["reward"] for each in read_rollouts(results)] == [1.0] * 40
    assert (results.parent / "metadata.json").exists() and not list(away.iterdir())


def test_threads_of_a_reward_keep_no_command_alive(tmp_path: Path, server: Server) -> None:
    """A thread that ends by itself loses nothing; one that never ends is left behind, and named once."""
    late = tmp_path / "late.txt"
    reward = f"""threading.Thread(target=threading.Event().wait, name="endless").start()
    threading.Thread(target=lambda: (time.sleep(1), open({str(late)!r}, "a").write("x"))).start()"""
    arguments = own_environment(tmp_path, reward)
    environ = {**ENVIRON, "OPENAI_API_KEY": "k"}
    command = [*COMMAND, *arguments, "-b", server.url]
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("not waiting any longer for threads") == 1
    assert "endless" in done.stderr and "daemon=True" in done.stderr
    assert "Traceback" not in done.stderr and "right" in done.stdout
    (results,) = tmp_path.rglob("results.jsonl")
    assert [each["reward"] for each in read_rollouts(results)] == [1.0] * 40
    assert late.read_text() == "x" * 40


def test_few_descriptors_and_many_requests(tmp_path: Path, server: Server) -> None:
    """With 256 files and a thousand rollouts at once, all are played and kept, and the limit is named."""
    arguments = own_environment(tmp_path, "pass")
    source = (
        (tmp_path / "environments/wanders/wanders.py")
        .read_text()
        .replace("range(40)", "range(600)")
    )
    (tmp_path / "environments/wanders/wanders.py").write_text(source)
    server.pause = 0.5
    arguments[arguments.index("40")] = "600"
    words = shlex.join([*COMMAND, *arguments, "-b", server.url, "-c", "1000"])
    environ = {**ENVIRON, "OPENAI_API_KEY": "k"}
    done = subprocess.run(
        ["bash", "-c", f"ulimit -n 256; exec {words}"],
        cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.count("ulimit -n") == 1 and "-c" in done.stderr
    (results,) = tmp_path.rglob("results.jsonl")
    assert [each["reward"] for each in read_rollouts(results)] == [1.0] * 600


def test_a_misspelt_sampling_argument_is_named(tmp_path: Path, server: Server) -> None:
    given = json.dumps({"temprature": 0.5, "enable_thinking": False})
    arguments = ["addition", "-n", "3", "-r", "2", "-b", server.url, "-S", given]
    done = call(*arguments, cwd=tmp_path, OPENAI_API_KEY="k")
    assert done.stderr.count("did you mean temperature?") == 1
    assert all(each["temprature"] == 0.5 for each in server.requests)
    sent = [each["chat_template_kwargs"] for each in server.requests]
    assert sent == [{"enable_thinking": False}] * 6


def test_a_full_disk_keeps_what_was_finished(tmp_path: Path) -> None:
    """No file may grow beyond 10 kB: the results stop there, and can be gone on with."""
    script = "import resource, signal, sys; from verifiers_nb.cli.eval import main; "
    script += "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    script += "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000)); sys.exit(main())"
    command = [sys.executable, "-c", script, "addition", "-n", "40", "-r", "1", "-s"]
    done = forked.run(command, tmp_path, ENVIRON)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    (results,) = tmp_path.glob("outputs/evals/*/*/results.jsonl")
    kept = len(list(read_rollouts(results)))
    assert 0 < kept < 40
    said = done.stderr.splitlines()[-1]
    assert "are saved in" in said and f"vf-eval addition --resume {results.parent.name}" in said
    again = call("addition", "--resume", results.parent.name, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert len(list(read_rollouts(results))) == 40


NO_ROLLOUTS = [
    b'{"index": 3}',
    b'{"index": true}',
    b"[1]",
    b"[" * 5000,
    b'{"index": 0, "reward": NaN}',
    b"no",
]


def test_lines_that_are_no_rollouts_are_named_and_moved(tmp_path: Path, server: Server) -> None:
    """Each is refused by its number; with --repair all of them are moved."""
    server.pause = 0.0
    few = ("addition", "-b", server.url, "-n", "2", "-r", "1", "-s")
    assert call(*few, cwd=tmp_path).returncode == 0
    (results,) = tmp_path.glob("outputs/evals/*/*/results.jsonl")
    good = results.read_bytes()
    resume = ("addition", "-b", server.url, "--resume", results.parent.name)
    for line in NO_ROLLOUTS:
        results.write_bytes(line + b"\n" + good)
        done = call(*resume, cwd=tmp_path)
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert "results.jsonl, line 1 is not a rollout" in done.stderr and "--repair" in done.stderr
    bad = b"".join(line + b"\n" for line in NO_ROLLOUTS)
    results.write_bytes(bad + good)
    assert call(*resume, "--repair", cwd=tmp_path).returncode == 0
    assert results.read_bytes() == good
    assert results.with_name("results.jsonl.bad").read_bytes() == bad


def test_secrets_are_not_kept(tmp_path: Path, server: Server) -> None:
    """A key in the address and one in a header: in no file, in no message; a resumed run wants them again."""
    server.pause = 0.0
    address = server.url.replace("://", "://ada:hunter-two@")
    header = json.dumps({"extra_headers": {"X-Api-Key": "open-sesame"}})
    asked = ("addition", "-b", address, "-n", "2", "-r", "1", "-s", "--report", "-S", header)
    done = call(*asked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"metadata.json", "results.jsonl"} <= {path.name for path in files}
    texts = [done.stdout, done.stderr, *(path.read_text() for path in files)]
    assert not any("hunter" in text or "sesame" in text for text in texts)
    folder = next(path.parent for path in files if path.name == "metadata.json")
    lacking = call("addition", "--resume", folder.name, cwd=tmp_path)
    assert lacking.returncode == 2 and "held a secret, which is not saved" in lacking.stderr
    given = ("-b", address, "-S", header)
    assert call("addition", "--resume", folder.name, *given, cwd=tmp_path).returncode == 0
    nobody = call("addition", "-b", "http://ada:hunter-two@127.0.0.1:9/v1", cwd=tmp_path)
    assert nobody.returncode == 2 and "hunter" not in nobody.stderr + nobody.stdout
