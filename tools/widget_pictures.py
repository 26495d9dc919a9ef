"""Takes README's pictures of the five widgets in JupyterLab's two themes, on the run that `make demo-real` leaves.

    python tools/widget_pictures.py [outputs/real]

Take them again when a widget looks different, and look at them. It needs playwright, a chromium, pillow, and the folder
of a run of tutorial 113.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from PIL import Image
from playwright.sync_api import Locator, Page, sync_playwright
from rooms import ROOT

sys.path.insert(0, str(ROOT / "tests"))

from browser.browsing import command, live_widget, notebook_of, run_all, started_lab
from chromium import CHROMIUM

IMAGES = ROOT / "nbs" / "images"
TUTORIAL = ROOT / "nbs" / "tutorials" / "113_a_real_model_on_a_processor.ipynb"
WINDOW = {"width": 1280, "height": 2600}
CELLS = {
    "Format inspector": """
inspector = vf.FormatInspector(verifier, f"{run}/rollouts/step-00001.jsonl")
cut = ['"city"' in text and "}" not in text for text in inspector.survey.rows]
inspector.show(cut.index(True))
inspector.diagnose()
inspector""",
    "Rollout explorer": """
explorer = vf.RolloutExplorer(env, results=run)
explorer.show_step(3)
almost = [row.reward < 0.5 for row in explorer.table.rows]
explorer.select(sort="reward", descending=True)
explorer.show(almost.index(True))
explorer""",
    "Training dashboard": "vf.TrainingDashboard(run)",
    "Reward bench": """
bench = vf.RewardBench(run, env)
bench.weigh("right", -1.0)
bench""",
    "Policy slider": """
slider = vf.PolicySlider(run, 1, env, max_tokens=32, seed=2)
slider.wait()
slider""",
}
# The last part of a widget that its picture shows, where that isn't all of it.
ENDS = {"Training dashboard": "[data-plot]", "Format inspector": ".vf-columns"}


def environment() -> Iterator[str]:
    """Yield the cells of the tutorial that make its environment."""
    for cell in nbformat.read(TUTORIAL, 4).cells:
        is_ours = not ("google.colab" in cell.source and "pip" in cell.source)
        if cell.cell_type == "code" and is_ours and "engine" not in cell.source:
            yield cell.source
        if cell.source.startswith("env = "):
            return


def take(page: Page, widget: Locator, end: str, path: Path) -> None:
    """Save a widget from its top to the end of a part of it, or all of it, with few colours."""
    whole = widget.bounding_box()
    below = widget.locator(end).last.bounding_box() if end else whole
    assert whole and below
    clip = whole | {"height": below["y"] + below["height"] - whole["y"]}
    image = Image.open(io.BytesIO(page.screenshot(clip=clip))).convert("RGB")
    image.quantize(256, Image.Quantize.MAXCOVERAGE).save(path, "png", optimize=True)


def take_all(page: Page) -> None:
    """Take the picture of each widget on a page in both themes."""
    slider = live_widget(page, "Policy slider").get_by_role("slider", name="Step", exact=True)
    slider.press("[")  # to the last change
    page.evaluate("document.activeElement.blur()")
    for theme in ("Dark", "Light"):
        command(page, "apputils:change-theme", theme=f"JupyterLab {theme}")
        page.locator(f"body[data-jp-theme-name='JupyterLab {theme}']").wait_for(state="attached")
        for name in CELLS:
            widget = live_widget(page, name)
            widget.scroll_into_view_if_needed()
            page.wait_for_timeout(1000)  # curves and colours move to their places
            file = name.lower().replace(" ", "_") + ("_dark.png" if theme == "Dark" else ".png")
            take(page, widget, ENDS.get(name, ""), IMAGES / file)
            print(file)


def main(run: Path) -> None:
    """Run the widgets in JupyterLab, and take their pictures."""
    with TemporaryDirectory() as place, sync_playwright() as playwright:
        folder, home = Path(place, "work"), Path(place, "home")
        folder.mkdir()
        (folder / "real").symlink_to(run.resolve())
        cells = [*environment(), "run = 'real'", *CELLS.values()]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport=WINDOW)
        with started_lab(folder, home) as lab:
            run_all(lab, page, "widgets.ipynb", notebook_of(*cells), 600)
            take_all(page)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "outputs" / "real"))
