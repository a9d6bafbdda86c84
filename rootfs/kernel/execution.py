"""One execution: its frames to the supervisor, and the limits on them."""

from binascii import b2a_base64

from _sandcell import structured, tracebacks
from _sandcell.channel import MAX_FRAME_BYTES, are_read, encode
from _sandcell.structured import MAX_INTEGER, MIN_INTEGER

# Parsers stop at some depth (serde_json at 128); JSON nested deeper than this goes out as text.
_MAX_DEPTH = 100

# As the supervisor takes them: MIME types of one display, and bytes of their names.
_MAX_BUNDLE_ENTRIES = 64
_MAX_NAME_BYTES = 256

# Of a text that is too long as a result, so many characters are shown.
_KEPT_CHARACTERS = 2000

# Longest that clear_output() waits until what came before it is read, and until it is.
_CLEAR_SECONDS = 0.1


class Execution:
    def __init__(self, channel, streams, interrupts, request):
        self.channel = channel
        self.turns, self.pipes = streams.turns, streams.copies
        # Whether somebody looks on, and so sees in which order things come.
        self.prompt = request["prompt"]
        self.interrupts = interrupts
        self.id = request["id"]
        self.result_bytes_left = request["max_result_bytes"]
        self.max_traceback_bytes = request["max_traceback_bytes"]
        self.max_files = request["max_files"]
        self.told_full = False
        # Results that were left out, in whole or in part, and how long these parts were at least.
        self.left_out = 0
        self.left_out_bytes = 0
        self.closed = False
        # Whether its end follows the last that the user's code does, without much work between.
        self.ends_at_once = False
        # Exceptions that were shown without ending the execution: of a callback, of `%run`.
        self.shown = []

    def started(self, execution_count):
        payload = encode({"type": "started", "id": self.id, "execution_count": execution_count})
        self._send(payload, hold=not self.prompt)

    def result(self, kind, data, metadata=None, display_id=None, last=False):
        """`last`: nothing but the execution's end comes after it, and that at once."""
        if self.told_full:
            self._leave_out(data)
            return
        frame = {"type": "result", "id": self.id, "kind": kind}
        if display_id is not None:
            frame["display_id"] = str(display_id)
        whole, data = len(data), _jsonable_bundle(data)
        if len(data) < whole:
            self.left_out += 1
            data = data or {"text/plain": "[left out: a MIME type with too long a name]"}
        payload = self._whole(frame, data, metadata)
        extras = structured.OPTIONAL & data.keys()
        if extras and (payload is None or len(payload) - _text_size(data) > structured.MAX_BYTES):
            # Nobody asked for these: they must not cost the picture or the table that they go with.
            data = {mime: data[mime] for mime in data if mime not in extras}
            payload = self._whole(frame, data, metadata)
        if payload is None:
            self._leave_out(data)
            payload = encode(frame | {"data": self._instead_of(data)})
        self.result_bytes_left -= len(payload)
        self._take_turn()
        self._send(payload, hold=last)

    def _whole(self, frame, data, metadata):
        """The frame, or None where it is over the limit."""
        if _text_size(data) > self.result_bytes_left:
            return None
        payload = encode(frame | {"data": data, "metadata": _jsonable(metadata or {})})
        return payload if len(payload) <= min(self.result_bytes_left, MAX_FRAME_BYTES) else None

    def _leave_out(self, data):
        self.left_out += 1
        self.left_out_bytes += _text_size(data)

    def _instead_of(self, data):
        left_out = ", ".join(sorted(set(data) - {"text/plain"})) or "text/plain"
        note = f"[left out: {left_out}; the results of this execution are too large]"
        text = data.get("text/plain")
        if isinstance(text, str) and left_out != "text/plain" \
                and len(text) * 6 < min(self.result_bytes_left, 65536):
            return {"text/plain": f"{text}\n{note}"}
        self.told_full = self.result_bytes_left < 1024
        if isinstance(text, str) and _KEPT_CHARACTERS * 6 < self.result_bytes_left - 1024:
            note = f"{text[:_KEPT_CHARACTERS]}\n{note}"
        return {"text/plain": note}

    def clear_output(self, wait):
        if not self.channel.owned():
            return
        # Text has its own way to the supervisor. What was printed before must have arrived, and this
        # must have before more is printed: else that were cleared too.
        fd, pipes = self.channel.fd, self.pipes.values()
        are_read([fd], pipes, _CLEAR_SECONDS)
        self._send(encode({"type": "clear_output", "id": self.id, "wait": bool(wait)}))
        are_read([fd], [], _CLEAR_SECONDS)

    def error(self, name, value, traceback):
        self._take_turn()
        self._send(encode({"type": "error", "id": self.id, "name": name, "value": value,
                           "traceback": traceback}))

    def done(self, execution_count, next_count, exit_code, files, truncated, seen, disk_full, forks,
             env_not_applied=()):
        frame = {"type": "done", "id": self.id, "execution_count": execution_count,
                 "next_count": next_count, "files_seen": seen, "disk_full": disk_full,
                 "forks": forks}
        if exit_code is not None:
            frame["exit_code"] = exit_code
        if self.left_out:
            frame |= {"results_left_out": self.left_out, "result_bytes_left_out": self.left_out_bytes}
        if env_not_applied:
            frame["env_not_applied"] = sorted(env_not_applied)
        payload = encode(frame | {"files": files, "files_truncated": truncated})
        while len(payload) > MAX_FRAME_BYTES:
            files = files[: len(files) // 2]
            payload = encode(frame | {"files": files, "files_truncated": True})
        self._send(payload, last=True)

    def _take_turn(self):
        if self.prompt and self.channel.owned():
            self.turns.show()

    def _send(self, payload, last=False, hold=False):
        if not self.channel.owned():
            return
        with self.interrupts.held(), self.channel.lock:
            # A thread that outlives its execution may still display something: too late.
            if not self.closed:
                self.closed = last
                if hold:
                    self.channel.hold(payload)
                else:
                    self.channel.write(payload)


def _text_size(data):
    return sum(len(value) for value in data.values() if isinstance(value, (str, bytes)))


def _jsonable_bundle(data):
    bundle = {}
    for mime, value in data.items():
        mime = _text(mime)
        if len(bundle) == _MAX_BUNDLE_ENTRIES or _is_too_long(mime):
            continue
        if isinstance(value, (bytes, bytearray, memoryview)):
            value = b2a_base64(value, newline=False).decode("ascii")
        elif not isinstance(value, (str, structured.Plain)):
            given, value = value, _jsonable(value)
            if value is None:  # NaN has no JSON
                value = _text(given)
        bundle[mime] = value
    return bundle


def _is_too_long(mime):
    return len(mime) > 40 and len(encode(mime)) > _MAX_NAME_BYTES


def _text(value):
    """`str()`, which is user code."""
    try:
        return str(value)
    except Exception as error:
        name, text, _ = tracebacks.describe(error, 2000)
        return f"<{tracebacks.class_name(value)} object whose str raised {name}: {text}>"


def _jsonable(value):
    """The value itself where it is proper JSON, else the nearest to it."""
    if _parsable(value):
        try:
            encode(value)
            return value
        except (TypeError, ValueError, RecursionError):
            pass  # NaN, an object, a key that is no string, a cycle
    return _nearest(value, 0)


def _parsable(value):
    """Not too deep, and no integer that a parser refuses: serde_json does beyond 1e308."""
    if isinstance(value, int):
        return MIN_INTEGER <= value <= MAX_INTEGER
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > _MAX_DEPTH:
            return False
        below = []
        for item in level:
            children = item.values() if isinstance(item, dict) else item
            if isinstance(children, (list, tuple)) or children is not item:
                for child in children:
                    if isinstance(child, (dict, list, tuple)):
                        below.append(child)
                    elif isinstance(child, int) and not MIN_INTEGER <= child <= MAX_INTEGER:
                        return False
        level = below
    return True


def _nearest(value, depth):
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        if MIN_INTEGER <= value <= MAX_INTEGER:
            return value
        # The time for a decimal text grows with the square of its length, and user code may limit it.
        return str(value) if value.bit_length() < 2000 else hex(value)
    if isinstance(value, float):
        return value if value - value == 0 else None
    if depth >= _MAX_DEPTH:
        return "..."
    if isinstance(value, dict):
        return {_text(key): _nearest(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_nearest(item, depth + 1) for item in value]
    return _text(value)
