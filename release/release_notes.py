"""Print CHANGELOG.md's section about the version in pyproject.toml, for the page of its release.

    REPO_URL=https://... python release/release_notes.py v0.1.0 > notes.md

Fails unless the tag is "v" and the version in pyproject.toml, and CHANGELOG.md has a dated section
for that version. The page of a release is not in the repository's folder, so links to files in it
become links into the repository, at the tag.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1]


def release_notes(tag: str, repository: str, project: Path = PROJECT) -> str:
    """The body of the section "## [VERSION] - DATE" of CHANGELOG.md.

    `repository` is the repository's URL. ValueError if the tag or the section is wrong.
    """
    version = tomllib.loads((project / "pyproject.toml").read_text())["project"]["version"]
    if tag != f"v{version}":
        raise ValueError(
            f"the tag is {tag}, but pyproject.toml has version {version}: tag v{version}"
        )
    changelog = (project / "CHANGELOG.md").read_text()
    section = re.search(
        rf"^## \[{re.escape(version)}\]([^\n]*)\n(.*?)(?=^## |^\[[^\]\n]+\]: |\Z)",
        changelog,
        re.M | re.S,
    )
    if section is None or not section[2].strip():
        raise ValueError(f'CHANGELOG.md has no section "## [{version}]" with notes: write one')
    if not re.fullmatch(r" - \d{4}-\d\d-\d\d", section[1]):
        raise ValueError(
            f'the heading "## [{version}]{section[1]}" in CHANGELOG.md has no date: '
            f'write "## [{version}] - YEAR-MONTH-DAY"'
        )
    return re.sub(r"\]\((?!\w+:|#)", f"]({repository}/blob/{tag}/", section[2].strip()) + "\n"


def main() -> int:
    """Prints the notes for the tag, the only argument; returns the exit code."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        print(release_notes(sys.argv[1], os.environ["REPO_URL"].rstrip("/")), end="")
    except KeyError:
        print(
            "release_notes: REPO_URL is not set. Set it to the repository's URL.", file=sys.stderr
        )
        return 1
    except ValueError as error:
        print(f"release_notes: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
