"""A real JupyterLab on a folder of its own, and a real browser."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from chromium import CHROMIUM, MISSING

from .browsing import (
    WINDOW,
    Lab,
    close_notebooks,
    no_script_errors,
    notebook_of,
    run_all,
    started_lab,
)


@pytest.fixture(scope="package")
def running_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder, home = tmp_path_factory.mktemp("lab"), tmp_path_factory.mktemp("home")
    with started_lab(folder, home) as running:
        yield running


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

    def run(name: str, *sources: str, seconds: float = 120, kernel: str = "python3") -> None:
        run_all(lab, page, name, notebook_of(*sources, kernel=kernel), seconds)

    return run
