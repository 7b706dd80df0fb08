#!/usr/bin/python3
"""Words of others on a terminal: values of a store, names of states, errors. A terminal is sent nothing
of theirs that it would obey; a pipe gets every byte as it is. And what a person at a terminal has: the
prompt of `muster kv`, the keys and colours of `muster top`.

    terminal.py [MUSTER] [--only=NAME]
"""
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import termios

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


class Session:
    """A command with a terminal of its own: what a person types, and what is shown."""

    def __init__(self, *words, **env):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            die_with_parent()
            os.environ.update({"TERM": "xterm", "HOME": SCRATCH, **env})
            os.execv(muster_path(), ["muster"] + list(words))
        self.said = b""
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

    def type(self, text):
        os.write(self.fd, text.encode())

    def read(self, patience=0.05):
        """Reads what is there; False: the other end is closed."""
        try:
            while select.select([self.fd], [], [], patience)[0]:
                piece = os.read(self.fd, 65536)
                if not piece:
                    return False
                self.said += piece
        except OSError:
            return False
        return True

    def until(self, text, what):
        """Waits for a text, forgets what was shown before it, and returns that."""
        lib.wait_until(lambda: self.read() is not None and text.encode() in self.said or None,
                       "%s (shown: %r)" % (what, self.said[-300:]))
        before, self.said = self.said.split(text.encode(), 1)
        return before

    def end(self):
        """Its exit code."""
        lib.wait_until(lambda: not self.read(), "the end")
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.fd)


def has_libedit():
    return b"libedit" in subprocess.run(["ldd", muster_path()], stdout=subprocess.PIPE,
                                        check=False).stdout


def test_prompt_takes_letters_of_any_language_and_keeps_its_history():
    with Muster() as server:
        url = "tcp://%s:%d" % (HOST, server.port)
        with Session("kv", "--store", url, LC_ALL="C.UTF-8") as s:
            s.until("> ", "the prompt")
            s.type("set größe 5€\r")
            s.until("> ", "the next prompt")
            s.type("get never --wait\r")
            s.until("--wait\r\n", "an operation that waits")
            s.type("\x03")
            checks.equal(s.end(), -signal.SIGINT, "Ctrl-C ends the prompt")
        checks.equal(run_muster("kv", "--store", url, "get", "größe")[1], "5€\n".encode(),
                     "what was typed came through")
        if has_libedit():
            with Session("kv", "--store", url, LC_ALL="C.UTF-8") as s:
                s.until("> ", "the prompt")
                s.type("\x1b[A\x1b[A")
                s.until("set größe 5€", "a line of the history, after Ctrl-C")


def test_prompt():
    with Muster() as server:
        url = "tcp://%s:%d" % (HOST, server.port)
        with Session("kv", "--store", url) as s:
            s.until("> ", "the prompt, which names the store")
            s.type("set greeting 'hello there'\r")
            s.until("> ", "the next prompt")
            s.type("get greeting\r")
            s.until("hello there", "a value that was quoted")
            s.until("> ", "the next prompt")
            s.type("get none\r")
            s.until("there is no key \"none\"", "an operation that fails")
            s.until("> ", "it goes on")
            s.type("gte x\r")
            s.until("did you mean get?", "a mistyped one")
            s.until("> ", "it goes on")
            s.type("get --help\r")
            s.until("usage: muster kv", "help, which does not end it")
            s.until("print this help", "all of it")
            s.until("> ", "it goes on")
            if has_libedit():
                s.type("coun\t\r")
                s.until("1\r\n", "an operation that was completed")
                s.until("> ", "it goes on")
                s.type("get --js\tgree\t\r")
                s.until('{"key":"greeting"', "an option and a key that were completed")
                s.until("> ", "it goes on")
                s.type("\x1b[A\r")
                s.until('{"key":"greeting"', "the line before, from the history")
                s.until("> ", "it goes on")
            else:
                checks.note("muster was built without libedit")
            s.type("quit\r")
            checks.equal(s.end(), 0, "a prompt takes operations, and ends")
    file = os.path.join(SCRATCH, ".muster_history")
    if os.path.exists(file):
        checks.equal(os.stat(file).st_mode & 0o777, 0o600, "others cannot read the history")
    code, _, err = run_muster("kv", "--store", "hash:")
    checks.ok(code == 2 and "operation" in err, "without a terminal there is no prompt", (code, err))


def test_top():
    long = "run-" + "x" * 150
    with Muster("--http", HOST + ":0") as server:
        page = re.search(r"status at http://(\S+)/", server.output())[1]
        node = subprocess.Popen([muster_path(), "rdzv", "join", "--rdzv-id", long, "--quiet",
                                 "--rdzv-endpoint", "%s:%d" % (HOST, server.port)],
                                stdout=subprocess.PIPE, preexec_fn=die_with_parent)
        try:
            node.stdout.readline()
            with Session("top", page) as s:
                shown = s.until("last beat", "a screen")
                checks.ok(b"\x1b[1m" in shown and long.encode() not in shown,
                          "a terminal has colours, and lines of its width", shown)
                s.type("xq")
                checks.equal(s.end(), 0, "q ends it")
                checks.ok(b"\x1b[?1049l" in s.said, "and leaves the terminal as it was", s.said)
            with Session("top", page, "--once", NO_COLOR="1") as s:
                shown = s.until("last beat", "a screen")
                checks.ok(b"\x1b" not in shown, "NO_COLOR is obeyed", shown)
                checks.equal(s.end(), 0, "--once ends")
            code, out, _ = run_muster("top", page, "--once")
            checks.ok(code == 0 and long.encode() in out and b"\x1b" not in out,
                      "a pipe has no colours, and whole lines", out)
            code, out, _ = run_muster("top", page, "--once", "--json")
            checks.equal((code, json.loads(out)["runs"][0]["id"]), (0, long), "--json")
        finally:
            node.kill()
            node.communicate()


def main():
    try:
        checks.run_tests(globals())
    finally:
        shutil.rmtree(SCRATCH, ignore_errors=True)
    checks.done()


if __name__ == "__main__":
    main()
