#!/usr/bin/python3
"""`muster average --wire native` with four processes that know each other by their keys: one is killed in the
middle of the round, and the others end with the same bits, which are the average of those that they name; one that
stops is done without; and who is not on the list does not get in."""
import hashlib
import json
import os
import re
import signal
import struct
import subprocess
import threading
import time

import lib

checks = lib.Checks()
MUSTER = lib.muster_path()
FLOATS = 4 << 20  # 16 MiB a member
WEIGHTS = (1, 2, 3, 4)


def write(path, value):
    head = json.dumps({"w": {"dtype": "F32", "shape": [FLOATS], "data_offsets": [0, 4 * FLOATS]}}).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head + struct.pack("<f", value) * FLOATS)


def values_of(path):
    with open(path, "rb") as file:
        raw = file.read()
    return raw[8 + struct.unpack("<Q", raw[:8])[0]:]


class Member:
    """One process, with a key of its own."""

    def __init__(self, folder, number, key):
        self.number, self.key = number, key
        self.path = os.path.join(folder, "m%d" % number)
        self.process, self.said, self.reading, self.reader = None, [], threading.Event(), None
        write(self.path, float(number))
        self.before = values_of(self.path)

    def start(self, bootstrap, allow, *more):
        self.process = subprocess.Popen(
            [MUSTER, "average", "--prefix", "run", "--wire", "native", "--bootstrap", bootstrap, "--size", "4",
             "--weight", str(WEIGHTS[self.number % 4]), "--identity", self.key[0], "--allow", ",".join(allow),
             "--min-size", "4", "--timeout", "60", "--json", *more, self.path],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, preexec_fn=lib.die_with_parent)
        self.address = re.match(r"at (/\S+)$", self.process.stderr.readline())[1]
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        return self.address

    def read(self):
        for line in self.process.stderr:
            self.said.append(line)
            if line.startswith("averaging"):
                self.reading.set()
        self.reading.set()

    def end(self):
        out = self.process.stdout.read()
        code = self.process.wait(timeout=lib.PATIENCE + 60)
        self.reader.join()
        return code, json.loads(out) if code == 0 else "".join(self.said)


def make_keys(folder, count):
    keys = []
    for n in range(count):
        path = os.path.join(folder, "key%d" % n)
        done = subprocess.run([MUSTER, "peer", "id", "--new", path], stdout=subprocess.PIPE, universal_newlines=True, check=True)
        keys.append((path, re.search(r"12D3Koo\w+", done.stdout)[0]))
    return keys


def start_all(folder, keys, *more):
    ids = [key[1] for key in keys[:4]]
    members = [Member(folder, n, keys[n]) for n in range(4)]
    first = members[0].start("new", ids, *more)
    for member in members[1:]:
        member.start(first, ids, *more)
    return members


def check_agreed(members, what):
    """Those that live have ended well, with one digest, and hold the average of those that they name."""
    ended = [member.end() for member in members]
    checks.ok(all(code == 0 for code, _ in ended), what + ": those that live end well", ended)
    if any(code != 0 for code, _ in ended):
        return None
    results = [result for _, result in ended]
    digests = {result["digest"] for result in results}
    checks.equal(len(digests), 1, what + ": one digest")
    held = {hashlib.sha256(values_of(member.path)).hexdigest() for member in members}
    checks.equal(held, digests, what + ": the files are what it says")
    counted = sorted(it["weight"] for it in results[0]["members"] if it["counted"])
    mean = sum((w - 1) * w for w in counted) / sum(counted)  # member n has the weight n + 1, and the value n
    got = struct.unpack("<f", values_of(members[0].path)[:4])[0]
    checks.ok(abs(got - mean) < 1e-5, what + ": the average of those that are named", (got, mean, counted))
    return counted


def test_all(folder, keys):
    members = start_all(folder, keys)
    checks.equal(check_agreed(members, "four members"), [1.0, 2.0, 3.0, 4.0], "all of them are counted")


def test_stranger(folder, keys):
    ids = [key[1] for key in keys[:4]]
    first = Member(folder, 0, keys[0])
    address = first.start("new", ids)
    stranger = subprocess.run(
        [MUSTER, "average", "--prefix", "run", "--wire", "native", "--bootstrap", address, "--identity", keys[4][0],
         "--timeout", "10", "-q", first.path], stderr=subprocess.PIPE, universal_newlines=True, timeout=lib.PATIENCE + 60)
    checks.ok(stranger.returncode not in (0, -6, -11), "who is not on the list does not get in", stranger)
    first.process.send_signal(signal.SIGTERM)
    code, said = first.end()
    checks.equal(code, 128 + signal.SIGTERM, "a member that waits can be interrupted")
    checks.equal(values_of(first.path), first.before, "and leaves its file")


def test_killed(folder, keys):
    for victim in range(4):
        members = start_all(folder, keys)
        members[victim].reading.wait(lib.PATIENCE)
        time.sleep(0.02 * victim)  # somewhere in the round
        members[victim].process.kill()
        members[victim].process.wait()
        rest = [member for member in members if member.number != victim]
        counted = check_agreed(rest, "member %d is killed" % victim)
        checks.ok(counted is not None and len(counted) >= 3, "nobody else is left out", counted)


def test_stopped(folder, keys):
    """A member that stops, and does not die: its silence is noticed, before the time of the round is over."""
    members = start_all(folder, keys)
    members[1].reading.wait(lib.PATIENCE)
    members[1].process.send_signal(signal.SIGSTOP)
    rest = [member for member in members if member.number != 1]
    check_agreed(rest, "member 1 stops")
    members[1].process.kill()
    members[1].process.wait()


def test_encoded(folder, keys):
    members = start_all(folder, keys, "--encoding", "INT8")
    ended = [member.end() for member in members]
    checks.ok(all(code == 0 for code, _ in ended), "in a byte for each value", ended)
    checks.equal(len({result["digest"] for _, result in ended}), 1, "one digest")
    sent = max(result["bytes_sent"] for _, result in ended)
    checks.ok(sent < 4 * FLOATS * 0.6, "with less than a third of the bytes", sent)


with lib.Scratch() as folder:
    keys = make_keys(folder, 5)
    checks.run_tests(globals(), folder, keys)
checks.done()
