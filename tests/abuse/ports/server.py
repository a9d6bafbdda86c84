"""Answers wrongly on 8000, in the way that the path names; and not at all on 8001."""

import socket
import threading
import time

OK = b"HTTP/1.1 200 OK\r\n"
LAST = b"Content-Length: 2\r\n\r\nok"
ONCE = {
    "well": OK + LAST,
    "nothing": b"",
    "garbage": b"\x00\xff\x16\x03 nonsense\r\n\r\n" * 9,
    "old": b"<p>HTTP/0.9</p>\r\n\r\n",
    "many-headers": OK + b"".join(b"X-%d: y\r\n" % n for n in range(1000)) + LAST,
    "two-lengths": OK + b"Content-Length: 3\r\n" + LAST,
    "bad-length": OK + b"Content-Length: -1\r\n\r\nok",
    "odd-coding": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "unasked": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
    "half-a-head": OK + b"Content-Len",
    "split": OK + b"X-A: b\x00c\r\n" + LAST,
    "half-a-body": OK + b"Content-Length: 100\r\n\r\nabc",
    "half-a-chunk": OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
    "bad-chunk": OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
    "too-much": OK + b"Content-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\n\r\n",
}
AGAIN = {
    "endless-head": (OK, b"X-Header: value\r\n" * 100, 0),
    "endless-header": (OK + b"X-Header: ", b"x" * 4096, 0),
    "silence": (b"", b"", 0.2),
    "slow-head": (OK, b"x", 0.2),
    "informing": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100, 0.001),
    "still-body": (OK + b"Content-Length: 100\r\n\r\nabc", b"", 0.2),
}


def serve(connection):
    head = b""
    while b"\r\n\r\n" not in head:
        head += connection.recv(4096)
    way = head.split()[1].decode().strip("/")
    try:
        if way in ONCE:
            connection.sendall(ONCE[way])
        else:
            first, more, pause = AGAIN[way]
            connection.sendall(first)
            for _ in range(1_000_000):
                connection.sendall(more)
                time.sleep(pause)
    except OSError:
        pass
    connection.close()


listener = socket.create_server(("127.0.0.1", 8000))
full = socket.create_server(("127.0.0.1", 8001), backlog=0)
waiting = []
for _ in range(8):
    waiting.append(socket.socket())
    waiting[-1].setblocking(False)
    waiting[-1].connect_ex(("127.0.0.1", 8001))
while True:
    threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()
