"""Check the links and images of a site, or of markdown files: what they point to exists, or is well formed."""

from __future__ import annotations

import base64
import binascii
import re
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import lxml.html
from rooms import ROOT, setting

MARKDOWN_LINK = re.compile(
    r"\]\(([^)\s]+)[^)]*\)|(?:src|srcset|href)=\"([^\"]+)\"|<(https?:[^>\s]+)>"
)
OWN = rf"{setting('git_url')}/(?:blob|edit|raw)/{setting('branch')}/([^?#]+)"
HOST = re.compile(r"(localhost|[a-z0-9-]+(\.[a-z0-9-]+)+)(:\d+)?", flags=re.I)


class Page:
    """What a page links to, the names that links to it can use, and its images without words."""

    def __init__(self, text: str) -> None:
        """Read a page."""
        tree = lxml.html.document_fromstring(text, lxml.html.HTMLParser(huge_tree=True))
        self.links: list[str] = tree.xpath("//@href | //@src | //@srcset")
        self.names: set[str] = set(tree.xpath("//@id | //@name"))
        self.nameless = [image.get("src", "")[:60] for image in tree.xpath("//img[not(@alt)]")]


def malformed(link: str) -> str | None:
    """Say what is wrong with an address that leads elsewhere, None if nothing is."""
    if own := re.match(OWN, link):
        return None if (ROOT / own[1]).exists() else "no such file in the repository"
    parts = urlsplit(link)
    if parts.scheme == "data":
        head, _, body = parts.path.partition(",")
        try:
            base64.b64decode(body if head.endswith("base64") else "", validate=True)
        except binascii.Error:
            return "the image's data is broken"
        return None
    if parts.scheme == "mailto":
        return None if "@" in parts.path else "no address"
    if parts.scheme not in ("http", "https"):
        return f"{parts.scheme}: is not for pages"
    return None if HOST.fullmatch(parts.netloc) and " " not in link else "no such address can be"


def problems(site: Path) -> list[str]:
    """Return a line per broken link and missing image of a folder of HTML pages."""
    pages = {
        path.resolve(): Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")
    }
    found = []
    for path, page in pages.items():
        here = path.relative_to(site.resolve())
        found += [f"{here}: an image without words: {source}" for source in page.nameless]
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                wrong = malformed(link)
            else:
                target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
                target = target / "index.html" if target.is_dir() else target
                wrong = None if target.exists() else "no such file"
                if not wrong and parts.fragment and target in pages:
                    known = unquote(parts.fragment) in pages[target].names
                    wrong = None if known else "no such place on that page"
            if wrong:
                found.append(f"{here}: {link[:200]}: {wrong}")
    return found


def markdown_problems(path: Path, text: str | None = None) -> list[str]:
    """Return a line per broken link of a markdown file, or of `text` as if it stood there."""
    text = path.read_text(encoding="utf-8") if text is None else text
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.M | re.S)
    found = []
    for match in MARKDOWN_LINK.finditer(text):
        link = next(filter(None, match.groups()))
        parts = urlsplit(link)
        if parts.scheme:
            wrong = malformed(link)
        else:
            there = not parts.path or (path.parent / unquote(parts.path)).exists()
            wrong = None if there else "no such file"
        if wrong:
            found.append(f"{path.name}: {link}: {wrong}")
    return found


if __name__ == "__main__":
    sys.exit("\n".join(line for path in sys.argv[1:] for line in markdown_problems(Path(path))))
