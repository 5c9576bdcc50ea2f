"""A Hugging Face Hub on 127.0.0.1: repositories of small files, as far as fetching and publishing asks for them."""

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Hub(ThreadingHTTPServer):
    """`repositories` maps owner/name to the files of each revision; `main` is one of them."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories = {}
        self.private = {}
        self.token = None  # what who publishes must show
        self.requests = []

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.server_port}"

    def add(self, name, folder, revision="main"):
        files = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        self.repositories.setdefault(name, {})[revision] = files


def commit_of(files):
    """Forty digits that change with the files."""
    return hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self):
        self.server.requests.append(f"{self.command} {self.path}")
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/([^/?]+).*", self.path):
            return self._info(*match.groups())
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/?]+).*", self.path):
            return self._tree(*match.groups())
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path):
            return self._file(*match.groups())
        return self._answer(404, {})

    do_HEAD = do_GET

    def do_POST(self):
        self.server.requests.append(f"{self.command} {self.path}")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/api/validate-yaml":
            return self._answer(200, {"errors": [], "warnings": []})
        if self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}":
            return self._answer(401, {"error": "Invalid credentials"})
        if self.path == "/api/repos/create":
            wanted = json.loads(body)
            name = f"{wanted['organization']}/{wanted['name']}"
            if name in self.server.repositories:
                return self._answer(409, {"url": f"{self.server.endpoint}/{name}"})
            self.server.repositories[name] = {"main": {}}
            self.server.private[name] = wanted.get("private") or wanted.get("visibility") == "private"
            return self._answer(200, {"url": f"{self.server.endpoint}/{name}"})
        name = "/".join(self.path.split("/")[3:5])
        if "/preupload/" in self.path:
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            return self._answer(200, {"files": files})
        if "/commit/" in self.path:
            files = self.server.repositories[name]["main"]
            for item in map(json.loads, body.splitlines()):
                if item["key"] == "file":
                    files[item["value"]["path"]] = base64.b64decode(item["value"]["content"])
            url = f"{self.server.endpoint}/{name}/commit/{commit_of(files)}"
            return self._answer(
                200, {"success": True, "commitUrl": url, "commitOid": commit_of(files), "hookOutput": ""}
            )
        return self._answer(404, {})

    def _files(self, name, revision):
        revisions = self.server.repositories.get(name)
        if revisions is None:
            self._answer(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
            return None
        for branch, files in revisions.items():
            if revision in (branch, commit_of(files)):
                return files
        self._answer(404, {"error": "Revision not found"}, {"X-Error-Code": "RevisionNotFound"})
        return None

    def _info(self, name, revision):
        files = self._files(name, revision)
        if files is not None:
            siblings = [{"rfilename": path} for path in files]
            self._answer(200, {"_id": "0", "id": name, "sha": commit_of(files), "siblings": siblings, "tags": []})

    def _tree(self, name, revision):
        files = self._files(name, revision)
        if files is not None:
            entries = [
                {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for path, data in files.items()
            ]
            self._answer(200, entries)

    def _file(self, name, revision, path):
        files = self._files(name, revision)
        if files is None:
            return
        if path not in files:
            self._answer(404, {}, {"X-Error-Code": "EntryNotFound"})
            return
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha1(files[path]).hexdigest()}"')
        self.send_header("X-Repo-Commit", commit_of(files))
        self.send_header("Content-Length", str(len(files[path])))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(files[path])

    def _answer(self, status, content, headers=()):
        body = json.dumps(content).encode()
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args):
        pass


@contextmanager
def hub_serving():
    """A hub that answers until the end."""
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()
