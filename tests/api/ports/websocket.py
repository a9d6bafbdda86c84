"""Says everything again that comes over a WebSocket (RFC 6455), with the standard library only."""

import base64
import hashlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        key = self.headers["Sec-WebSocket-Key"] + GUID
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.send_header("Sec-WebSocket-Accept", accept)
        self.send_header("X-Path", self.path)
        self.end_headers()
        self.close_connection = True
        while head := self.rfile.read(2):
            size = head[1] & 127
            if size > 125:
                size = int.from_bytes(self.rfile.read(2 if size == 126 else 8))
            mask = self.rfile.read(4)
            content = self.rfile.read(size)
            content = bytes(c ^ mask[n % 4] for n, c in enumerate(content))
            if content == b"end":
                return
            if size > 65535:
                length = b"\x7f" + size.to_bytes(8)
            elif size > 125:
                length = b"\x7e" + size.to_bytes(2)
            else:
                length = bytes([size])
            self.wfile.write(head[:1] + length + content)

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
