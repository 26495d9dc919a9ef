"""What an installation promises: a light import, and names that are there or say what they need."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import shutil
import subprocess
import sys
from configparser import ConfigParser
from importlib import metadata
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import verifiers_nb as vf

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ["torch", "transformers", "vllm", "xgrammar", "ipywidgets", "plotly", "datasets", "openai"]
MODULES = sorted(m.name for m in pkgutil.walk_packages(vf.__path__, "verifiers_nb."))
NAMES = sorted(vf._HOME)

# What programs may say after `vf.`: no name of this list ever goes.
PROMISED = """
ChatMessage Message Messages MessageType ModelResponse Info State SamplingArgs RewardFunc
JsonPrimitive ChatCompletion ChatCompletionMessageParam ChatCompletionToolParam ChatCompletionMessageToolCall
ChatCompletionRole Completion FunctionParameters FunctionDefinition GenerateInputs
GenerateOutputs RolloutScore RolloutScores ProcessedOutputs maybe_await sanitize_tool_calls
messages_to_printable cleanup_messages print_prompt_completions_sample setup_logging Parser
Check Explanation checks_table ThinkParser extract_boxed_answer extract_hash_answer
THINK_BOXED_SYSTEM_PROMPT BOXED_SYSTEM_PROMPT XMLParser BoxedParser ThinkBoxedParser
OneAnswerParser Argument Command BASH_COMMAND command_docs FormatError
FunctionCallingFormatError ActionParser ActionOnlyParser ThoughtActionParser
XMLThoughtActionParser EditFormat Identity BashCodeBlockParser SingleBashCodeBlockParser
XMLFunctionCallingParser FunctionCallingParser JsonParser ParseFunction action_parser
StructuralTag StructuralTagItem AnyTextFormat ConstStringFormat JSONSchemaFormat
GrammarFormat RegexFormat QwenXMLParameterFormat OrFormat SequenceFormat TagFormat
TriggeredTagsFormat TagsWithSeparatorFormat xml_tag think_tag json_tag regex_tag tools_tag
action_tag Verifier VerifyResult ChainedVerifier get_verifier register_verifier
known_verifiers verifier_from_config JSONStructureVerifier JSONSchemaVerifier
RegexFormatVerifier XMLFormatVerifier BLEUVerifier StructuralTagVerifier Rubric RubricGroup
EnvGroupRubric JudgeRubric DEFAULT_JUDGE_PROMPT JudgeClient lcs_ratio MathRubric ToolRubric
model_path get_model get_tokenizer get_model_and_tokenizer EmbeddedEngine HTTPClient
VLLMClient connect Endpoints start_vllm plan_memory VLLMServer ServerError serve Served load_results
read_rollouts results_dataset results_frame standard_error pass_rates paired_difference
Environment MultiTurnEnv SingleTurnEnv ActionEnv convert_func_to_oai_tool run_python Limits
sandbox_guards python calculator search search_ddg ask ToolEnv StatefulToolEnv EnvGroup
TextArenaEnv ReasoningGymEnv load_environment load_example_dataset rehearse
ScriptedClient tool_call GRPOConfig grpo_defaults lora_defaults RunControl RunState
launch_config GRPOTrainer to_trl sft_dataset inspect_text survey_completions FormatInspector
RolloutExplorer TrainingDashboard PolicySlider evaluate_checkpoint eval_environment ReportMeta
compute_summary write_html_report write_html_comparison
""".split()

BLOCK = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name={package!r})
sys.meta_path.insert(0, Blocked())
"""


def python(*arguments: str, executable: str | Path = sys.executable, cwd: Path = ROOT) -> str:
    """Run Python and return what it prints; an assertion error with its complaint if it fails."""
    done = subprocess.run([executable, *arguments], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_import_is_quick() -> None:
    timed = (
        "import time; t = time.process_time(); import verifiers_nb; print(time.process_time() - t)"
    )
    assert float(python("-c", timed)) < 1  # 0.1 on a quiet machine


def test_import_is_light() -> None:
    loaded = python("-c", "import verifiers_nb, sys; print(*sys.modules)").split()
    assert not set(HEAVY) & set(loaded)


@pytest.mark.parametrize("name", sorted({*NAMES, *PROMISED}))
def test_public_name(name: str) -> None:
    assert getattr(vf, name) is not None


def test_every_name_is_listed_or_in_a_namespace_that_is() -> None:
    grouped = {name for names in vf._NAMESPACES.values() for name in names.split()}
    assert {*NAMES} == grouped | ({*NAMES} & {*dir(vf)})
    assert {*vf._NAMESPACES} <= {*dir(vf)} and len(dir(vf)) <= 70


@pytest.mark.parametrize("space", sorted(vf._NAMESPACES))
def test_namespace(space: str) -> None:
    for name in vf._NAMESPACES[space].split():
        assert getattr(getattr(vf, space), name) == getattr(vf, name)
    if space != "types":  # which is the module
        assert dir(getattr(vf, space)) == sorted(vf._NAMESPACES[space].split())


@pytest.mark.parametrize("before", ["", "vf.State;", "import verifiers_nb.types;", "vf.formats;"])
def test_types_is_its_module(before: str) -> None:
    """Whatever was imported before, `vf.types` is the module."""
    python("-c", f"import verifiers_nb as vf; {before} vf.types.State; vf.types.__file__")


def test_a_namespace_without_the_name_says_what_it_has() -> None:
    with pytest.raises(AttributeError, match="verifiers_nb.tools has no 'hammer'; it has .*python"):
        _ = vf.tools.hammer


@pytest.mark.parametrize("name", MODULES)
def test_module(name: str) -> None:
    importlib.import_module(name)


def imported(path: Path) -> set[str]:
    """Return the packages that a module imports, at its top or in functions, without the standard library."""
    nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.module and not n.level]
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"verifiers_nb"}


def test_each_imported_package_is_required() -> None:
    """By settings.ini, or by a package that is: what comes from further away may stop coming."""
    ini = ConfigParser(delimiters=["="])
    ini.read(ROOT / "settings.ini", encoding="utf-8")
    options = {k: v.split() for k, v in ini["DEFAULT"].items() if k.endswith("requirements")}
    own = {canonicalize_name(Requirement(each).name) for each in chain(*options.values())}
    known = {canonicalize_name(each.name): each for each in metadata.distributions()}
    needed = chain(*(known[name].requires or [] for name in own & {*known}))
    always = [each for each in needed if "extra ==" not in each]
    there = own | {canonicalize_name(Requirement(each).name) for each in always}
    there.add("antlr4-python3-runtime")  # of math-verify's own parser of LaTeX
    there |= {"httpx2", "mcp-types"}  # of mcp, which may not be installed
    brings = metadata.packages_distributions()
    packages = set().union(*map(imported, (ROOT / "verifiers_nb").rglob("*.py")))
    missing = {
        package
        for package in packages
        if not there & {canonicalize_name(name) for name in brings.get(package, [package])}
    }
    assert not missing


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = vf.no_such_thing


def test_missing_training_packages_name_the_extra() -> None:
    """Without torch a name either works or says what to install, and nothing else happens."""
    check = """
import verifiers_nb as vf
missing = []
for name in vf._HOME:
    try:
        getattr(vf, name)
    except ImportError as error:
        assert "pip install 'verifiers_nb[train]'" in str(error), (name, error)
        missing.append(name)
print(*missing)
"""
    missing = python("-c", BLOCK.format(package="torch") + check).split()
    assert "GRPOTrainer" in missing
    assert not {"XMLParser", "Rubric", "Environment", "Messages"} & set(missing)


def test_demo_without_its_tools_says_what_to_install() -> None:
    code = (
        BLOCK.format(package="nbclient")
        + "from verifiers_nb.cli.demo import main; sys.exit(main([]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "needs nbclient: pip install" in done.stderr


def test_an_environment_without_its_python_is_made_again(tmp_path: Path) -> None:
    """The stamp alone does not say that an environment is ready: its Python may be gone."""
    (tmp_path / "tools").mkdir()
    inputs = ["setup.py", "pyproject.toml", "constraints.txt", "tools/install.py"]
    for name in ("Makefile", "settings.ini", *inputs):
        shutil.copy(ROOT / name, tmp_path / name)

    def plan() -> str:
        return subprocess.check_output(["make", "-n", "install"], cwd=tmp_path, text=True)

    (stamp,) = re.findall(r"touch (\S+installed-\d+)", plan())
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    (tmp_path / stamp).touch()
    python.symlink_to(sys.executable)
    assert "tools/install.py" not in plan()
    python.unlink()
    python.symlink_to(tmp_path / "gone")
    assert "tools/install.py" in plan()
