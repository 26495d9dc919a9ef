"""What an installation promises: a light import, complete names, and a wheel that works on its own."""

from __future__ import annotations

import importlib
import pkgutil
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import verifiers_nb as vf

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ["torch", "transformers", "vllm", "xgrammar", "ipywidgets", "plotly", "datasets", "openai"]
MODULES = sorted(m.name for m in pkgutil.walk_packages(vf.__path__, "verifiers_nb."))
NAMES = sorted(vf._HOME)

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
    assert min(float(python("-c", timed)) for _ in range(5)) <= 0.3


def test_import_is_light() -> None:
    loaded = python("-c", "import verifiers_nb, sys; print(*sys.modules)").split()
    assert not set(HEAVY) & set(loaded)


@pytest.mark.parametrize("name", NAMES)
def test_public_name(name: str) -> None:
    assert getattr(vf, name) is not None
    assert name in dir(vf)


@pytest.mark.parametrize("name", MODULES)
def test_module(name: str) -> None:
    importlib.import_module(name)


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
    code = BLOCK.format(package="nbclient") + "from verifiers_nb.cli.demo import main; main([])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "nbclient is missing: pip install" in done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy, so that no older build can lend it a file."""
    source = tmp_path_factory.mktemp("source")
    for name in ("settings.ini", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "verifiers_nb", source / "verifiers_nb", ignore=skip)
    python("-m", "build", "--wheel", "--no-isolation", cwd=source)
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """Return the Python of a new environment with nothing but pip."""
    python("-m", "venv", str(tmp_path / "env"))
    return tmp_path / "env" / "bin" / "python"


def test_wheel_is_complete(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    package = [p for p in (ROOT / "verifiers_nb").rglob("*") if p.is_file()]
    expected = {p.relative_to(ROOT).as_posix() for p in package if "__pycache__" not in p.parts}
    assert expected <= inside
    assert {"verifiers_nb/py.typed", "verifiers_nb/models/adder-1m/model.safetensors"} <= inside
    assert not [name for name in inside if name.startswith(("nbs/", "tests/", "tools/"))]


def test_wheel_imports_alone(wheel: Path, empty: Path, tmp_path: Path) -> None:
    python("-m", "pip", "install", "-q", "--no-deps", str(wheel), executable=empty)
    version = python(
        "-c", "import verifiers_nb as vf; print(vf.__version__)", executable=empty, cwd=tmp_path
    )
    assert version.split() == [vf.__version__]


def test_wheel_installs_with_its_dependencies(wheel: Path, empty: Path, tmp_path: Path) -> None:
    reach = [empty, "-m", "pip", "download", "-q", "--no-deps", "--dest", tmp_path, "tqdm"]
    if subprocess.run(reach, capture_output=True).returncode:
        pytest.skip("the package registry cannot be reached over the network")
    constraints = str(ROOT / "constraints.txt")
    python("-m", "pip", "install", "-q", "-c", constraints, str(wheel), executable=empty)
    use = "import verifiers_nb as vf; print(vf.XMLParser(['answer']).parse('<answer>42</answer>').answer)"
    assert python("-c", use, executable=empty, cwd=tmp_path).split() == ["42"]
