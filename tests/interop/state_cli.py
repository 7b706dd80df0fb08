#!/usr/bin/python3
"""Two people and a model: `muster state serve` on one side, `muster state pull` on the other.

    state_cli.py [MUSTER] [--only=NAME]

Donors are killed and stopped in the middle, pulls are interrupted and go on, and every file that
comes out is the one that went in, byte for byte. Beside that, what the commands print and how they
exit.
"""
import hashlib
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import time

import lib
from lib import HOST, Checks, die_with_parent, muster_path, run_muster

checks = Checks()
MIB = 1 << 20
SIZE = 12 * MIB
SCRATCH = tempfile.mkdtemp(prefix="muster-state-")


def path(name):
    return os.path.join(SCRATCH, name)


def make(name, seed, size=SIZE):
    """A safetensors file of two tensors, with the blanks that PyTorch's writers leave."""
    half = size // 2
    head = {"__metadata__": {"format": "pt"},
            "embed.weight": {"dtype": "BF16", "shape": [half // 2], "data_offsets": [0, half]},
            "head.weight": {"dtype": "F32", "shape": [half // 4], "data_offsets": [half, 2 * half]}}
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    block = hashlib.sha256(seed.encode()).digest() * (MIB // 32)
    with open(path(name), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for number in range(2 * half // MIB):
            file.write(struct.pack("<Q", number) + block[8:])
    return path(name)


def digest(name):
    with open(name, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


class Donor:
    """`muster state serve`."""

    def __init__(self, file, *options, listen=HOST + ":0"):
        self.process = subprocess.Popen(
            [muster_path(), "state", "serve", "--json", "--listen", listen] + list(options) + [file],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent)
        self.said = json.loads(self.process.stdout.readline())
        self.address = self.said["address"]

    def signal(self, number):
        self.process.send_signal(number)

    def stop(self):
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        code = self.process.wait(timeout=lib.PATIENCE)
        return code, json.loads(self.process.stdout.readline() or "{}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


class Pull:
    """`muster state pull --json`, whose events are read as they come."""

    def __init__(self, out, *words):
        self.out = out
        self.process = subprocess.Popen(
            [muster_path(), "state", "pull", "--json", "-o", out] + list(words),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=die_with_parent)

    def until(self, event, **more):
        for line in self.process.stdout:
            said = json.loads(line)
            if said["event"] in (event, "done", "failed"):
                if said["event"] != event:
                    raise AssertionError("%r came before %s" % (said, event))
                if all(test(said[name]) for name, test in more.items()):
                    return said
        raise AssertionError("it ended before " + event + ": " + self.process.stderr.read().decode())

    def end(self):
        """The exit code and the last event."""
        out, err = self.process.communicate(timeout=lib.PATIENCE * 2)
        lines = [json.loads(line) for line in out.decode().splitlines()]
        return self.process.returncode, lines[-1] if lines else None, err.decode()


def check_pulled(pull, source, what):
    code, last, err = pull.end()
    checks.equal(code, 0, what + ": it ends well")
    checks.ok(last is not None and last["event"] == "done", what + ": it says so", (last, err))
    checks.equal(digest(pull.out) if os.path.exists(pull.out) else None, digest(source),
                 what + ": the file is the same, byte for byte")
    checks.ok(not os.path.exists(pull.out + ".part"), what + ": nothing half is left")
    return last or {}


def some(at_least):
    return lambda got: got >= at_least


# --- tests --------------------------------------------------------------------------------------


def test_serve_pull_and_ls():
    source = make("plain.safetensors", "plain")
    with Donor(source, "--epoch", "3", "--step", "5") as donor:
        checks.equal(donor.said["transport"], "plain", "serve says what connections are made of")
        checks.equal(donor.said["prefix"], "plain", "the prefix is the file's name")
        code, out, err = run_muster("state", "ls", "--json", donor.address)
        row = json.loads(out)
        checks.equal((code, row["epoch"], row["step"], row["tensors"]), (0, 3, 5, 2),
                     "ls shows the version")
        checks.equal(row["have"], row["chunks"], "and that it is whole")
        code, out, err = run_muster("state", "ls", donor.address, HOST + ":1", "--connect", "0.3")
        checks.equal((code, len(out.splitlines())), (0, 3), "a donor that is not there is a line")
        check_pulled(Pull(path("plain.out"), donor.address), source, "pull")
        code, out, err = run_muster("state", "pull", "-o", path("words.out"), donor.address)
        checks.ok(code == 0 and "verified" in err and donor.address in err,
                  "without --json it is said in words", err)
        checks.equal(out, b"", "on standard error, since there is no data to print")
        code, said = donor.stop()
        checks.equal((code, said.get("downloads")), (0, 2), "serve counts its downloads")


def test_nobody_there_and_nothing_to_have():
    code, out, err = run_muster("state", "pull", "-o", path("none"), "--connect", "0.3",
                                HOST + ":1")
    checks.equal(code, 4, "nobody there: exit code")
    checks.ok(HOST + ":1" in err, "it names the donor", err)
    source = make("other.safetensors", "other", MIB)
    with Donor(source) as donor:
        code, out, err = run_muster("state", "pull", "-o", path("none"), "--prefix", "nope",
                                    donor.address)
        checks.equal(code, 7, "no such prefix: exit code")
    with open(path("bad.safetensors"), "wb") as file:
        file.write(b"this is no model")
    code, out, err = run_muster("state", "serve", "--listen", HOST + ":0",
                                path("bad.safetensors"))
    checks.ok(code == 5 and "bad.safetensors" in err, "a file that is none: said, and by name", err)
    code, out, err = run_muster("state", "pull")
    checks.equal(code, 2, "no donors: wrong usage")


def test_donor_killed_in_the_middle():
    source = make("kill.safetensors", "kill")
    with Donor(source, "--rate", "3M") as one, Donor(source, "--rate", "3M") as two:
        pull = Pull(path("kill.out"), one.address, two.address)
        pull.until("progress", bytes=some(2 * MIB), donors=some(2))
        one.signal(signal.SIGKILL)
        last = check_pulled(pull, source, "one donor of two killed")
        checks.ok(last.get("lost", 0) >= 1, "its loss is counted", last)
        checks.ok(last.get("wasted", 1 << 40) <= 2 * MIB, "it cost a chunk, or a twin", last)


def test_only_donor_killed_and_back():
    source = make("back.safetensors", "back")
    port = lib.free_port()
    with Donor(source, "--rate", "3M", listen="%s:%d" % (HOST, port)) as one:
        pull = Pull(path("back.out"), one.address)
        pull.until("progress", bytes=some(2 * MIB))
        one.signal(signal.SIGKILL)
        one.process.wait()
        with Donor(source, listen="%s:%d" % (HOST, port)):
            check_pulled(pull, source, "the only donor killed and started again")


def test_donor_stopped():
    source = make("stop.safetensors", "stop")
    with Donor(source, "--rate", "3M") as one, Donor(source, "--rate", "3M") as two:
        # On a loaded machine a donor may be silent for half a second without having been stopped.
        pull = Pull(path("stop.out"), "--stall", "2", one.address, two.address)
        pull.until("progress", bytes=some(2 * MIB), donors=some(2))
        one.signal(signal.SIGSTOP)
        check_pulled(pull, source, "one donor of two stopped")
        one.signal(signal.SIGCONT)


def test_only_donor_stopped_ends_at_the_idle_deadline():
    source = make("idle.safetensors", "idle")
    with Donor(source, "--rate", "2M") as one:
        pull = Pull(path("idle.out"), "--stall", "0.4", "--idle", "1.5", "--connect", "0.5",
                    one.address)
        pull.until("progress", bytes=some(MIB))
        one.signal(signal.SIGSTOP)
        begun = time.monotonic()
        code, last, err = pull.end()
        checks.equal(code, 3, "the only donor stopped: timed out")
        checks.ok(time.monotonic() - begun < 60, "within its time")
        checks.ok(one.address in err and "run the same command to continue" in err,
                  "it names the donor and the remedy", err)
        one.signal(signal.SIGCONT)
        last = check_pulled(Pull(path("idle.out"), one.address), source, "pulled again")
        checks.ok(last.get("resumed", 0) >= MIB, "what was there was not pulled again", last)


def test_interrupted_pull_goes_on():
    source = make("resume.safetensors", "resume")
    with Donor(source, "--rate", "4M") as donor:
        for number in (signal.SIGINT, signal.SIGKILL):
            pull = Pull(path("resume.out"), donor.address)
            pull.until("progress", bytes=some((2 if number == signal.SIGINT else 5) * MIB))
            pull.process.send_signal(number)
            code, _, err = pull.end()
            checks.ok(code in (130, -9), "interrupted by %s" % number.name, code)
            checks.ok(os.path.exists(path("resume.out.part")), "what came is kept")
        last = check_pulled(Pull(path("resume.out"), donor.address), source, "resumed")
        checks.ok(last.get("resumed", 0) >= 4 * MIB, "most of it was there", last)


def test_file_replaced_while_it_is_served():
    source = make("new.safetensors", "old version")
    with Donor(source, "--epoch", "1") as donor:
        os.rename(make("next.safetensors", "new version"), source)
        check = Pull(path("old.out"), donor.address)
        code, last, err = check.end()
        checks.equal((code, last["epoch"]), (0, 1), "renamed over, the old file is served")
        checks.ok(digest(path("old.out")) != digest(source), "and it is the old one")
        donor.signal(signal.SIGHUP)
        said = json.loads(donor.process.stdout.readline())
        checks.equal(said["epoch"], 2, "SIGHUP shares the new one")
        check_pulled(Pull(path("new.out"), donor.address), source, "the new version")


def test_donors_found_through_a_store():
    source = make("found.safetensors", "found", 2 * MIB)
    port = lib.free_port()
    store = subprocess.Popen([muster_path(), "serve", "--listen", "%s:%d" % (HOST, port)],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                             preexec_fn=die_with_parent)
    url = "tcp://%s:%d" % (HOST, port)
    try:
        with Donor(source, "--store", url) as donor:
            check_pulled(Pull(path("found.out"), "--store", url), source, "found through a store")
            code, out, err = run_muster("state", "ls", "--json", "--store", url)
            checks.equal(json.loads(out)["donor"], donor.address, "ls finds it, too")
    finally:
        store.kill()
        store.wait()


def test_over_the_same_file():
    """A file that is this state already is verified and stays; another one is replaced."""
    source = make("same.safetensors", "same")
    out = path("same.out")
    with Donor(source) as donor:
        check_pulled(Pull(out, donor.address), source, "over nothing")
        there = os.stat(out)
        last = check_pulled(Pull(out, donor.address), source, "over the same file")
        checks.equal(last.get("resumed"), SIZE, "all of it was there")
        now = os.stat(out)
        checks.equal((now.st_ino, now.st_mtime_ns), (there.st_ino, there.st_mtime_ns),
                     "and it was not written to")
        code, text, err = run_muster("state", "pull", "-o", out, donor.address)
        checks.ok(code == 0 and "nothing was loaded" in err, "which is said", err)
        shutil.copy(out, out + ".kept")
        with open(out + ".kept", "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"!")
        os.rename(out + ".kept", out)
        last = check_pulled(Pull(out, donor.address), source, "over a file with one wrong byte")
        checks.equal(last.get("resumed"), 0, "which is of no use")
        code, said = donor.stop()
        checks.equal(said.get("downloads"), 2, "the donor gave the bytes twice in four pulls")


def test_output_that_cannot_be_replaced_is_refused_at_once():
    """Not after all of the state has come."""
    source = make("target.safetensors", "target", MIB)
    os.mkdir(path("dir"))
    os.mkfifo(path("pipe"))
    with Donor(source) as donor:
        for out, text in (("dir", "is a directory"), ("dir/", "is a directory"),
                          ("pipe", "is not an ordinary file")):
            code, _, err = run_muster("state", "pull", "-o", path(out), donor.address)
            checks.ok(code == 2 and text in err, "-o " + out, (code, err))
        code, _, err = run_muster("state", "pull", "-o", "", donor.address)
        checks.ok(code == 2 and "--output needs a value" in err, "-o ''", (code, err))
        checks.equal([name for name in os.listdir(SCRATCH) if name.endswith(".part")] +
                     os.listdir(path("dir")), [], "nothing was written")
        code, said = donor.stop()
        checks.equal(said.get("downloads"), 0, "nothing was loaded")


def test_pickles_are_told_from_safetensors():
    for name, begin in (("zip.pt", b"PK\x03\x04\x00\x00\x08\x08"),
                        ("old.pt", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")):
        with open(path(name), "wb") as file:
            file.write(begin + bytes(100))
        code, out, err = run_muster("state", "serve", "--listen", HOST + ":0", path(name))
        checks.ok(code == 5 and "this is a PyTorch pickle; save it as safetensors: "
                  "safetensors.torch.save_file(torch.load(" in err, name + " is told what to do",
                  (code, err))


def test_between_peers():
    source = make("peer.safetensors", "peer")
    code, out, err = run_muster("peer", "id", "--identity", path("peer.key"), "--new")
    checks.equal(code, 0, "a key is made")
    with Donor(source, "--identity", path("peer.key"), listen="/ip4/%s/tcp/0" % HOST) as donor:
        checks.ok(re.search("/p2p/", donor.address), "the address has the peer in it")
        checks.equal(donor.said["transport"], "peer", "it is said to be between peers")
        check_pulled(Pull(path("peer.out"), donor.address), source, "between peers")


def test_in_a_swarm():
    source = make("swarm.safetensors", "swarm")
    where = "/ip4/%s/tcp/0" % HOST
    with Donor(source, "--bootstrap", "new", "--prefix", "run", "--rate", "2M", listen=where) as first:
        swarm = first.address
        checks.equal(first.said["transport"], "peer", "in a swarm: between peers")
        with Donor(source, "--bootstrap", swarm, "--prefix", "run", "--rate", "2M", "--hivemind",
                   "DecentralizedAverager", listen=where) as second:
            code, out, err = run_muster("state", "ls", "--json", "--bootstrap", swarm, "run")
            rows = [json.loads(line) for line in out.decode().splitlines()]
            ids = sorted(donor.address.split("/p2p/")[1] for donor in (first, second))
            checks.equal((code, sorted(row["donor"].split("/p2p/")[1] for row in rows)), (0, ids),
                         "ls finds both in the DHT")
            pull = Pull(path("swarm.out"), "--bootstrap", swarm, "--hivemind", "DecentralizedAverager",
                        "run")
            pull.until("progress", bytes=some(2 * MIB), donors=some(2))
            second.signal(signal.SIGKILL)
            last = check_pulled(pull, source, "in a swarm, one donor of two killed")
            checks.ok(last.get("lost", 0) >= 1, "its loss is counted", last)
            checks.equal(last.get("hivemind"), False, "it is verified, not hivemind's")
            code, out, err = run_muster("state", "pull", "-o", path("swarm.more"), "--bootstrap", swarm,
                                        "--connect", "1", "--timeout", "60", "run")
            checks.equal(code, 0, "the entry of the dead donor does not stop a pull")
            checks.ok(ids[0] in err and ids[1] in err, "which says what became of both", err)
        code, out, err = run_muster("state", "pull", "-o", path("none"), "--bootstrap", swarm, "other")
        checks.equal(code, 7, "nobody has that prefix: exit code")
        code, out, err = run_muster("state", "pull", "-o", path("none"), "--bootstrap", swarm)
        checks.equal(code, 2, "a swarm without a prefix: wrong usage")
        code, out, err = run_muster("dht", "get", "--json", "--latest", "--bootstrap", swarm,
                                    "run.all_averagers")
        checks.ok(json.loads(out)["found"], "what is shared is in the DHT")
        first.signal(signal.SIGCONT)
    code, out, err = run_muster("state", "pull", "-o", path("none"), "--bootstrap", swarm, "--connect",
                                "0.5", "run")
    checks.equal(code, 4, "nobody of the DHT is there: exit code")


def test_withdrawn_from_the_swarm():
    source = make("bye.safetensors", "bye", 2 * MIB)
    where = "/ip4/%s/tcp/0" % HOST
    node = subprocess.Popen([muster_path(), "dht", "serve", "--json", "--listen", where],
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                            preexec_fn=die_with_parent)
    try:
        swarm = json.loads(node.stdout.readline())["listen"][0]
        with Donor(source, "--bootstrap", swarm, "--prefix", "run", listen=where) as donor:
            check_pulled(Pull(path("bye.out"), "--bootstrap", swarm, "run"), source,
                         "through a node of the DHT that has nothing itself")
            code, said = donor.stop()
            checks.equal((code, said.get("downloads")), (0, 1), "the donor stops in order")
        code, out, err = run_muster("state", "pull", "-o", path("none"), "--bootstrap", swarm, "run")
        checks.equal(code, 7, "what was withdrawn is not there")
    finally:
        node.kill()
        node.wait()


def main():
    try:
        checks.run_tests(globals())
    finally:
        shutil.rmtree(SCRATCH, ignore_errors=True)
    checks.done()


if __name__ == "__main__":
    main()
