"""Another process that reads a ledger, for as long as it likes."""

import contextlib
import subprocess
import sys

READER = """
import sqlite3, sys
reading = sqlite3.connect(sys.argv[1], isolation_level=None)
reading.execute("BEGIN")
reading.execute("SELECT count(*) FROM entry").fetchone()
print("reading", flush=True)
sys.stdin.readline()
"""


@contextlib.contextmanager
def another_reader(path):
    """A process that holds a read transaction until it is let go."""
    arguments = [sys.executable, "-c", READER, str(path)]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "reading\n"

        def let_go():
            process.stdin.write("\n")
            process.stdin.flush()

        try:
            yield let_go
        finally:
            process.kill()
