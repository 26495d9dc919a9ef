"""vf-init and vf-install as processes: a new environment is made, installed, evaluated, and passes its own test."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import forked
import nbformat
import pytest
from nbclient import NotebookClient

INSTALL = "from verifiers_nb.cli.init import install_main; raise SystemExit(install_main())"
SCORE = "from verifiers_nb.cli.eval import main; raise SystemExit(main())"
PIP = ["--", "-q", "--no-deps", "--no-build-isolation"]
ENVIRON = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")} | {
    "OMP_NUM_THREADS": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # a made environment's own test wants none
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own, in which the packages of this one are there, too, pip among them."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder)
    (site,) = folder.glob("lib/python*/site-packages")
    shared = sysconfig.get_path("purelib")
    (site / "shared.pth").write_text(f"import site; site.addsitedir({shared!r})\n")
    return folder / "bin" / "python"


def call(command: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Call a module, or vf-install, in a process that has imported."""
    start = ["-c", INSTALL] if command == "vf-install" else ["-m", command]
    return forked.run([sys.executable, *start, *arguments], cwd, ENVIRON)


def run_in(python: Path, code: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a process that has imported, with the packages of an environment, and its Python for pip."""
    site = next(python.parents[1].glob("lib/python*/site-packages"))
    begin = f"import site, sys; sys.executable = {str(python)!r}; site.addsitedir({str(site)!r})\n"
    return forked.run([sys.executable, "-c", begin + code, *arguments], cwd, ENVIRON)


def test_from_a_name_to_a_score(python: Path, tmp_path: Path) -> None:
    made = call("verifiers_nb.cli.init", "my-sums", cwd=tmp_path)
    assert made.returncode == 0 and "wrote environments/my_sums/my_sums.py" in made.stdout
    tested = call("pytest", "-q", "environments/my_sums", "-p", "no:cacheprovider", cwd=tmp_path)
    assert tested.returncode == 0, tested.stdout  # installed or not
    listed = run_in(python, INSTALL, "--list", cwd=tmp_path).stdout
    (line,) = [line for line in listed.splitlines() if line.startswith("my-sums")]
    assert "needs vf-install" in line
    done = run_in(python, INSTALL, "my-sums", *PIP, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    scored = run_in(python, SCORE, "my_sums", *"-n 2 -r 1 -s -t 40".split(), cwd=tmp_path)
    assert scored.returncode == 0, scored.stderr
    assert [*tmp_path.glob("environments/my_sums/outputs/evals/my-sums--*/*/results.jsonl")]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    source = "import verifiers_nb as vf; print(len(vf.load_environment('my-sums').get_dataset()))"
    loaded = subprocess.run(
        [python, "-c", source], cwd=elsewhere, env=ENVIRON, capture_output=True, text=True
    )
    assert loaded.stdout == "6\n"
    project = tmp_path / "environments" / "my_sums" / "pyproject.toml"
    more = '"verifiers_nb>=0.1", "missing @ file:///no/such/missing.whl"'
    project.write_text(project.read_text().replace('"verifiers_nb>=0.1"', more))
    for _ in range(2):  # the version is the same, and the first attempt failed
        failed = run_in(python, INSTALL, "my-sums", *PIP, cwd=tmp_path)
        assert failed.returncode == 2 and "missing.whl was not installed" in failed.stderr


def test_from_a_git_repository(python: Path, tmp_path: Path) -> None:
    repository = tmp_path / "tasks"
    call("verifiers_nb.cli.init", "git-sums", "-p", "tasks/environments", cwd=tmp_path)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    for arguments in (
        ["init", "-q"],
        ["checkout", "-q", "-b", "dev"],
        ["add", "."],
        ["commit", "-q", "-m", "a"],
    ):
        subprocess.run([*git, *arguments], cwd=repository, check=True)
    address = f"file://{repository}"
    done = run_in(python, INSTALL, "git-sums", "-r", address, "-b", "dev", *PIP, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    source = "import git_sums; print(git_sums.load_environment().rubric.get_reward_weights())"
    assert run_in(python, source, cwd=tmp_path).stdout == "[1.0, 0.2]\n"
    direct = f"{address}#subdirectory=environments/git_sums"
    assert run_in(python, INSTALL, direct, "-b", "dev", *PIP, cwd=tmp_path).returncode == 0
    for wrong in (["git-sums", "-r", address, "-b", "nope"], [f"file://{tmp_path}/nothing"]):
        failed = run_in(python, INSTALL, *wrong, *PIP, cwd=tmp_path)
        assert failed.returncode == 2 and "was not installed" in failed.stderr
        assert "Traceback" not in failed.stderr


# What such a package needs besides `verifiers` is a package that needs no other: pip looks at all that one needs.
OF_VERIFIERS = """[project]
name = "their-sums"
version = "0.2.0"
dependencies = ["Verifiers>=0.1.2.post0", "orjson"]

[build-system]
requires = ["setuptools>=64"]
build-backend = "setuptools.build_meta"

[tool.setuptools]
py-modules = ["their_sums"]
"""
IMPORTS_VERIFIERS = """
import verifiers as vf

def load_environment():
    return vf.SingleTurnEnv(dataset=[{"question": "1 + 1?", "answer": "2"}])
"""


def test_a_package_of_verifiers_from_a_bare_repository(python: Path, tmp_path: Path) -> None:
    """It is installed with what it needs, but for `verifiers`, and runs through the door."""
    folder = tmp_path / "work" / "environments" / "their_sums"
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(OF_VERIFIERS)
    (folder / "their_sums.py").write_text(IMPORTS_VERIFIERS)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "a"]):
        subprocess.run([*git, *arguments], cwd=tmp_path / "work", check=True)
    subprocess.run([*git, "clone", "-q", "--bare", "work", "bare.git"], cwd=tmp_path, check=True)
    pip = ["--", "-q", "--no-build-isolation", "--no-index"]  # nothing can come from an index
    given = ["their-sums", "-r", f"file://{tmp_path}/bare.git"]
    done = run_in(python, INSTALL, *given, *pip, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    play = (
        "import verifiers_nb as vf; env = vf.load_environment('their-sums')\n"
        "print(env.evaluate(vf.ScriptedClient('2'), 'm', progress=False).errors)\n"
        "from importlib.metadata import distributions\n"
        "print([n for n in ('their-sums', 'verifiers') if [*distributions(name=n)]])"
    )
    loaded = run_in(python, play, cwd=tmp_path)
    assert loaded.stdout == "[None]\n['their-sums']\n", loaded.stderr


def test_the_notebook_writes_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PATH", forked.kernels())
    done = call("verifiers_nb.cli.init", "my-sums", "--notebook", "-p", ".", cwd=tmp_path)
    assert done.returncode == 0
    folder = tmp_path / "my_sums"
    (folder / "my_sums.py").unlink()
    notebook = nbformat.read(folder / "my_sums.ipynb", 4)
    NotebookClient(notebook, resources={"metadata": {"path": str(folder)}}, timeout=300).execute()
    tested = call("pytest", "-q", "-p", "no:cacheprovider", ".", cwd=folder)
    assert tested.returncode == 0, tested.stdout


def test_what_is_there_is_kept(tmp_path: Path) -> None:
    call("verifiers_nb.cli.init", "my-sums", cwd=tmp_path)
    module = tmp_path / "environments/my_sums/my_sums.py"
    readme = module.with_name("README.md")
    module.write_text("mine")
    readme.write_text("mine")
    again = call("verifiers_nb.cli.init", "my-sums", "--rewrite-readme", cwd=tmp_path)
    assert again.returncode == 0 and module.read_text() == "mine" != readme.read_text()


@pytest.mark.parametrize(
    ("command", "arguments", "said"),
    [
        ("verifiers_nb.cli.init", ["2-sums"], "can't be the name"),
        ("verifiers_nb.cli.init", ["json"], "Python already has"),
        ("verifiers_nb.cli.init", [], "NAME"),
        ("verifiers_nb.cli.init", ["a", "-p", "file"], "Not a directory"),
        ("verifiers_nb.cli.init", ["a", "--note"], "is unknown; did you mean --notebook?"),
        ("vf-install", ["adition"], "did you mean 'addition'?"),
        ("vf-install", [], "name an environment"),
        ("vf-install", ["addition", "-b", "dev"], "--from-repo"),
    ],
)
def test_a_wrong_call_costs_one_sentence(
    tmp_path: Path, command: str, arguments: list[str], said: str
) -> None:
    (tmp_path / "file").write_text("")
    failed = call(command, *arguments, cwd=tmp_path)
    assert failed.returncode == 2 and said in failed.stderr
    assert "Traceback" not in failed.stderr and len(failed.stderr.strip().splitlines()) == 1


THEIRS = """
import verifiers as vf
from datasets import Dataset

def load_environment():
    rows = Dataset.from_dict({"question": ["2 + 2?"], "answer": ["4"]})
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([lambda completion: 1.0]))
"""
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "NAME"
version = "0.1"
dependencies = ["verifiers>=0.1.3", "orjson"]
[tool.setuptools]
py-modules = ["NAME"]
"""


def put_on_shelf(shelf: Path, name: str) -> None:
    """Write a wheel as setuptools would build it."""
    shelf.mkdir()
    about = f"{name}-0.1.dist-info"
    needs = "Requires-Dist: verifiers>=0.1.3\nRequires-Dist: orjson\n"
    inside = {
        f"{name}.py": THEIRS,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n{needs}",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*inside, f"{about}/RECORD"))
    with zipfile.ZipFile(shelf / f"{name}-0.1-py3-none-any.whl", "w") as wheel:
        for path, text in {**inside, f"{about}/RECORD": record}.items():
            wheel.writestr(path, text)


def test_a_package_for_verifiers_is_installed_without_it(python: Path, tmp_path: Path) -> None:
    """From a folder and from an index. Only local files may be asked for, so asking for `verifiers` would fail."""
    folder = tmp_path / "environments" / "theirs_folder"
    folder.mkdir(parents=True)
    (folder / "theirs_folder.py").write_text(THEIRS)
    (folder / "pyproject.toml").write_text(PROJECT.replace("NAME", "theirs_folder"))
    put_on_shelf(tmp_path / "shelf", "theirs_index")
    pip = ["--", "-q", "--no-build-isolation", "--no-index", "--find-links", "shelf"]
    for name, wanted in (("theirs_folder",) * 2, ("theirs_index", "theirs_index==0.1")):
        done = run_in(python, INSTALL, wanted, *pip, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert f"installed; try it with vf-eval {name}" in done.stdout
    play = """
import verifiers_nb as vf
for name in ("theirs_folder", "theirs_index"):
    env = vf.load_environment(name)
    print(env.evaluate(vf.ScriptedClient("4"), "m", progress=False).reward)
"""
    ran = run_in(python, play, cwd=tmp_path)
    assert ran.stdout == "[1.0]\n[1.0]\n", ran.stderr


def test_a_look_for_pip_leaves_setuptools_as_it_is() -> None:
    """Setuptools takes `find_spec("pip")` for pip at work, and then refuses to be imported (before Python 3.12)."""
    script = "from verifiers_nb.cli.init import installer; installer(); import setuptools"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
