"""Environments with chosen packages of this one and nothing else, made without a download."""

from __future__ import annotations

import subprocess
import venv
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement


@dataclass(frozen=True)
class Environment:
    """A virtual environment in `folder`."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        """Its site-packages."""
        return next((self.folder / "lib").glob("python*")) / "site-packages"

    def run(
        self, *arguments: str | Path, environment: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs the environment's Python, which does not see the sources in the working
        directory."""
        return subprocess.run(
            [self.python, "-P", *arguments],
            env=environment, cwd=self.folder, capture_output=True, text=True, timeout=300,
            check=False,
        )  # fmt: skip

    def succeeds(self, code: str, *arguments: str | Path) -> list[str]:
        """The lines that a program prints."""
        done = self.run("-c", code, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def fails(self, *arguments: str | Path) -> str:
        """The last line that a program prints on stderr."""
        done = self.run(*arguments)
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stderr.splitlines()[-1]


def make_environment(folder: Path, distributions: Iterable[str]) -> Environment:
    """An environment with links to the files of each distribution, as installed here."""
    venv.create(folder, with_pip=False)
    environment = Environment(folder)
    for name in distributions:
        files = metadata.files(name)
        assert files is not None, name
        # Scripts, "../../../bin/...", are not linked. Nor has a package that is a link files here.
        tops = {file.parts[0] for file in files} | {name}
        for top in tops - {"..", "__pycache__"}:
            source = Path(str(metadata.distribution(name).locate_file(top)))
            link = environment.packages / top
            if source.exists() and not link.exists():
                link.symlink_to(source.absolute())
    return environment


def with_dependencies(requirements: Iterable[str]) -> set[str]:
    """The distributions that pip would install for these, among those installed here."""
    found: set[str] = set()
    waiting = list(requirements)
    while waiting:
        requirement = Requirement(waiting.pop())
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if requirement.name not in found:
            found.add(requirement.name)
            waiting += metadata.requires(requirement.name) or []
    return found
