"""Environments written for `verifiers` 0.1.3, which import it by its name and its modules."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import forked
import pytest

import verifiers_nb as vf
from verifiers_nb.cli.saved_runs import find_rollouts, find_runs

# The public names of verifiers 0.1.3 by module; what only its own server, trainer and screens use is left out.
NAMES = {
    "verifiers": "Parser ThinkParser XMLParser Rubric JudgeRubric RubricGroup ToolRubric MathRubric "
    "Environment MultiTurnEnv SingleTurnEnv ToolEnv EnvGroup extract_boxed_answer "
    "extract_hash_answer load_example_dataset setup_logging load_environment "
    "print_prompt_completions_sample get_model get_tokenizer get_model_and_tokenizer "
    "GRPOTrainer GRPOConfig grpo_defaults lora_defaults",
    "verifiers.types": "ChatCompletion ChatCompletionMessageParam ChatCompletionMessageToolCall ChatCompletionRole "
    "ChatCompletionToolParam ChatMessage Completion FunctionDefinition FunctionParameters "
    "GenerateInputs GenerateOutputs Info JsonPrimitive Message MessageType Messages "
    "ModelResponse ProcessedOutputs RewardFunc RolloutScore RolloutScores SamplingArgs State",
    "verifiers.envs.env_group": "EnvGroup EnvGroupRubric",
    "verifiers.envs.environment": "Environment",
    "verifiers.envs.multiturn_env": "MultiTurnEnv",
    "verifiers.envs.singleturn_env": "SingleTurnEnv",
    "verifiers.envs.stateful_tool_env": "StatefulToolEnv",
    "verifiers.envs.textarena_env": "TextArenaEnv",
    "verifiers.envs.tool_env": "ToolEnv",
    "verifiers.inference.vllm_client": "VLLMClient",
    "verifiers.parsers.parser": "Parser",
    "verifiers.parsers.think_parser": "ThinkParser",
    "verifiers.parsers.xml_parser": "XMLParser",
    "verifiers.rubrics.judge_rubric": "DEFAULT_JUDGE_PROMPT JudgeRubric",
    "verifiers.rubrics.math_rubric": "MathRubric",
    "verifiers.rubrics.rubric": "Rubric",
    "verifiers.rubrics.rubric_group": "RubricGroup",
    "verifiers.rubrics.tool_rubric": "ToolRubric",
    "verifiers.trainers.grpo_config": "GRPOConfig",
    "verifiers.trainers.grpo_trainer": "GRPOTrainer",
    "verifiers.utils.async_utils": "maybe_await",
    "verifiers.utils.data_utils": "THINK_BOXED_SYSTEM_PROMPT BOXED_SYSTEM_PROMPT "
    "extract_boxed_answer extract_hash_answer load_example_dataset",
    "verifiers.utils.env_utils": "load_environment",
    "verifiers.utils.logging_utils": "setup_logging print_prompt_completions_sample",
    "verifiers.utils.message_utils": "messages_to_printable cleanup_messages sanitize_tool_calls",
    "verifiers.utils.model_utils": "get_model get_tokenizer get_model_and_tokenizer",
    "verifiers.utils.report_utils": "ReportMeta compute_summary write_html_report",
    "verifiers.utils.tool_utils": "convert_func_to_oai_tool",
    "verifiers.utils.tools": "ask calculator python search_ddg search",
}

ENVIRONMENT = """
import verifiers as vf
from verifiers.parsers.xml_parser import XMLParser
from verifiers.types import *


def right(completion: Messages, answer: str, state: State, parser: vf.Parser) -> float:
    return float(vf.extract_boxed_answer(parser.parse_answer(completion)) == answer)


def load_environment(**kwargs) -> vf.Environment:
    from datasets import Dataset
    from verifiers.rubrics.rubric import Rubric

    dataset = Dataset.from_dict({"question": ["What is 2 + 2?"], "answer": ["4"]})
    rubric = Rubric(funcs=[right], parser=XMLParser(["answer"]))
    return vf.SingleTurnEnv(dataset=dataset, rubric=rubric, **kwargs)
"""
PLAY = r"""
import verifiers_nb as vf
from verifiers_nb.cli.saved_runs import find_rollouts, find_runs
env = vf.load_environment("their_sums")
assert (env.env_id, env.env_args) == ("their_sums", {})
client = vf.ScriptedClient("<answer>\\boxed{4}</answer>")
print(env.evaluate(client, "scripted").reward)
import verifiers
print(verifiers.__version__)
"""
REAL = """
__version__ = "0.1.3.post0"
class Environment: ...
"""


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, which is on its path; the library is imported already."""
    return forked.run([sys.executable, *arguments], cwd=folder, timeout=120)


OWN = ("extract_boxed_answer", "extract_hash_answer", "TextArenaEnv")


@pytest.mark.parametrize("module", NAMES)
def test_every_public_name_is_in_its_module(module: str) -> None:
    with vf.as_verifiers():
        imported = importlib.import_module(module)
        for name in NAMES[module].split():
            found, ours = getattr(imported, name), getattr(vf, name)
            # what `verifiers` does otherwise than we do is made from ours, or is of its own
            own = name in OWN and found.__module__.startswith("verifiers_nb.bridges.later_")
            set_up = getattr(found, "func", None) is ours
            assert found is ours or own or set_up or issubclass(found, ours), f"{module}.{name}"


def test_an_environment_runs_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "their_sums.py").write_text(ENVIRONMENT)
    done = python(tmp_path, "-c", PLAY)
    assert done.stdout == "[1.0]\n0.1.3\n", done.stderr
    assert done.stderr.count("import verifiers means verifiers_nb here") == 1


def test_the_real_package_beside_us_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "their_sums.py").write_text(ENVIRONMENT)
    (tmp_path / "verifiers").mkdir()
    (tmp_path / "verifiers" / "__init__.py").write_text(REAL)
    done = python(tmp_path, "-c", PLAY)
    assert done.stdout == "[1.0]\n0.1.3.post0\n", done.stderr  # outside, the real one is back


def test_vf_eval_runs_it_from_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "environments" / "their_sums"
    folder.mkdir(parents=True)
    (folder / "their_sums.py").write_text(ENVIRONMENT)
    nowhere = ("-b", "http://127.0.0.1:9", "-n", "1", "-r", "1")  # no server is there
    done = python(tmp_path, "-m", "verifiers_nb.cli.eval", "their-sums", *nowhere)
    assert "Traceback" not in done.stderr
    assert "http://127.0.0.1:9" in done.stderr, "the environment was not loaded"


BOXED = """
import verifiers as vf
from datasets import Dataset

def load_environment(**kwargs):
    data = Dataset.from_list([{"question": "2 + 2?", "answer": "4"}])
    return vf.SingleTurnEnv(dataset=data, rubric=vf.MathRubric(), **kwargs)
"""
PLAY_BOXED = r"""
import sys
import verifiers_nb as vf
from verifiers_nb.cli.settings import RunSettings, load
sys.path += sys.argv[2:]
env = load(RunSettings(env="boxed_sums")) if sys.argv[1] == "command" else vf.load_environment("boxed-sums")
results = env.evaluate(vf.ScriptedClient("\\boxed{4}"), "scripted", progress=False)
print(results.reward, list(results.metrics))
"""
EARLY, LATE = "[0.0] ['correct_answer_reward_func']", "[1.0] ['correct_answer', 'num_turns']"


@pytest.mark.parametrize(
    ("required", "expected"),
    [
        ("verifiers>=0.1.9", LATE),
        ("Verifiers > 0.1.8", LATE),
        ("verifiers~=0.1.9.post2", LATE),
        ("verifiers @ git+https://github.com/willccbb/verifiers.git@v0.1.9", LATE),
        ("verifiers @ git+https://github.com/PrimeIntellect-ai/verifiers@main", LATE),
        ("verifiers==0.1.3.post0", EARLY),
        ("datasets", EARLY),
    ],
)
def test_a_folder_is_played_as_its_package(tmp_path: Path, required: str, expected: str) -> None:
    """By a command, by its folder on the path, and from an installed copy."""
    folder, site = tmp_path / "environments" / "boxed_sums", tmp_path / "site-packages"
    info = site / "boxed_sums-0.1.0.dist-info"
    for each in (folder, info):
        each.mkdir(parents=True)
    (folder / "boxed_sums.py").write_text(BOXED)
    about = f'[project]\nname = "boxed-sums"\nversion = "0.1.0"\ndependencies = ["{required}"]\n'
    (folder / "pyproject.toml").write_text(about)
    (site / "boxed_sums.py").write_text(BOXED)
    named = "Metadata-Version: 2.1\nName: boxed-sums\nVersion: 0.1.0\n"
    (info / "METADATA").write_text(f"{named}Requires-Dist: {required}\n")
    for given in (["command"], ["function", str(folder)], ["function", str(site)]):
        done = python(tmp_path, "-c", PLAY_BOXED, *given)
        assert done.stdout.strip() == expected, (given, done.stderr)


def test_a_folder_that_only_commands_see_is_named(tmp_path: Path) -> None:
    (tmp_path / "environments" / "their_sums").mkdir(parents=True)
    call = "import verifiers_nb as vf; vf.load_environment('their-sums')"
    done = python(tmp_path, "-c", call)
    assert "Only commands such as vf-eval look into ./environments" in done.stderr
    assert "pip install -e environments/their_sums" in done.stderr
    (tmp_path / "environments" / "alone.py").write_text(BOXED)
    done = python(tmp_path, "-c", call.replace("their-sums", "alone"))
    assert "Call sys.path.insert(0, 'environments') first." in done.stderr
    load = (
        "from verifiers_nb.cli.settings import RunSettings, load; print(load(RunSettings('alone')))"
    )
    assert python(tmp_path, "-c", load).stdout.startswith("<")


def test_a_later_api_is_named(tmp_path: Path) -> None:
    (tmp_path / "later.py").write_text("from verifiers.envs.sandbox_env import SandboxEnv\n")
    done = python(tmp_path, "-c", "import verifiers_nb as vf; vf.load_environment('later')")
    assert "verifiers.envs.sandbox_env was added in verifiers 0.1.5" in done.stderr
    (tmp_path / "later.py").write_text("from verifiers import SandboxEnv\n")
    done = python(tmp_path, "-c", "import verifiers_nb as vf; vf.load_environment('later')")
    last = done.stderr.strip().splitlines()[-1]
    assert "failed to load: SandboxEnv was added in verifiers 0.1.5: verifiers_nb" in last
    (tmp_path / "later.py").write_text("import verifiers as vf\nclass A(vf.HarborEnv): ...\n")
    done = python(tmp_path, "-c", "import verifiers_nb as vf; vf.load_environment('later')")
    assert "failed to load: HarborEnv was added in verifiers 0.1.9: verifiers_nb" in done.stderr


def test_a_package_that_is_no_environment_is_named(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("import verifiers as vf\n")
    done = python(tmp_path, "-c", "import verifiers_nb as vf; vf.load_environment('plain')")
    assert "no installed module 'plain' with a load_environment function" in done.stderr


# What `vf-eval -s` of verifiers 0.1.3 wrote about two questions and one tool.
CALL = '{"id": "c1", "function": {"arguments": "{\\"a\\": 2}", "name": "add"}, "type": "function"}'
THEIR_LINES = [
    {
        "id": number,
        "prompt": [{"role": "user", "content": question}],
        "completion": [
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": "4", "tool_calls": None},
            {"role": "assistant", "content": "4", "tool_calls": None},
        ],
        "task": "default",
        "answer": answer,
        "reward": float(answer == "4"),
        "right": float(answer == "4"),
        "add_calls": 1.0,
    }
    for number, question, answer in [(0, "2 + 2?", "4"), (1, "3 + 2?", "5")]
]
THEIR_METADATA = {"env": "adds", "model": "m", "num_examples": 2, "rollouts_per_example": 1}


def test_their_saved_results_open_everywhere(tmp_path: Path) -> None:
    run = tmp_path / "outputs" / "evals" / "adds--m" / "683b9a8d"
    run.mkdir(parents=True)
    file = run / "results.jsonl"
    file.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in THEIR_LINES))
    (run / "metadata.json").write_text(json.dumps({**THEIR_METADATA, "avg_reward": 0.5}))
    results = vf.load_results(file)
    assert (results.reward, results.metrics["add_calls"]) == ([1.0, 0.0], [1.0, 1.0])
    assert results.completion[0][0]["tool_calls"][0]["function"]["name"] == "add"
    assert vf.results_frame(file)["right"].tolist() == [1.0, 0.0]
    assert "3 + 2?" in vf.RolloutExplorer(results=str(file)).freeze()._repr_html_()
    report = python(tmp_path, "-m", "verifiers_nb.cli.report", str(run))
    assert report.returncode == 0 and "adds" in next(run.glob("*.html")).read_text()
    (found,) = find_runs(tmp_path)
    assert (found.env, found.model, found.summary) == ("adds", "m", "reward 0.500, 2 rollouts")
    assert [place.reward for place in find_rollouts(found.files)] == [1.0, 0.0]
    file.write_text(file.read_text() + "no JSON\n")
    with pytest.raises(ValueError, match="line 3 is not a rollout"):
        vf.load_results(file)
