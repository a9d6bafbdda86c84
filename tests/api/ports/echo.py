"""Tells of every request what arrived; and some odd servers below other paths."""

import json
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, parse_qsl, urlsplit

gone = 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def parse_request(self):
        # The line as it came: the base class shortens two slashes at the beginning.
        if not super().parse_request():
            return False
        self.command_known = self.command
        self.command = "any"
        return True

    def body(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            whole = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                whole += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return whole
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, value, status=200, headers=()):
        content = json.dumps(value).encode()
        self.send_response(status)
        for name, text in headers:
            self.send_header(name, text)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command_known != "HEAD":
            self.wfile.write(content)

    def do_any(self):
        global gone
        url = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        match url.path:
            case "/events":
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                try:
                    for n in range(int(query["n"])):
                        line = f"data: {n} {time.time()}\n\n".encode()
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                        time.sleep(float(query["pause"]))
                    self.wfile.write(b"0\r\n\r\n")
                except OSError:
                    gone += 1
                    self.close_connection = True
            case "/gone":
                self.answer({"gone": gone})
            case "/headers":
                self.answer({}, 302, parse_qsl(url.query))
            case "/size":
                left, block = int(query["n"]), os.urandom(1 << 16)
                self.send_response(200)
                self.send_header("Content-Length", str(left))
                self.end_headers()
                while left:
                    left -= self.wfile.write(block[:left])
            case "/count":
                left = int(self.headers["Content-Length"])
                seen = 0
                while seen < left:
                    seen += len(self.rfile.read(min(1 << 16, left - seen)))
                self.answer({"bytes": seen})
            case "/parrot":
                self.send_response(101)
                self.send_header("Connection", "Upgrade")
                self.send_header("Upgrade", "parrot")
                self.end_headers()
                while said := self.connection.recv(1 << 16):
                    self.connection.sendall(said)
                self.connection.sendall(b"bye")
                self.close_connection = True
            case _:
                headers = {}
                for name, value in self.headers.items():
                    headers.setdefault(name.lower(), []).append(value)
                line = self.raw_requestline.decode("latin-1").rstrip("\r\n")
                self.answer({"line": line, "headers": headers, "body": list(self.body())})

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
