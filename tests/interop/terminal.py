#!/usr/bin/python3
"""Words of others on a terminal: values of a store, names of states, errors. A terminal is sent nothing
of theirs that it would obey; a pipe gets every byte as it is.

    terminal.py [MUSTER] [--only=NAME]
"""
import os
import pty
import shutil
import subprocess
import tempfile

import lib
from lib import HOST, Checks, Muster, die_with_parent, muster_path, run_muster

checks = Checks()
SCRATCH = tempfile.mkdtemp(prefix="muster-terminal-")
EVIL = b"a\x1b]0;owned\x07\x1b[2Jb\xc2\x9b31m\xffz"
SHOWN = rb"a\x1b]0;owned\x07\x1b[2Jb\xc2\x9b31m\xffz"


def on_terminal(*words):
    """What a terminal is sent by a command, standard error included."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([muster_path()] + list(words), stdin=subprocess.DEVNULL, stdout=theirs,
                               stderr=theirs, preexec_fn=die_with_parent)
    os.close(theirs)
    said = b""
    try:
        while True:
            piece = os.read(ours, 65536)
            if not piece:
                break
            said += piece
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    process.wait(timeout=lib.PATIENCE)
    return said


def test_values_of_a_store():
    with Muster() as server:
        url = "tcp://%s:%d" % (HOST, server.port)
        run_muster("kv", "--store", url, "set", "key", EVIL)
        code, out, _ = run_muster("kv", "--store", url, "get", "key")
        checks.equal((code, out), (0, EVIL + b"\n"), "a pipe gets the bytes as they are")
        said = on_terminal("kv", "--store", url, "get", "key")
        checks.equal(said, SHOWN + b"\r\n", "a terminal is shown what they are")
        run_muster("kv", "--store", url, "set", "key", "grüße €\n\tzwei".encode())
        checks.equal(on_terminal("kv", "--store", url, "get", "key"),
                     "grüße €\r\n\tzwei\r\n".encode(), "text stays text, in lines")
        long = ("ü" * 40000).encode()
        run_muster("kv", "--store", url, "set", "key", long)
        checks.equal(on_terminal("kv", "--store", url, "get", "key"), long + b"\r\n",
                     "and a long one is whole, wherever it is cut")


def test_names_and_errors_of_donors():
    head = b'{"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}   '
    file = os.path.join(SCRATCH, "m.safetensors")
    with open(file, "wb") as out:
        out.write(len(head).to_bytes(8, "little") + head + b"12345678")
    process = subprocess.Popen(
        [muster_path().encode(), b"state", b"serve", b"--listen", b"127.0.0.1:0", b"--prefix",
         EVIL.replace(b"\xff", b""), file.encode()],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent)
    try:
        address = None
        while address is None:
            line = process.stdout.readline()
            if line.startswith(b"serving at "):
                address = line.split()[2].decode()
        for words in (["ls", address], ["pull", "-o", os.path.join(SCRATCH, "x"), address],
                      ["pull", "-q", "-o", os.path.join(SCRATCH, "y"), "--max-size", "1", address]):
            said = on_terminal("state", *words)
            checks.ok(b"\x1b]" not in said and b"\x1b[2J" not in said and b"\x07" not in said and
                      b"\xc2\x9b" not in said, "state %s obeys no donor" % words[0], said)
    finally:
        process.kill()
        process.communicate()


def main():
    try:
        checks.run_tests(globals())
    finally:
        shutil.rmtree(SCRATCH, ignore_errors=True)
    checks.done()


if __name__ == "__main__":
    main()
