"""A web server on 127.0.0.1 for files, which can be told to misbehave. Named as a proxy, it stands for every host."""

import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BODY = bytes(range(256)) * 5000


class Server(ThreadingHTTPServer):
    """Serves `files` on 127.0.0.1; the fields below make it misbehave."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {"/a/model.bin": BODY}
        self.mark = '"v1"'
        self.ranges = True
        self.break_after = []  # bytes after which each of the next answers breaks off
        self.wrong_range = False
        self.claim = None  # a length to announce in place of the true one
        self.hold = None  # an event to wait for in the middle of an answer
        self.requests = []  # (path, Range)

    def url(self, path="/a/model.bin"):
        return f"http://127.0.0.1:{self.server_port}{path}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        server, wanted = self.server, self.headers.get("Range")
        path = self.path.removeprefix(server.url(""))  # of a proxy the whole address is asked for
        server.requests.append((path, wanted))
        if path not in server.files:
            return self.send_error(404)
        body, start = server.files[path], 0
        if wanted and server.ranges and self.headers.get("If-Range") == server.mark:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(body):
                return self.send_error(416)
        self.send_response(206 if start else 200)
        if start:
            first = start + 1 if server.wrong_range else start
            self.send_header("Content-Range", f"bytes {first}-{len(body) - 1}/{len(body)}")
        if server.mark:
            self.send_header("ETag", server.mark)
        self.send_header("Content-Length", str(server.claim or len(body) - start))
        self.end_headers()
        end = start + server.break_after.pop(0) if server.break_after else len(body)
        if server.hold:
            self.wfile.write(body[start : end // 2])
            start = end // 2
            server.hold.wait()
        with suppress(ConnectionError):  # of a client that is gone
            self.wfile.write(body[start:end])

    def log_message(self, *args):
        pass


@contextmanager
def serving():
    """A server that answers until the end."""
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
