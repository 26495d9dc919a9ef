"""The wheel in empty environments: with the core alone and with each extra, it works or says what to install."""

from __future__ import annotations

import sys
import zipfile
from configparser import ConfigParser
from email.parser import Parser
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from install import pip_settings
from wheels import ROOT, EmptyEnvironment, build_wheel, run

import verifiers_nb as vf

COMMANDS = sorted(
    each.name
    for each in entry_points(group="console_scripts")
    if each.value.startswith("verifiers_nb.")
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel."""
    return build_wheel(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> EmptyEnvironment:
    """Return an environment; skip the tests where the registry can't be reached."""
    made = EmptyEnvironment(tmp_path_factory.mktemp("made") / "env")
    if made.install("tqdm").returncode:
        pytest.skip("the package registry cannot be reached over the network")
    return made


def environment(made: EmptyEnvironment, package: str) -> EmptyEnvironment:
    """Return an environment with a package and what it needs, but nothing else; what stays in it stays compiled."""
    done = made.install("--exact", package)
    assert done.returncode == 0, done.stderr[-3000:]
    return made


def test_wheel_is_complete(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    package = [p for p in (ROOT / "verifiers_nb").rglob("*") if p.is_file()]
    expected = {p.relative_to(ROOT).as_posix() for p in package if "__pycache__" not in p.parts}
    assert expected - inside == {"verifiers_nb/_modidx.py"}
    assert {"verifiers_nb/py.typed", "verifiers_nb/models/adder-1m/model.safetensors"} <= inside
    assert not [name for name in inside if name.startswith(("nbs/", "tests/", "tools/", "docs/"))]


def test_wheel_names_its_extras(wheel: Path) -> None:
    ini = ConfigParser(delimiters=["="])
    ini.read(ROOT / "settings.ini", encoding="utf-8")
    suffix = "_requirements"
    extras = {name.removesuffix(suffix) for name in ini["DEFAULT"] if name.endswith(suffix)}
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode())
    assert (
        set(metadata.get_all("Provides-Extra", []))
        == extras
        == {"train", "envs", "vllm", "tinker", "mcp", "dev"}
    )


def test_wheel_imports_alone(wheel: Path, tmp_path: Path) -> None:
    empty = EmptyEnvironment(tmp_path / "env")
    assert empty.install("--no-deps", wheel).returncode == 0
    version = empty("import verifiers_nb as vf; print(vf.__version__)", cwd=tmp_path)
    assert version.split() == [vf.__version__]


WITHOUT_EXTRAS = """
import verifiers_nb as vf
from datasets import Dataset
parser = vf.XMLParser(["answer"])
rubric = vf.Rubric([parser.get_format_reward_func()])
data = Dataset.from_dict({"question": ["What is 6 * 7?"], "answer": ["42"]})
env = vf.SingleTurnEnv(dataset=data, parser=parser, rubric=rubric)
script = vf.ScriptedClient("<answer>42</answer>")
print(env.generate(env.get_dataset(), script, "script").reward)
wanted = {
    "train": [
        lambda: vf.GRPOTrainer,
        lambda: vf.EmbeddedEngine,
        lambda: vf.StructuralTag,
        lambda: parser.to_structural_tag(),
        lambda: vf.get_model("verifiers_nb/adder-1m"),
        lambda: vf.get_tokenizer("verifiers_nb/adder-1m"),
        lambda: vf.serve("verifiers_nb/adder-1m"),
        lambda: vf.plan_memory("verifiers_nb/adder-1m", free=15),
        lambda: vf.get_verifier("structural_tag")(parser),
    ],
    "envs": [
        lambda: vf.TextArenaEnv(),
        lambda: vf.ReasoningGymEnv("leg_counting"),
        lambda: vf.load_environment("wordle"),
        lambda: vf.search_ddg("emma"),
        lambda: vf.get_verifier("bleu")(references=["a"]).verify("a"),
    ],
    "vllm": [lambda: vf.start_vllm("verifiers_nb/adder-1m")],
}
for extra, calls in wanted.items():
    for call in calls:
        try:
            call()
        except (ImportError, RuntimeError) as error:
            assert f"pip install 'verifiers_nb[{extra}]'" in str(error), (extra, error)
        else:
            raise AssertionError(f"worked without {extra}")
"""


# Each command as it is installed, in one process.
HELP = """
import io, runpy, sys
from contextlib import redirect_stdout
from pathlib import Path
for name in NAMES:
    shown, script = io.StringIO(), str(Path(sys.executable).with_name(name))
    sys.argv = [script, "--help"]
    try:
        with redirect_stdout(shown):
            runpy.run_path(script, run_name="__main__")
    except SystemExit as error:
        assert not error.code, (name, error)
    assert name in shown.getvalue(), (name, shown.getvalue())
"""


def test_core_alone(wheel: Path, made: EmptyEnvironment, tmp_path: Path) -> None:
    core = environment(made, str(wheel))
    assert core(WITHOUT_EXTRAS, cwd=tmp_path).split() == ["[1.0]"]
    core(f"NAMES = {COMMANDS}\n{HELP}", cwd=tmp_path)
    for call in (["vf-eval", "addition", "-n", "1"], ["vf-train", "addition"]):
        refused = core.command(*call, cwd=tmp_path)
        assert refused.returncode and "pip install 'verifiers_nb[train]'" in refused.stderr


def test_train(wheel: Path, made: EmptyEnvironment, tmp_path: Path) -> None:
    train = environment(made, f"{wheel}[train]")
    use = "import verifiers_nb as vf; print(vf.GRPOTrainer.__name__, vf.StructuralTag.__name__)"
    assert train(use, cwd=tmp_path).split() == ["GRPOTrainer", "StructuralTag"]
    evaluated = train.command("vf-eval", "addition", "-n", "2", "-r", "2", "--json", cwd=tmp_path)
    assert evaluated.returncode == 0, evaluated.stderr
    assert '"reward"' in evaluated.stdout
    shown = train.command("vf-train", "--help", cwd=tmp_path)
    assert shown.returncode == 0 and "--learning-rate" in shown.stdout, shown.stderr


def test_envs(wheel: Path, made: EmptyEnvironment, tmp_path: Path) -> None:
    """All ready environments find their packages, and a game can be set up."""
    envs = environment(made, f"{wheel}[envs]")
    use = """
from importlib.util import find_spec
import verifiers_nb as vf
print([card.id for card in vf.list_environments() if not all(map(find_spec, card.packages))])
print(vf.TextArenaEnv(words=["crane"], num_train_examples=1).get_dataset().num_rows)
print(vf.get_verifier("bleu")(references=["a b c d"]).verify("a b c d").reward)
"""
    assert envs(use, cwd=tmp_path).split() == ["[]", "1", "1.0"]


def test_dev(wheel: Path, made: EmptyEnvironment, tmp_path: Path) -> None:
    dev = environment(made, f"{wheel}[dev]")
    use = "import jupyterlab, nbclient, nbdev.test, pytest, sphinx, trl; print('all there')"
    assert dev(use, cwd=tmp_path).split() == ["all", "there"]


def test_vllm_resolves(wheel: Path, made: EmptyEnvironment) -> None:
    """Its gigabytes are for machines with a GPU; here only the versions are chosen."""
    done = run(
        *(sys.executable, "-m", "uv", "pip", "install", "--dry-run", "--python", made.python),
        *("--index-strategy", "unsafe-best-match", f"{wheel}[vllm]"),
        env=pip_settings(),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "+ vllm==" in done.stderr
