"""What `make docs` does besides MkDocs' own work (mkdocs.yml).

Pages are written for GitHub: links that leave docs/ are relative to the repository. On the site
they lead into the repository that REPO_URL=https://HOST/OWNER/NAME in the environment names.
Without REPO_URL they become the path, as code. A link to a missing file fails the build, and so
does a built page that loads anything from another server.
"""

from __future__ import annotations

import logging
import os
import posixpath
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# Pages of the site that are outside docs/.
ADDED = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
# MkDocs counts warnings of its loggers, and a strict build fails after them.
log = logging.getLogger("mkdocs.hooks.site")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add a link to the repository to the footer; the theme's own queries GitHub at each visit."""
    if url := repository():
        social = {"icon": "fontawesome/brands/git-alt", "link": url, "name": "The repository"}
        config.extra["social"] = [social]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are outside docs/."""
    from mkdocs.structure.files import File

    for source, name in ADDED.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links that leave docs/, as the site needs them."""
    path = page.file.src_uri
    text, missing = site_links(markdown, path, repository())
    for link in missing:
        log.warning(f"'{path}' links to '{link}', which is not in the repository")
    return text


def on_post_build(*, config: MkDocsConfig) -> None:
    """Fail if a built page loads anything from another server."""
    site = Path(config.site_dir)
    for path in sorted(site.rglob("*")):
        if path.suffix in (".html", ".css", ".svg"):
            for url in outside_loads(path.read_text()):
                log.warning(f"'{path.relative_to(site)}' loads '{url}'")


def repository() -> str:
    """The URL of the repository; empty if it is not set."""
    return os.environ.get("REPO_URL", "").rstrip("/")


def site_links(markdown: str, page: str, repository: str) -> tuple[str, list[str]]:
    """(the page as the site needs it, links that lead nowhere).

    `page` is the page's path in the site; code blocks stay as they are.
    """
    sources = {added: source for source, added in ADDED.items()}
    source = sources.get(page, f"docs/{page}")
    missing: list[str] = []

    def rewritten(match: re.Match[str]) -> str:
        text, link = match["text"], match["link"]
        file, hash_sign, anchor = link.partition("#")
        if not file or re.match(r"[a-z]+:", link):
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), file))
        if target.startswith("..") or not (ROOT / target).exists():
            missing.append(link)
            return match[0]
        here = "README.md" if target == "README.md" else ADDED.get(target)
        if here is None and target.startswith("docs/"):
            here = target.removeprefix("docs/")
        if here is not None:
            relative = posixpath.relpath(here, posixpath.dirname(page) or ".")
            return f"{match['start']}({relative}{hash_sign}{anchor})"
        if repository:
            kind = "tree" if (ROOT / target).is_dir() else "blob"
            return f"{match['start']}({repository}/{kind}/HEAD/{target}{hash_sign}{anchor})"
        return text if text.strip("`") in target else f"{text} (`{target}`)"

    pieces = re.split(r"(^```.*?^```)", markdown, flags=re.M | re.S)
    link = re.compile(
        r"(?P<start>\[(?P<text>[^\[\]]*(?:\[[^\]]*\][^\[\]]*)?)\])\((?P<link>[^()\s]+)\)"
    )
    pieces[::2] = [link.sub(rewritten, piece) for piece in pieces[::2]]
    return "".join(pieces), missing


def outside_loads(text: str) -> list[str]:
    """URLs that a browser would fetch from another server for a page, style sheet or picture."""
    parser = _Loads()
    parser.feed(text)
    found = parser.urls + re.findall(r"(?:url\(|@import)\s*['\"]?((?:https?:)?//[^'\")\s]+)", text)
    return list(dict.fromkeys(found))


class _Loads(HTMLParser):
    """URLs on other hosts, of elements that fetch what they name."""

    LINKS = frozenset(
        {"stylesheet", "icon", "preload", "preconnect", "dns-prefetch", "modulepreload"}
    )

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Elements other than links that a reader follows."""
        values: dict[str, Any] = dict(attrs)
        if tag == "a" or (tag == "link" and values.get("rel") not in self.LINKS):
            return
        for name in ("src", "href", "data", "poster", "xlink:href"):
            if re.match(r"(https?:)?//", values.get(name) or ""):
                self.urls.append(values[name])
