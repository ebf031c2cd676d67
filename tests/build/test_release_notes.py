"""Release notes, and tags that are refused."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
SCRIPT = PROJECT / "release" / "release_notes.py"

CHANGELOG = """\
# Changelog

## [Unreleased]

- Something that is not in a release.

## [1.2.0] - 2026-03-04

### Added

- A thing ([page](docs/page.md#part), [elsewhere](https://example.invalid)).

## [1.1.0] - 2026-01-02

- An older thing.

[1.2.0]: https://example.invalid/1.2.0
"""


def notes(project: Path, tag: str) -> subprocess.CompletedProcess[str]:
    copy = project / "release" / SCRIPT.name
    copy.parent.mkdir(exist_ok=True)
    copy.write_text(SCRIPT.read_text())
    return subprocess.run(
        [sys.executable, copy, tag], env={"REPO_URL": "https://host.invalid/x/y"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    return tmp_path


def test_the_notes_are_the_section_of_the_version(project: Path) -> None:
    assert notes(project, "v1.2.0").stdout == (
        "### Added\n\n- A thing "
        "([page](https://host.invalid/x/y/blob/v1.2.0/docs/page.md#part), "
        "[elsewhere](https://example.invalid)).\n"
    )


@pytest.mark.parametrize("tag", ["v1.1.0", "1.2.0", "v1.2.0rc1", ""])
def test_a_tag_of_another_version_is_refused(project: Path, tag: str) -> None:
    result = notes(project, tag)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        f"release_notes: the tag is {tag}, but pyproject.toml has version 1.2.0: tag v1.2.0\n"
    )


@pytest.mark.parametrize("changelog", ["# Changelog\n", "## [1.2.0]\n\n## [1.1.0]\n- A thing.\n"])
def test_a_version_without_notes_is_refused(project: Path, changelog: str) -> None:
    (project / "CHANGELOG.md").write_text(changelog)
    result = notes(project, "v1.2.0")
    assert (result.returncode, result.stdout) == (1, "")
    assert "[1.2.0]" in result.stderr


@pytest.mark.parametrize("heading", ["## [1.2.0] - unreleased", "## [1.2.0]"])
def test_a_version_without_a_date_is_refused(project: Path, heading: str) -> None:
    (project / "CHANGELOG.md").write_text(f"{heading}\n\n- A thing.\n")
    result = notes(project, "v1.2.0")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        f'release_notes: the heading "{heading}" in CHANGELOG.md has no date: '
        'write "## [1.2.0] - YEAR-MONTH-DAY"\n'
    )


def test_this_version_can_be_released_once_it_has_a_date(project: Path) -> None:
    text = (PROJECT / "pyproject.toml").read_text()
    version = tomllib.loads(text)["project"]["version"]
    (project / "pyproject.toml").write_text(text)
    changelog = (PROJECT / "CHANGELOG.md").read_text()
    heading = f"## [{version}] - "
    dated = re.sub(
        rf"^{re.escape(heading)}unreleased$", heading + "2026-03-04", changelog, flags=re.M
    )
    (project / "CHANGELOG.md").write_text(dated)
    result = notes(project, f"v{version}")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("### ")
