"""Write the public names of each `verifiers` 0.1.x, from the packages of PyPI, to `envs/data/verifiers_names.json`.

Without an argument, each release is downloaded. An argument is a folder that has their wheels.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "verifiers_nb/envs/data/verifiers_names.json"
RELEASES = (
    "0.1.0 0.1.1 0.1.2 0.1.2.post1 0.1.3 0.1.3.post0 0.1.4 0.1.5 0.1.5.post0 0.1.6 0.1.6.post0 "
    "0.1.7 0.1.7.post0 0.1.8 0.1.8.post2 0.1.9 0.1.9.post3 0.1.10 0.1.11 0.1.12 0.1.14"
).split()
Names = dict[str, set[str]]  # by module, "" is the package itself


def version_of(release: str) -> str:
    """Return the version of a release: "0.1.9" of "0.1.9.post3"."""
    return re.match(r"\d+\.\d+\.\d+", release)[0]  # type: ignore[index]


def download(release: str, folder: Path) -> Path:
    """Return the wheel of a release, from PyPI."""
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    done = subprocess.run([*pip, f"verifiers=={release}"], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"verifiers {release} can't be downloaded: {done.stderr[-300:]}")
    return folder / f"verifiers-{release}-py3-none-any.whl"


def texts_of(node: ast.expr) -> list[str]:
    """Return the texts in a list, a tuple, or the keys of a dict."""
    parts = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
    return [p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str)]


def names_defined(node: ast.stmt, sources: tuple[str, ...]) -> Iterator[str]:
    """Give the names that a statement makes public; those of `sources` count when they are imported."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if isinstance(target, ast.Name):
                yield target.id
                if target.id in ("__all__", "_LAZY_IMPORTS") and node.value:
                    yield from texts_of(node.value)
    elif isinstance(node, ast.ImportFrom):
        source = "verifiers" if node.level else (node.module or "").partition(".")[0]
        if source in sources:
            yield from (each.asname or each.name for each in node.names)
    elif isinstance(node, ast.If | ast.Try) and "TYPE_CHECKING" not in ast.dump(node):
        for part in (*node.body, *node.orelse):
            yield from names_defined(part, sources)


def names_of(wheel: Path) -> Names:
    """Return the public names of each module of a wheel; the code is read, not run."""
    found: Names = {}
    with ZipFile(wheel) as files:
        for path in files.namelist():
            if not path.startswith("verifiers/") or not path.endswith(".py"):
                continue
            parts = path.removesuffix(".py").split("/")[1:]
            is_package = parts[-1] == "__init__"
            sources = ("verifiers",) if is_package else ("openai",) if parts == ["types"] else ()
            module = ".".join(parts[:-1] if is_package else parts)
            if module.partition(".")[0] == "examples" or "._" in f".{module}":
                continue
            tree = ast.parse(files.read(path))
            names = {name for node in tree.body for name in names_defined(node, sources)}
            found[module] = {n for n in names if not n.startswith("_") and n != "*"}
    for module in [*found]:  # a folder without an `__init__` is a module, too
        while module := module.rpartition(".")[0]:
            found.setdefault(module, set())
    found[""] |= found.get("types", set()) | found.get("errors", set())  # by `import *`
    found[""] -= {module.partition(".")[0] for module in found}
    return found


def releases_in(folder: Path | None) -> Iterator[tuple[str, Names]]:
    """Give each release's names, of wheels in a folder, or downloaded."""
    with tempfile.TemporaryDirectory() as new:
        for release in RELEASES:
            name = f"verifiers-{release}-py3-none-any.whl"
            yield release, names_of(folder / name if folder else download(release, Path(new)))


def by_version(releases: Iterator[tuple[str, Names]]) -> dict[str, Names]:
    """Return the names of each version; a version has those of all its releases."""
    versions: dict[str, Names] = {}
    for release, modules in releases:
        version = versions.setdefault(version_of(release), {})
        for module, names in modules.items():
            version.setdefault(module, set()).update(names)
    return versions


def as_changes(versions: dict[str, Names]) -> dict[str, dict[str, dict[str, str]]]:
    """Return what each version added to the one before, and what it removed, by module."""
    changes: dict[str, dict[str, dict[str, str]]] = {}
    before: Names = {}
    for version, now in versions.items():
        steps = {"added": (now, before), "removed": (before, now)}
        changes[version] = {
            step: {
                module: " ".join(sorted(names - old.get(module, set())))
                for module, names in sorted(new.items())
                if module not in old or names - old[module]
            }
            for step, (new, old) in steps.items()
        }
        before = now
    return changes


def main() -> None:
    """Write the file."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else None
    changes = as_changes(by_version(releases_in(folder)))
    DATA.write_text(json.dumps(changes, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
