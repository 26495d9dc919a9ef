"""The tutorials' first cell, in an environment that looks like Colab: it installs the library and leaves PyTorch alone."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import nbformat
import pytest
from colab import BADGE, FIRST, SETUP, badge, tutorials
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from rooms import setting
from wheels import ROOT, EmptyEnvironment, build_wheel, run, succeed

LOOK = "from importlib.metadata import version; print(version('torch'))"
USE = """
import torch
import verifiers_nb as vf
print(torch.__version__, vf.XMLParser(["answer"]).parse("<answer>42</answer>").answer)
print(vf.GRPOTrainer.__name__, type(plotly.io.renderers["plotly_mimetype"]).__name__, output.enabled)
"""
# Colab's module, as far as the cell uses it, and its kernel, which has imported it.
OUTPUT = "enabled = 0\ndef enable_custom_widget_manager():\n    global enabled\n    enabled += 1\n"


@pytest.mark.parametrize("path", tutorials(), ids=lambda path: path.stem)
def test_every_tutorial_begins_alike(path: Path) -> None:
    title, link, setup, *rest = nbformat.read(path, 4).cells
    assert title.source.startswith("# ")
    assert link.source == badge(path)
    assert setup.source == SETUP and not setup.outputs
    assert not [cell for cell in rest if BADGE in cell.source or FIRST in cell.source]


def test_elsewhere_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("something was started"))
    space: dict[str, object] = {}
    exec(SETUP, space)
    assert set(space) <= {"__builtins__", "sys"}


class Colab:
    """An environment with PyTorch, a kernel, and the module that Colab's kernels have imported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wheels = folder / "wheels"
        self.wheels.mkdir(parents=True)
        self.environment = EmptyEnvironment(folder / "env")
        (packages,) = (folder / "env/lib").glob("python*/site-packages")
        (packages / "google/colab").mkdir(parents=True)
        (packages / "google/colab/__init__.py").touch()
        (packages / "google/colab/output.py").write_text(OUTPUT)
        tested = (ROOT / "constraints.txt").read_text().splitlines(keepends=True)
        others = [
            line for line in tested if not line.startswith("torch==")
        ]  # that is the cell's job
        (folder / "constraints.txt").write_text("".join(others))

    def torch(self) -> str:
        """Return the version of PyTorch that is installed."""
        return self.environment(LOOK, cwd=self.folder).strip()

    def run(self, *cells: str, before: str = "", **env: str) -> str:
        """Run cells in a kernel of the environment, after code of the kernel's own; return what they print."""
        startup = self.folder / "ipython/profile_default/startup"
        startup.mkdir(parents=True, exist_ok=True)
        (startup / "00.py").write_text(f"import google.colab\n{before}")
        spec = self.folder / "kernels/colab"
        spec.mkdir(parents=True, exist_ok=True)
        argv = [str(self.environment.python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        variables = {
            "PYTHONPATH": "",
            "IPYTHONDIR": str(self.folder / "ipython"),
            "PIP_CONSTRAINT": str(self.folder / "constraints.txt"),
            **env,
        }
        kernel = {"argv": argv, "display_name": "Colab", "language": "python", "env": variables}
        (spec / "kernel.json").write_text(json.dumps(kernel))
        specs = KernelSpecManager(kernel_dirs=[str(spec.parent)])
        manager = AsyncKernelManager(kernel_name="colab", kernel_spec_manager=specs)
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
        elsewhere = {"metadata": {"path": str(self.folder)}}  # here this checkout would be imported
        NotebookClient(notebook, km=manager, timeout=600, resources=elsewhere).execute()
        outputs = [output for cell in notebook.cells for output in cell.outputs]
        return "".join(output.get("text", "") for output in outputs)


def small_wheel(
    folder: Path, name: str, version: str, *requires: str, module: str | None = None
) -> None:
    """Write a wheel that brings what it requires and, if given, a module vllm.engine.arg_utils."""
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
        if module is not None:
            wheel.writestr("vllm/engine/arg_utils.py", module)


@pytest.fixture(scope="module")
def colab(tmp_path_factory: pytest.TempPathFactory) -> Colab:
    """Return the environment, with what Colab brings and the cell's job needs."""
    made = Colab(tmp_path_factory.mktemp("colab"))
    brings = ["torch", "ipykernel", "pip", "numpy", "pandas", "transformers", "accelerate", "peft"]
    if (done := made.environment.install(*brings)).returncode:
        pytest.skip(f"the package registry cannot be reached: {done.stderr[-300:]}")
    source = tmp_path_factory.mktemp("source")
    wheel = build_wheel(source)
    wheel.rename(made.wheels / wheel.name)
    return made


def find_links(colab: Colab) -> str:
    """Return where pip finds the wheels of a test, besides where it looks anyway."""
    asked = run(sys.executable, "-m", "pip", "config", "get", "global.find-links")
    return f"{colab.wheels} {asked.stdout.strip()}".strip()


def test_it_installs_beside_torch(colab: Colab) -> None:
    before = colab.torch()
    printed = colab.run(SETUP, USE, PIP_FIND_LINKS=find_links(colab))
    assert printed.split()[-5:] == [before, "42", "GRPOTrainer", "ColabRenderer", "1"], printed
    assert colab.torch() == before


def test_an_index_without_it(colab: Colab, tmp_path: Path) -> None:
    """With the real pip and git: what is installed is the branch of the notebook, not the repository's latest."""
    clone = tmp_path / "repository"
    git = ("git", "-C", clone, "-c", "user.name=Test", "-c", "user.email=test@example.com")
    succeed("git", "clone", "-q", ROOT, clone)
    for branch in (setting("branch"), "another"):
        with (clone / "verifiers_nb/__init__.py").open("a") as module:
            module.write(f"BRANCH = {branch!r}\n")
        succeed(*git, "checkout", "-q", "-B", branch)
        succeed(*git, "commit", "-qam", branch)
    needs = [*setting("requirements").split(), *setting("train_requirements").split()]
    done = colab.environment.install("setuptools", "wheel", *needs)
    assert done.returncode == 0, done.stderr
    pip = (colab.environment.python, "-m", "pip")
    run(*pip, "uninstall", "-q", "-y", "verifiers_nb")
    (tmp_path / "index").mkdir()
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "index")}
    offline["PIP_NO_BUILD_ISOLATION"] = "false"  # as pip reads it, this turns isolation off
    at_home = {"GIT_CONFIG_KEY_0": f"url.file://{clone}.insteadOf", "GIT_CONFIG_COUNT": "1"}
    at_home["GIT_CONFIG_VALUE_0"] = setting("git_url")
    printed = colab.run(SETUP, USE, "print(vf.BRANCH)", **offline, **at_home)
    assert printed.split()[-1] == setting("branch"), printed
    run(*pip, "uninstall", "-q", "-y", "verifiers_nb")


# What the kernel does first where there is a GPU.
GPU = "import torch\ntorch.cuda.is_available = lambda: True\n"


def offer_vllm(colab: Colab, wants: str, module: str = "") -> dict[str, str]:
    """Have pip know only a vLLM that wants a certain PyTorch, and a newer PyTorch."""
    for wheel in colab.wheels.glob("vllm-*"):
        wheel.unlink()
    small_wheel(colab.wheels, "torch", "99.0")
    small_wheel(colab.wheels, "vllm", "99.0", wants, module=module)
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(colab.wheels)}


def test_without_its_constraint_torch_would_be_exchanged(colab: Colab) -> None:
    """So that the tests around this one can fail."""
    careless = SETUP.replace('"-c", "/tmp/kept.txt"', '"--dry-run"')
    log = colab.folder / "pip.log"
    colab.run(careless, before=GPU, PIP_LOG=str(log), **offer_vllm(colab, "torch==99.0"))
    assert "Would install" in log.read_text() and "torch-99.0" in log.read_text()


OTHER_ABI = "raise ImportError('vllm/_C.abi3.so: undefined symbol')"


@pytest.mark.parametrize(
    ("wants", "module"), [("torch==99.0", ""), ("torch", OTHER_ABI), ("torch", "")]
)
def test_vllm_comes_if_it_runs_beside_the_torch_that_is_there(
    colab: Colab, wants: str, module: str
) -> None:
    """With a GPU, vLLM is tried first; one that wants, or was built for, another PyTorch is done without."""
    before, settings = colab.torch(), offer_vllm(colab, wants, module)
    printed = colab.run(SETUP, "import verifiers_nb", before=GPU, **settings)
    assert colab.torch() == before
    installed = run(colab.environment.python, "-m", "pip", "show", "-q", "vllm").returncode == 0
    works = (wants, module) == ("torch", "")
    assert installed == works, printed
    told = "the embedded engine answers, and takes longer"
    assert (told in printed) == (not works), printed


class Pip:
    """What the cell calls in place of `subprocess.run`: an installer that finds packages in some places only."""

    def __init__(self, *found: str) -> None:
        self.found, self.wanted = found, list[str]()

    def __call__(self, command: list[str], **_: object) -> SimpleNamespace:
        if "install" not in command:
            return SimpleNamespace(returncode=0)
        self.wanted.append(command[-1])
        return SimpleNamespace(returncode=int(command[-1] not in self.found))


INDEX = "verifiers_nb[{}]"
REPOSITORY = f"verifiers_nb[{{}}] @ git+{setting('git_url')}@{setting('branch')}"


@pytest.mark.parametrize("place", [INDEX, REPOSITORY])
@pytest.mark.parametrize("extras", ["train,vllm", "train"])
def test_before_the_index_has_it_the_repository_does(
    monkeypatch: pytest.MonkeyPatch, place: str, extras: str
) -> None:
    """In the version that the notebook is in; vLLM is done without before the library is."""
    colab, output = ModuleType("google.colab"), ModuleType("google.colab.output")
    vars(output)["enable_custom_widget_manager"] = lambda: None
    vars(colab)["output"] = output
    for module in (colab, output):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("torch.cuda.is_available", lambda: extras == "train,vllm")
    pip = Pip(place.format(extras))
    monkeypatch.setattr("subprocess.run", pip)
    exec(SETUP, {})
    assert pip.wanted[-1] == place.format(extras)
    assert (INDEX.format(extras) in pip.wanted) and len(pip.wanted) <= 2
    monkeypatch.setattr("subprocess.run", Pip())
    with pytest.raises(SystemExit, match="could not be installed"):
        exec(SETUP, {})
