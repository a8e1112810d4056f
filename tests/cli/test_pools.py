"""A process that shares its pools of memory has few of them, however many threads it has."""

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, sys, threading
from dynadp.cli.pools import share_pools
if sys.argv[1] == "shared":
    share_pools()
gate = threading.Barrier(9)
def work():
    gate.wait()
    kept = [bytearray(40_000) for _ in range(50)]
    gate.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
gate.wait(), gate.wait()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(sys.argv[2].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.parametrize(("how", "few"), [("shared", True), ("as they come", False)])
def test_threads_share_pools(tmp_path, how, few):
    out = tmp_path / "pools.xml"
    subprocess.run([sys.executable, "-c", PROGRAM, how, str(out)], check=True)
    assert (out.read_text().count("<heap nr=") <= 2) == few
