"""What is mapped into this process (proc_pid_maps(5))."""


def read():
    with open("/proc/self/maps", errors="surrogateescape") as maps:
        return [Mapping(line) for line in maps]


class Mapping:
    """A line of `/proc/self/maps`. `path` is empty for memory that no file backs."""

    def __init__(self, line):
        fields = line.rstrip("\n").split(None, 5)
        self.start, self.end = (int(text, 16) for text in fields[0].split("-"))
        self.access = fields[1]
        self.offset = int(fields[2], 16)
        self.path = fields[5] if len(fields) > 5 else ""

    def extends(self, code):
        """Whether it is mapped next to `code` as it lies next to it in the file."""
        return (code is not None and code.access == "r-xp" and code.path == self.path
                and self.path.startswith("/")
                and (self.start == code.end or self.end == code.start)
                and self.start - self.offset == code.start - code.offset)
