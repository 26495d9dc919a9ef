"""Where a Chromium is on this machine."""

from __future__ import annotations

import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
MISSING = f"needs one of {', '.join(NAMES)}"
