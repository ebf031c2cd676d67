"""A Debian-like archive on a local port, signed with a key made for it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.server
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

TOOLS = ("apt-get", "apt-cache", "apt-config", "dpkg", "dpkg-deb", "gpg", "gpgv")

HEADERS = (
    "onnxruntime_c_api.h",
    "onnxruntime_ep_c_api.h",
    "onnxruntime_session_options_config_keys.h",
)


def missing_tools() -> list[str]:
    """Names of the programs that `AptSite` needs and this machine lacks."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def write_headers(directory: Path, api: int) -> Path:
    """Writes headers that declare only the version `api` into `directory` and returns it."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in HEADERS:
        (directory / name).write_text("#pragma once\n")
    (directory / HEADERS[0]).write_text(f"#pragma once\n\n#define ORT_API_VERSION {api}\n")
    return directory


def _run(*command: str | Path, **options: object) -> str:
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [str(word) for word in command], check=True, text=True, capture_output=True, **options
    ).stdout


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@dataclass(frozen=True)
class AptSite:
    """`root` is readable by everyone (apt's own user reads the key), unlike pytest's tmp_path."""

    root: Path
    uri: str

    @property
    def key(self) -> Path:
        return self.root / "archive-key.gpg"

    @property
    def config(self) -> Path:
        """For APT_CONFIG: makes apt see only this site, instead of the machine's sources."""
        return self.root / "apt.conf"

    @property
    def hook_witness(self) -> Path:
        """Exists once apt has run the machine's post-update hook."""
        return self.root / "hook-ran"

    def package(self, version: str, api: int) -> Path:
        """A libonnxruntime-dev of `version` whose headers declare `api`, below `root`/www/pool."""
        tree = self.root / f"tree-{version}"
        write_headers(tree / "usr/include/onnxruntime", api)
        return self.build("libonnxruntime-dev", version, tree)

    def build(self, package: str, version: str, tree: Path, depends: str = "") -> Path:
        """A `package` of `version` with the content of `tree`, below `root`/www/pool."""
        (tree / "DEBIAN").mkdir(parents=True)
        (tree / "DEBIAN/control").write_text(
            f"Package: {package}\nVersion: {version}\nArchitecture: {_architecture()}\n"
            + (f"Depends: {depends}\n" if depends else "")
            + "Maintainer: nobody <nobody@example.invalid>\nDescription: for a test\n"
        )
        pool = self.root / "www/pool"
        pool.mkdir(parents=True, exist_ok=True)
        deb = pool / f"{package}_{version.split(':')[-1]}_{_architecture()}.deb"
        _run("dpkg-deb", "--root-owner-group", "-Znone", "-b", tree, deb)
        return deb

    def suite(
        self, name: str, versions: Mapping[str, int], component: str = "main", sign: bool = True
    ) -> None:
        """Publishes suite `name` with a package per item of `versions` (version: API)."""
        self.publish(name, [self.package(*item) for item in versions.items()], component, sign)

    def publish(
        self, name: str, debs: Iterable[Path], component: str = "main", sign: bool = True
    ) -> None:
        """Publishes suite `name` with the packages `debs`."""
        entries = []
        for deb in debs:
            entries.append(
                _run("dpkg-deb", "-f", deb)
                + f"Filename: pool/{deb.name}\nSize: {deb.stat().st_size}\n"
                + f"SHA256: {hashlib.sha256(deb.read_bytes()).hexdigest()}\n"
            )
        packages = "\n".join(entries).encode()
        dist = self.root / "www/dists" / name
        index = f"{component}/binary-{_architecture()}/Packages"
        (dist / index).parent.mkdir(parents=True)
        (dist / index).write_bytes(packages)
        release = (
            f"Origin: test\nSuite: {name}\nCodename: {name}\nArchitectures: {_architecture()}\n"
            f"Components: {component}\nDate: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n"
            f" {hashlib.sha256(packages).hexdigest()} {len(packages)} {index}\n"
        )
        (dist / "Release").write_text(release)
        if sign:
            gpg = ("gpg", "--homedir", self.root / "gnupg", "--batch", "--yes")
            _run(*gpg, "--clearsign", "-o", dist / "InRelease", dist / "Release")

    def configure(self, sources: str, form: str) -> None:
        """Makes `sources` the machine's only apt sources; `form` is "list" or "sources"."""
        parts = self.root / "sources.list.d"
        shutil.rmtree(parts, ignore_errors=True)
        parts.mkdir()
        (parts / f"machine.{form}").write_text(sources)

    def machine(self, distribution: str, codename: str) -> Path:
        """An os-release file."""
        file = self.root / "os-release"
        file.write_text(f"ID={distribution}\nVERSION_CODENAME={codename}\n")
        return file

    def environment(self, os_release: Path) -> dict[str, str]:
        return {"APT_CONFIG": str(self.config), "ORT_AIE_OS_RELEASE": str(os_release)}


@functools.cache
def _architecture() -> str:
    return _run("dpkg", "--print-architecture").strip()


@contextlib.contextmanager
def apt_site() -> Iterator[AptSite]:
    """Serves an empty `AptSite` for as long as the context lasts."""
    # gpg's agent listens on a socket in its home folder, so the path has to be short.
    root = Path(tempfile.mkdtemp(prefix="ort_aie_site."))
    root.chmod(0o755)
    www, gnupg = root / "www", root / "gnupg"
    www.mkdir()
    gnupg.mkdir(mode=0o700)
    handler = functools.partial(_Handler, directory=str(www))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    site = AptSite(root, f"http://127.0.0.1:{server.server_port}/archive")
    # The archive's path is part of its URI, as on mirrors.
    (www / "archive").symlink_to(".")
    site.config.write_text(
        f'Dir::Etc::sourcelist "/dev/null";\nDir::Etc::sourceparts "{root}/sources.list.d";\n'
        f'APT::Update::Post-Invoke {{ "touch {site.hook_witness}"; }};\n'
        'Acquire::http::Proxy::127.0.0.1 "DIRECT";\n'
    )
    gpg = ("gpg", "--homedir", gnupg, "--batch", "--yes")
    try:
        user = "test archive <archive@example.invalid>"
        _run(*gpg, "--passphrase", "", "--quick-gen-key", user, "ed25519", "sign", "never")
        _run(*gpg, "-o", site.key, "--export")
        site.key.chmod(0o644)
        yield site
    finally:
        server.shutdown()
        server.server_close()
        subprocess.run(
            ["gpgconf", "--homedir", str(gnupg), "--kill", "gpg-agent"], capture_output=True
        )
        shutil.rmtree(root, ignore_errors=True)
