"""A hub on 127.0.0.1 that answers what huggingface_hub asks, and repositories for it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

# Larger ones are in large-file storage, as on a hub whose .gitattributes says nothing.
SMALL = 100_000


@dataclass
class Hub:
    """What a hub has, what it was asked, and how it misbehaves.

    Attributes:
        repositories: OWNER/REPO → path → content.
        renamed: an earlier name → the name now.
        gated, private: names that need a token.
        changed: paths whose content is not what their hash says.
        breaks: path → bytes after which the connection ends, each time that it is asked for.
        requests: (method, path, range) of each request.
        down: whether it answers 503 to everything.
    """

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    private: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    breaks: dict[str, int] = field(default_factory=dict)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    token: str = "hf_right"
    down: bool = False
    url: str = ""

    def add(self, name: str, source: Path | dict[str, bytes], under: str = "") -> None:
        """Puts a folder, or files, into a repository."""
        if isinstance(source, Path):
            source = {path.name: path.read_bytes() for path in source.iterdir() if path.is_file()}
        files = self.repositories.setdefault(name, {})
        files.update({f"{under}{path}": content for path, content in source.items()})

    def commit(self, name: str) -> str:
        """The one commit of a repository."""
        content = sorted((path, len(each)) for path, each in self.repositories[name].items())
        return hashlib.sha1(f"{name} {content}".encode()).hexdigest()

    def downloads(self) -> list[str]:
        """Paths whose content was asked for."""
        return [
            path for method, path, _ in self.requests if method == "GET" and "/resolve/" in path
        ]

    def sibling(self, path: str, content: bytes) -> dict[str, Any]:
        """A file, as the interface describes it."""
        about: dict[str, Any] = {
            "rfilename": path,
            "size": len(content),
            "blobId": git_hash(content),
        }
        if len(content) > SMALL:
            sha256 = hashlib.sha256(content).hexdigest()
            about["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 130}
        return about

    def entry(self, path: str, content: bytes) -> dict[str, Any]:
        """The same, as it is in a tree."""
        about = self.sibling(path, content)
        stored = about.get("lfs")
        lfs = {"lfs": {**stored, "oid": stored["sha256"]}} if stored else {}
        return {
            "type": "file", "path": path, "size": len(content), "oid": about["blobId"], **lfs,
        }  # fmt: skip


def git_hash(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path, self.headers.get("Range", "")))
        if hub.down:
            self._answer(503)
            return
        parts = path.strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        name = "/".join(parts[2:4] if api else parts[:2])
        rest = parts[4:] if api else parts[2:]
        if name in hub.renamed:
            self._answer(307, {"Location": self.path.replace(name, hub.renamed[name], 1)})
        elif not self._may(name):
            pass
        elif rest == ["refs"]:
            refs = [{"name": "main", "ref": "refs/heads/main", "targetCommit": hub.commit(name)}]
            self._json({"branches": refs, "tags": [], "converts": []})
        elif len(rest) > 1 and rest[1] not in ("main", hub.commit(name)):
            self._answer(404, {"X-Error-Code": "RevisionNotFound"})
        elif rest[:1] == ["tree"]:
            self._json([hub.entry(path, each) for path, each in hub.repositories[name].items()])
        elif api:
            files = hub.repositories[name]
            siblings = [hub.sibling(path, content) for path, content in files.items()]
            self._json({"id": name, "sha": hub.commit(name), "siblings": siblings})
        else:
            self._file(name, "/".join(rest[2:]))

    do_HEAD = do_GET

    def _may(self, name: str) -> bool:
        hub, known = self.hub, name in self.hub.repositories
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in ("", hub.token):
            self._answer(401, {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif known and name in hub.gated and not token and "/resolve/" in self.path:
            self._answer(401, {"X-Error-Code": "GatedRepo"})  # what is in it, everybody may see
        elif not known or (name in hub.private and not token):
            self._answer(401 if not token else 404, {"X-Error-Code": "RepoNotFound"})
        else:
            return True
        return False

    def _file(self, name: str, path: str) -> None:
        hub, content = self.hub, self.hub.repositories[name].get(path)
        if content is None:
            self._answer(404, {"X-Error-Code": "EntryNotFound"})
            return
        about = hub.sibling(path, content)
        etag = about["lfs"]["sha256"] if "lfs" in about else about["blobId"]
        if path in hub.changed:
            content = content[:-1] + bytes([content[-1] ^ 1])
        headers = {"X-Repo-Commit": hub.commit(name), "ETag": f'"{etag}"'}
        start, status = 0, 200
        if given := self.headers.get("Range"):
            start, status = int(given.removeprefix("bytes=").rstrip("-")), 206
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if path in hub.breaks and self.command == "GET" and start:
            self._answer(503)
            return
        whole = content[start:]
        headers["Content-Length"] = str(len(whole))
        sent = whole[: hub.breaks[path]] if path in hub.breaks else whole
        self._answer(status, headers, sent)
        if len(sent) < len(whole) and self.command == "GET":
            self.close_connection = True

    def _json(self, content: Any) -> None:
        self._answer(200, {"Content-Type": "application/json"}, json.dumps(content).encode())

    def _answer(
        self, status: int, headers: dict[str, str] | None = None, body: bytes = b""
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def running() -> Iterator[Hub]:
    """A hub at `url`."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
