#!/usr/bin/python3
"""`muster average`: files of tensors, averaged by processes that find each other in a DHT; and what is
said when something is wrong."""
import json
import os
import re
import signal
import struct
import subprocess

import lib

checks = lib.Checks()
MUSTER = lib.muster_path()
QUICK = ["--matchmaking", "2", "--timeout", "60"]


def write(path, floats, count=3):
    """A file with float32, another type, and metadata."""
    data = struct.pack("<%df" % len(floats), *floats) + struct.pack("<q", count)
    head = json.dumps({"w": {"dtype": "F32", "shape": [len(floats)], "data_offsets": [0, 4 * len(floats)]},
                       "n": {"dtype": "I64", "shape": [1], "data_offsets": [4 * len(floats), len(data)]},
                       "__metadata__": {"by": "test"}}).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head + data)


def read(path):
    with open(path, "rb") as file:
        raw = file.read()
    size = struct.unpack("<Q", raw[:8])[0]
    head = json.loads(raw[8:8 + size])
    begin, end = head["w"]["data_offsets"]
    at, last = head["n"]["data_offsets"]
    body = raw[8 + size:]
    return ([*struct.unpack("<%df" % ((end - begin) // 4), body[begin:end])], struct.unpack("<q", body[at:last])[0],
            head.get("__metadata__"))


def start(*args):
    return subprocess.Popen([MUSTER, "average", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            universal_newlines=True, preexec_fn=lib.die_with_parent)


def end(process):
    """What it says until it ends, besides what was read. Popen.communicate() would lose what came with the line that was
    read last: it reads from the descriptor, past the buffer."""
    errors, said = process.stderr.read(), process.stdout.read()
    process.wait(timeout=lib.PATIENCE)
    return said, errors


def first_address(process):
    line = process.stderr.readline()
    found = re.match(r"at (/\S+)$", line)
    assert found, "it said %r" % line
    return found[1]


def test_two_files(folder):
    a, b, out = (os.path.join(folder, name) for name in ("a", "b", "out"))
    write(a, [0.0, 2.0, 4.0], 1)
    write(b, [4.0, 2.0, 0.0], 2)
    first = start("--prefix", "run", "--bootstrap", "new", "--size", "2", *QUICK, "--json", a)
    second = start("--prefix", "run", "--bootstrap", first_address(first), "--size", "2", "--weight", "3", "-q", *QUICK,
                   "-o", out, b)
    said, errors = end(first)
    _, more = end(second)
    checks.equal((first.returncode, second.returncode), (0, 0), "two files are averaged")
    checks.equal(read(a), ([3.0, 2.0, 1.0], 1, {"by": "test"}), "in place; integers and metadata stay")
    checks.equal(read(out), ([3.0, 2.0, 1.0], 2, {"by": "test"}), "into another file")
    checks.equal(read(b)[0], [4.0, 2.0, 0.0], "which leaves the one that was read")
    result = json.loads(said)
    checks.equal((len(result["members"]), result["parts_local"]), (2, 0), "the result as JSON")
    checks.ok("looking for a group in run.0b\n" in errors, "it says where it looks, however soon others come", errors)
    checks.equal(more, "", "--quiet prints nothing")


def test_waiting(folder):
    """It says for whom it waits, until it is interrupted."""
    a = os.path.join(folder, "a")
    write(a, [1.0])
    lonely = start("--prefix", "run", "--bootstrap", "new", a)
    lines = [lonely.stderr.readline() for _ in range(3)]
    checks.equal(lines[1:], ["looking for a group in run.0b\n", "nobody else is there yet\n"], "it says for whom it waits")
    lonely.send_signal(signal.SIGINT)
    checks.ok("interrupted" in end(lonely)[1], "until it is interrupted")
    checks.equal((lonely.returncode, read(a)[0]), (128 + signal.SIGINT, [1.0]), "which leaves the file")


def test_faults(folder):
    a = os.path.join(folder, "a")
    write(a, [1.0])
    before = open(a, "rb").read()
    for words, code, text in (
            (["--prefix", "a.b", "--bootstrap", "new", a], 2, "dot"),
            (["--prefix", "x", a], 2, "--bootstrap"),
            (["--bootstrap", "new", a], 2, "--prefix"),
            (["--prefix", "x", "--bootstrap", "new"], 2, "FILE"),
            (["--prefix", "x", "--bootstrap", "new", a + ".not"], 1, "No such file"),
            (["--prefix", "x", "--bootstrap", "new", folder], 1, "Is a directory"),
            (["--prefix", "x", "--bootstrap", "new", "-o", folder + "/not/b", a], 1, "/not/b: No such file"),
            (["--prefix", "x", "--bootstrap", "new", "--averager", "PowerSGDGradientAverager", a], 2, "power_rank"),
            (["--prefix", "x", "--bootstrap", "new", MUSTER], None, "muster:"),
            (["--prefix", "x", "--bootstrap", "/ip4/127.0.0.1/tcp/1", a], None, "names no peer"),
            (["--prefix", "x", "--bootstrap", "/ip4/127.0.0.1/tpc/1", a], None, "tpc"),
            (["--prefix", "x", "--bootstrap", "new", "--listen", "/ip4/0.0.0.0/tcp/0", a], None, "--allow"),
            (["--prefix", "x", "--bootstrap", "new", "--mode", "boss", a], 2, "node"),
            (["--prefix", "x", "--bootstrap", "new", "--matchmaking", "1", "--timeout", "1", a], None,
             "nobody else looked for one in x.0b")):
        done = start(*words)
        said = done.communicate(timeout=lib.PATIENCE + 30)[1]
        checks.ok(done.returncode not in (0, -6, -11) and (code is None or done.returncode == code) and text in said,
                  "refused: " + " ".join(words).replace(folder, ""), (done.returncode, said))
    checks.equal(open(a, "rb").read(), before, "the file is as it was")


with lib.Scratch() as folder:
    checks.run_tests(globals(), folder)
checks.done()
