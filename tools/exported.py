"""Say whether the modules are what the notebooks export, and the notebooks clean; --write makes them so."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
CLEAN = "from nbdev.clean import nbdev_clean; nbdev_clean()"
EXPORT = "from nbdev.doclinks import nbdev_export; nbdev_export()"
# nbdev leaves some imports absolute: those in functions, for types, and in brackets.
ABSOLUTE = re.compile(r"^( *)from verifiers_nb\b\.?([\w.]*) import", flags=re.M)


def sources(root: Path) -> dict[Path, bytes]:
    """Return the notebooks and modules under `root` by relative path."""
    paths = [*root.glob("nbs/**/*.ipynb"), *root.glob("verifiers_nb/**/*.py")]
    kept = [path for path in paths if ".ipynb_checkpoints" not in path.parts]
    return {path.relative_to(root): path.read_bytes() for path in kept}


def with_relative_imports(module: Path, root: Path) -> str:
    """Return the text of a module with every import from our package relative to it."""
    package = module.parent.relative_to(root / "verifiers_nb").parts

    def relative(found: re.Match[str]) -> str:
        target = found[2].split(".") if found[2] else []
        shared = 0
        while shared < min(len(package), len(target)) and package[shared] == target[shared]:
            shared += 1
        dots = "." * (len(package) - shared + 1)
        return f"{found[1]}from {dots}{'.'.join(target[shared:])} import"

    return ABSOLUTE.sub(relative, module.read_text(encoding="utf-8"))


def exported() -> dict[Path, bytes]:
    """Return what cleaning and exporting the notebooks gives, made in a copy without any module."""
    with TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("settings.ini", "setup.py", "pyproject.toml"):
            shutil.copy(ROOT / name, copy)
        shutil.copytree(ROOT / "nbs", copy / "nbs")
        for step in (CLEAN, EXPORT):
            subprocess.run([sys.executable, "-c", step], cwd=copy, check=True)
        for module in copy.glob("verifiers_nb/**/*.py"):
            module.write_text(with_relative_imports(module, copy), encoding="utf-8")
        return sources(copy)


def main() -> None:
    """Compare the tree with a fresh export, or with --write replace what differs."""
    ours, fresh = sources(ROOT), exported()
    stale = sorted(path for path in ours | fresh if ours.get(path) != fresh.get(path))
    if "--write" not in sys.argv and stale:
        sys.exit(
            "\n  ".join(["Notebooks and modules disagree; run make export:", *map(str, stale)])
        )
    for path in stale:
        if path in fresh:
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / path).write_bytes(fresh[path])
        else:
            (ROOT / path).unlink()


if __name__ == "__main__":
    main()
