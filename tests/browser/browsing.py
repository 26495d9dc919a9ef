"""What the browser tests do with a running JupyterLab: open a notebook, run it, keep pictures of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import forked
import nbformat
from nbformat.v4 import new_code_cell, new_notebook

from .everything import BEYOND

SHOTS = Path(__file__).resolve().parents[2] / "outputs" / "browser"  # kept to be looked at
WINDOW = {"width": 1280, "height": 1600}
# JupyterLab's own: a check of what arrives while a page is being left; what it asked a kernel that has ended; a timer of
# a notebook that was closed, or what its widgets ask its kernel; a connection to a kernel that died. anywidget's: a
# script that was late, for which our views ask again.
NOT_OURS = (
    "Kernel message validation",
    "Canceled future",
    "of null (reading 'promise')",
    "of null (reading 'kernel')",
    "[anywidget] Failed to initialize model",
    "Kernel connection disconnected",
)
SETTINGS = {
    # Cells outside the window stay in the page, where a test can see them.
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}
LAST = "every cell has run"
# The only one that is open. The shell's current widget may still be one that was closed.
NOTEBOOK = "[...jupyterapp.shell.widgets('main')].find(each => each.context)"
KERNEL = f"{NOTEBOOK}.context.sessionContext.session.kernel"
OUTPUTS = f"""[...{NOTEBOOK}.content.model.cells]
    .flatMap(cell => cell.outputs ? cell.outputs.toJSON() : [])"""
LIVE = ":not(.vf-kept) > .vf"  # without the pictures that are saved beside them
OUTPUT = ".jp-OutputArea-output:not(:has(> .vf-kept))"  # without the pictures of live widgets
READY = f"""path => {{
    const notebook = {NOTEBOOK}, {{ shell }} = jupyterapp;
    if (notebook?.context.path !== path) return false;
    if (shell.currentWidget !== notebook) shell.activateById(notebook.id);
    return shell.currentWidget === notebook && notebook.context.sessionContext.session?.kernel?.status === "idle";
}}"""
CLOSE = """async () => {
    for (const each of [...globalThis.jupyterapp?.shell.widgets('main') ?? []]) {
        const isBusy = () => each.context?.sessionContext.isReady === false && !document.querySelector('.jp-Dialog');
        for (let waits = 0; isBusy() && waits < 300; waits++) await new Promise(go => setTimeout(go, 100));
        each.dispose();
    }
}"""
ENDED = f"{OUTPUTS}.some(o => o.output_type == 'error' || String(o.text).includes('{LAST}'))"


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab: what stands in `folder` opens under `url`/lab/tree/; its own files are in `home`."""

    url: str
    folder: Path
    home: Path


def wait_for(url: str, server: subprocess.Popen, log: Path, seconds: float = 120) -> None:
    """Return when `url` answers; an error with the end of the log when the server ends or is late."""
    deadline = time.monotonic() + seconds
    while server.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=10).close()
            return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")


@contextmanager
def started_lab(folder: Path, home: Path) -> Iterator[Lab]:
    """Run a JupyterLab on a folder; its own files are in `home`, away from those of the user."""
    for plugin, values in SETTINGS.items():
        path = home / "config" / "lab" / "user-settings" / f"{plugin}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    places = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "run",
    }
    options = home / "config" / "labconfig" / "page_config.json"
    options.parent.mkdir(parents=True)
    options.write_text('{"buildCheck": false, "buildAvailable": false}')  # else each load runs yarn
    env = os.environ | {name: str(home / place) for name, place in places.items()}
    env |= {"IPYTHONDIR": str(home / "ipython"), "OMP_NUM_THREADS": "1"}
    env["JUPYTER_PATH"] = forked.kernels()  # which begin where the imports have ended
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--ip=127.0.0.1",
        f"--port={port}",
    ]
    command += ["--ServerApp.port_retries=0", "--IdentityProvider.token="]
    command += ["--LabApp.expose_app_in_browser=True"]  # the page can be asked for its notebook
    command += ["--ServerApp.disable_check_xsrf=True"]  # `lab` ends the kernels
    if os.geteuid() == 0:
        command.append("--allow-root")
    log = home / "log"
    with log.open("w") as out:
        server = subprocess.Popen(
            command, cwd=folder, env=env, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        wait_for(f"http://127.0.0.1:{port}/api", server, log)
        yield Lab(f"http://127.0.0.1:{port}", folder, home)
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:  # at times an idle thread of AnyIO keeps it from ending
            server.kill()
            server.wait()


def open_notebook(lab: Lab, page, name: str) -> None:
    """Load JupyterLab with a notebook in its folder open."""
    page.goto(f"{lab.url}/lab/tree/{name}?reset")
    page.get_by_text("Python 3 (ipykernel) |").wait_for(timeout=60_000)


def close_notebooks(page) -> None:
    """Close the notebooks that are open in JupyterLab, if it is loaded, without saving them.

    Kernels that start are waited for: else JupyterLab raises an error, or asks for a kernel later.
    """
    page.evaluate(CLOSE)


def command(page, name: str, **values: str) -> None:
    """Have JupyterLab do what one of its commands does, and wait until it is done.

    What the command returns stays in the page: a notebook, written out, has half a megabyte.
    """
    page.evaluate(
        "async ([name, values]) => { await jupyterapp.commands.execute(name, values); }",
        [name, values],
    )


@contextmanager
def no_script_errors(page) -> Iterator[None]:
    """Refuse errors that the scripts of a page raise meanwhile, but for JupyterLab's own."""
    errors: list[str] = []

    def note(error) -> None:
        text = error.stack or str(error)
        if not any(each in text for each in NOT_OURS):
            errors.append(text)

    page.on("pageerror", note)
    yield
    page.remove_listener("pageerror", note)
    assert not errors, errors


def notebook_of(*sources: str, kernel: str = "python3") -> nbformat.NotebookNode:
    """Return a notebook of cells for a kernel of `forked.kernels`."""
    nb = new_notebook(cells=[new_code_cell(source) for source in sources])
    nb.metadata["kernelspec"] = {"name": kernel, "display_name": "Python 3 (ipykernel)"}
    return nb


def write_and_open(lab: Lab, page, name: str, nb: nbformat.NotebookNode) -> None:
    """Write a notebook, with a last cell that prints that all have run, and open it alone.

    Loading JupyterLab takes seconds of processor time, so a page that has it opens the notebook there.
    """
    nb.cells.append(new_code_cell(f"print('{LAST[:5]}' + '{LAST[5:]}')"))
    nbformat.write(nb, lab.folder / name)
    if page.evaluate("'jupyterapp' in globalThis"):
        close_notebooks(page)
        command(page, "docmanager:open", path=name)
    else:
        open_notebook(lab, page, name)
    page.wait_for_function(READY, arg=name, timeout=120_000, polling=200)


def start_all(lab: Lab, page, name: str, nb: nbformat.NotebookNode) -> None:
    """Write and open a notebook, and choose Run All Cells from the menu."""
    write_and_open(lab, page, name, nb)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).click()


def run_again(page) -> None:
    """Run every cell of the notebook that is shown, in the kernel that it has, and refuse any error."""
    command(page, "notebook:clear-all-cell-outputs")
    page.evaluate("void jupyterapp.commands.execute('notebook:run-all-cells')")
    wait_for_end(page)


def run_all(lab: Lab, page, name: str, nb: nbformat.NotebookNode, seconds: float = 120) -> None:
    """Run every cell of a notebook from the menu, and refuse any error."""
    start_all(lab, page, name, nb)
    wait_for_end(page, seconds)


def wait_for_end(page, seconds: float = 120) -> None:
    """Wait until every cell has run, and refuse any error."""
    page.wait_for_function(ENDED, timeout=seconds * 1000, polling=200)
    errors = [o["evalue"] for o in page.evaluate(OUTPUTS) if o["output_type"] == "error"]
    assert not errors, errors


def steps_logged(folder: Path) -> int:
    """Count the steps that a run has logged."""
    path = folder / "metrics.jsonl"
    return path.read_text().count('"reward":') if path.exists() else 0


def wait_for_steps(page, folder: Path, count: int, seconds: float = 90) -> None:
    """Wait until a run has logged so many steps; its notebook may not have ended by then."""
    deadline = time.monotonic() + seconds
    while steps_logged(folder) < count:
        assert not page.evaluate(ENDED), page.evaluate(OUTPUTS)
        assert time.monotonic() < deadline, f"{steps_logged(folder)} steps after {seconds} s"
        page.wait_for_timeout(200)


SAVE = f"""async () => {{
    const {{ context }} = {NOTEBOOK};
    for (let tries = 0; tries < 20; tries += 1) {{
        await context.save();
        if (!context.model.dirty) return true;  // a live widget's picture may have come meanwhile
    }}
    return false;
}}"""


def save(page) -> None:
    """Save the notebook that is shown."""
    assert page.evaluate(SAVE), "the notebook changes faster than it is saved"


def live_widget(page, name: str):
    """Return a widget's drawing once its kernel has answered it: before, it takes no key.

    The picture that is saved beside it has the same name.
    """
    widget = page.locator(f"[tabindex='-1'] > .vf[role=region][aria-label='{name}']")
    widget.wait_for()
    page.wait_for_function("!document.querySelector('[data-waiting]')")
    return widget


def beyond_the_edges(page) -> list[str]:
    """Return what reaches beyond a widget in outputs from narrow ones, beside other panels, to wide ones."""
    found = []
    for width in (190, 400, 700, 1200):
        narrow = f".jp-OutputArea-output {{ width: {width}px !important; flex: none !important; }}"
        style = page.add_style_tag(content=narrow)
        page.wait_for_timeout(600)  # charts are drawn again soon after
        for widget in page.locator(LIVE).all():
            name = f"{widget.get_attribute('aria-label')}, {width} px wide"
            found += [f"{name}: {each}" for each in widget.evaluate(BEYOND)]
        style.evaluate("node => node.remove()")
    return found


def picture(page, name: str, **options) -> None:
    """Keep a picture of a page, if PICTURES is set: it takes a second, and only people look at it."""
    if os.environ.get("PICTURES"):
        page.screenshot(path=SHOTS / f"{name}.png", **options)


def show(page, element, name: str, widths: Sequence[int] = (1280,)) -> None:
    """Keep pictures of an element in both of JupyterLab's themes, in windows of some widths, if PICTURES is set."""
    if not os.environ.get("PICTURES"):
        return
    SHOTS.mkdir(parents=True, exist_ok=True)
    size = page.viewport_size
    for theme in ("Dark", "Light"):
        command(page, "apputils:change-theme", theme=f"JupyterLab {theme}")
        page.locator(f"body[data-jp-theme-name='JupyterLab {theme}']").wait_for(state="attached")
        for width in widths:
            page.set_viewport_size({"width": width, "height": size["height"]})
            page.wait_for_timeout(500)  # colours and widths move to their new values
            tall = int(element.bounding_box()["height"]) + 400  # with JupyterLab's bars around it
            page.set_viewport_size({"width": width, "height": max(tall, size["height"])})
            element.screenshot(path=SHOTS / f"{name}-{width}-{theme.lower()}.png")
    page.set_viewport_size(size)
