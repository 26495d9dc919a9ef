"""In a copy of the library, an environment and a command work from a notebook and one table each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

ROOT = Path(__file__).resolve().parents[1]
FIRST = "#| export\nfrom __future__ import annotations"
ENVIRONMENT = [
    "#| export\nfrom verifiers_nb.envs.multiturn import SingleTurnEnv\n"
    "from verifiers_nb.rubrics.rubric import Rubric",
    '''#| export
def shares_letters(completion, answer):
    """Return whether the answer is in the completion."""
    return float(answer in completion[-1]["content"])''',
    '''#| export
def load_environment(word: str = "yes") -> SingleTurnEnv:
    """Make an environment that asks for a word."""
    rows = [{"question": "Well?", "answer": word}]
    return SingleTurnEnv(dataset=rows, rubric=Rubric(shares_letters))''',
]
COMMAND = [
    "#| export\nfrom verifiers_nb.cli.command import CommandParser, run_command",
    '''#| export
def main(argv=None):
    """Print a word a number of times; return 0."""
    given = CommandParser("vf-echo").parse_args(argv)
    return run_command("vf-echo", lambda: print(" ".join([given.word] * given.times)) or 0)''',
]
COMMAND_TABLE = """
[vf-echo]
main = "echo:main"
usage = "vf-echo WORD [options]"
about = "Print a word several times."
examples = "examples:\\n  vf-echo yes --times 2"

[vf-echo.flags]
word = { metavar = "WORD", help = "a word" }
"--times" = { type = "count", default = 1, metavar = "N", help = "how often it is printed" }
"""
USE = """
import contextlib, io, sys
import verifiers_nb as vf
from verifiers_nb.cli.command import main
from verifiers_nb.envs.multiturn import ScriptedClient

assert vf.load_environment("well-said").evaluate(ScriptedClient("yes"), "m").reward == [1.0]
(card,) = [card for card in vf.list_environments() if card.id == "well-said"]
assert (card.summary, card.arguments) == ("Ask for a word.", ("word: str = 'yes'",)), card

def printed(*call):
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        assert main(call) == 0
    return shown.getvalue()

assert "well-said" in printed("install", "--list")
assert printed("echo", "yes", "--times", "2") == "yes yes\\n"
assert "vf-echo       Print a word several times" in printed("--help")
assert "how often it is printed" in printed("echo", "--help")
print("both work")
"""
# What the installation and llms.txt have of the copy.
DERIVED = """
import runpy, sys
import setuptools
setuptools.setup = lambda **settings: print(*settings["entry_points"]["console_scripts"], sep="\\n")
runpy.run_path("setup.py")
sys.path.insert(0, sys.argv[1])
import llms
print(*llms.list_commands(), sep="\\n")
"""
FORGOTTEN = """
import verifiers_nb as vf
from verifiers_nb.cli.echo import main
for make in (lambda: vf.load_environment("well-said"), lambda: main(["yes"])):
    try:
        make()
    except ValueError as error:
        print(error)
"""


def write_notebook(path: Path, module: str, title: str, cells: list[str]) -> None:
    """Write a notebook of exported cells under a title and its summary."""
    head = [new_markdown_cell(title), new_code_cell(f"#| default_exp {module}")]
    body = [new_code_cell(source) for source in (FIRST, *cells)]
    path.parent.mkdir(parents=True)
    nbformat.write(new_notebook(cells=head + body), path)


def copied(folder: Path) -> Path:
    """Return a copy of the library with both notebooks, exported, and no row of a table."""
    hidden = shutil.ignore_patterns("__pycache__", "outputs")
    shutil.copytree(ROOT / "verifiers_nb", folder / "verifiers_nb", ignore=hidden)
    for name in ("settings.ini", "setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder)
    asks = folder / "nbs/environments/well_said.ipynb"
    write_notebook(asks, "environments.well_said", "# Well said\n\n> Ask for a word.", ENVIRONMENT)
    echo = folder / "nbs/cli/99_echo.ipynb"
    write_notebook(echo, "cli.echo", "# Echo\n\n> Print a word several times.", COMMAND)
    export = f"from nbdev.export import nb_export; [nb_export(n) for n in {[str(asks), str(echo)]}]"
    subprocess.run([sys.executable, "-c", export], cwd=folder, check=True)
    return folder / "verifiers_nb"


def add_rows(package: Path) -> None:
    """Add the table of the environment and that of the command."""
    table = package / "environments/data/environments.toml"
    table.write_text(table.read_text() + '\n[well_said]\ntags = ["text"]\n')
    commands = package / "cli/data/commands.toml"
    commands.write_text(commands.read_text() + COMMAND_TABLE)


def printed(folder: Path, program: str, *arguments: str) -> str:
    """Return what a program prints with the copy of the library."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_an_environment_and_a_command_are_a_notebook_and_a_table_each(tmp_path: Path) -> None:
    package = copied(tmp_path)
    environment, command = printed(tmp_path, FORGOTTEN).splitlines()
    assert "well_said has no table in verifiers_nb/environments/data/environments" in environment
    assert command.startswith(
        "vf-echo is no command yet: add a table [vf-echo] to verifiers_nb/cli"
    )
    add_rows(package)
    assert printed(tmp_path, USE) == "both work\n"
    derived = printed(tmp_path, DERIVED, str(ROOT / "tools")).splitlines()
    assert "vf-echo=verifiers_nb.cli.echo:main" in derived
    assert "- `vf-echo WORD [options]`: Print a word several times" in derived
