"""The notebooks in the order of reading, with what each says of itself."""

from __future__ import annotations

import re
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]

# A room is a folder of nbs; the notebooks beside the index are the foundations. The order is that of
# reading and of dependency: tests/test_layout.py holds every import to it.
ROOMS = {
    "tutorials": (
        "Tutorials",
        "Start here: a quarter of an hour each, and a minute or two to run.",
    ),
    "support": (
        "Support",
        "Plumbing that every room may use: threads, processes, sandboxes. Open it when you need it.",
    ),
    "foundations": ("Foundations", "What flows through the library: messages, rollouts, results."),
    "parsers": ("Parsers", "From text to fields or actions, and back: the format contract."),
    "verifiers": ("Verifiers", "Is this text JSON, does it match, how close is it, and why not?"),
    "rubrics": ("Rubrics", "From a completion to named scores and one reward."),
    "inference": (
        "Inference",
        "Who answers: vLLM, several servers, or the engine in this process.",
    ),
    "envs": ("Environments", "How rollouts are played, stored, resumed and read."),
    "environments": (
        "Ready environments",
        "Load one by its name; each has a sample for offline use.",
    ),
    "trainer": ("Trainer", "GRPO on a LoRA adapter: advantages, loss, pipeline, checkpoints."),
    "bridges": ("Bridges", "Environments and rollouts in the form that other trainers take."),
    "widgets": ("Widgets", "Look at rollouts, formats and runs, and steer a run."),
    "cli": ("Commands", "Evaluate, train, browse and report from a shell."),
    "benchmarks": ("Benchmarks", "What was measured, and how to measure it again."),
}

# What explains everything: a newcomer reads these modules' notebooks in this order. All others are companions.
CORE = (
    "types",
    *("parsers.base", "parsers.think", "parsers.xml"),
    *("rubrics.rubric", "rubrics.group"),
    *("inference.client", "inference.tokens"),
    *("envs.prompts", "envs.rollouts", "envs.environment", "envs.multiturn"),
    *("trainer.advantage", "trainer.loss", "trainer.config"),
    *("trainer.shared_prompts", "trainer.batching", "trainer.logprobs"),
    *("trainer.objective", "trainer.samples", "trainer.loop"),
)
CORE_TITLE = "The core"
CORE_PURPOSE = "Read these in order, and you understand the rest."


@dataclass(frozen=True, slots=True)
class Notebook:
    """A notebook by its path in nbs; `module`: what it exports, "" for none."""

    path: Path
    module: str
    title: str
    summary: str


def setting(name: str) -> str:
    """Return a value of settings.ini."""
    ini = ConfigParser(delimiters=["="])
    ini.read(ROOT / "settings.ini", encoding="utf-8")
    return ini["DEFAULT"][name]


def repository(path: str) -> str:
    """Return the address of a file of the repository."""
    return f"{setting('git_url')}/blob/{setting('branch')}/{path}"


def read_cells(path: Path) -> list[NotebookNode]:
    """Return the cells of a notebook. Its form is not asked: it is nbdev's, and that takes longer than reading."""
    return nbformat.v4.reads(path.read_text(encoding="utf-8")).cells


def describe(path: Path, nbs: Path) -> Notebook:
    """Read what a notebook says of itself."""
    cells = read_cells(nbs / path)
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    first = cells[0].source if cells else ""
    found = [
        re.search(pattern, text, flags=re.M)
        for pattern, text in (
            (r"^#\| *default_exp +(\S+)", code),
            (r"^# (.+)", first),
            (r"^> (.+)", first),
        )
    ]
    return Notebook(path, *(match[1] if match else "" for match in found))


def read_rooms(nbs: Path) -> dict[str, list[Notebook]]:
    """Return the notebooks of each room that has any, without the index; a folder of no room is an error."""
    rooms: dict[str, list[Notebook]] = {room: [] for room in ROOMS}
    for source in sorted(nbs.rglob("*.ipynb")):
        path = source.relative_to(nbs)
        if {".ipynb_checkpoints", "outputs"} & set(path.parts) or path.name == "index.ipynb":
            continue
        room = path.parts[0] if len(path.parts) > 1 else "foundations"
        if room not in rooms:
            raise ValueError(f"nbs/{path}: tools/rooms.py does not say where {room} is to be read")
        rooms[room].append(describe(path, nbs))
    return {room: notebooks for room, notebooks in rooms.items() if notebooks}


def read_core(rooms: dict[str, list[Notebook]]) -> list[Notebook]:
    """Return the notebooks of the core in the order of reading."""
    found = {each.module: each for room in rooms.values() for each in room if each.module}
    return [found[module] for module in CORE if module in found]
