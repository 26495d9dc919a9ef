"""A real JupyterLab on a folder of its own, and a real browser."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from chromium import CHROMIUM, MISSING

from .browsing import WINDOW, Lab, close_notebooks, no_script_errors, notebook_of, run_all

SETTINGS = {
    # Cells outside the window stay in the page, where a test can see them.
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}


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


@pytest.fixture(scope="package")
def running_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder, home = tmp_path_factory.mktemp("lab"), tmp_path_factory.mktemp("home")
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


@pytest.fixture
def lab(running_lab: Lab) -> Iterator[Lab]:
    """Return JupyterLab; when the test is over, so are its kernels, whatever they compute."""
    yield running_lab
    sessions = f"{running_lab.url}/api/sessions"
    with urllib.request.urlopen(sessions, timeout=60) as answer:
        left = [session["id"] for session in json.load(answer)]
    for each in left:
        request = urllib.request.Request(f"{sessions}/{each}", method="DELETE")
        urllib.request.urlopen(request, timeout=60).close()


@pytest.fixture(scope="package")
def browser() -> Iterator:
    """Return the browser of all tests in this folder, and of no other: while Playwright runs, so does an event loop."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip(MISSING)
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="package")
def visitor(browser):
    """Return who opens all pages of JupyterLab: its scripts are fetched and compiled once."""
    context = browser.new_context(viewport=WINDOW)
    context.set_default_timeout(60_000)  # ms; another test may have both processors for a while
    return context


@pytest.fixture(scope="package")
def window(visitor):
    """Return the page in which the tests open their notebooks, one after the other."""
    return visitor.new_page()


@pytest.fixture
def page(window) -> Iterator:
    """Return a page without notebooks; when the test ends, its scripts must have raised no error."""
    window.set_viewport_size(WINDOW)
    window.bring_to_front()  # Chromium draws about one frame a second of a page behind another
    with no_script_errors(window):
        yield window
        close_notebooks(window)
        if window.locator(".jp-Dialog").count():
            window.goto("about:blank")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Add what the page shows to the report of a test that fails."""
    report = yield
    if report.when == "call" and report.failed and "page" in getattr(item, "funcargs", {}):
        with suppress(Exception):  # the page may have crashed
            body = item.funcargs["page"].locator("body")
            report.sections.append(("The page", body.inner_text(timeout=5000)[-5000:]))
    return report


@pytest.fixture
def notebook(lab: Lab, page) -> Callable[..., None]:
    """Return what writes a notebook of cells, opens it, and runs all of it without an error."""

    def run(name: str, *sources: str, seconds: float = 120) -> None:
        run_all(lab, page, name, notebook_of(*sources), seconds)

    return run
