#!/usr/bin/python3
"""PyTorch's FileStore and ours on one file: values, counters, deletes both ways, and adds from both
at once.

    file_store.py [MUSTER]
"""
import datetime
import os
import subprocess
import sys
import threading

import torch.distributed as dist

import lib

OK, TIMED_OUT, NO_KEY = 0, 3, 7
MANY = 10


def open_torch(path):
    store = dist.FileStore(path, MANY)
    store.set_timeout(datetime.timedelta(seconds=15))
    return store


class Kv:
    def __init__(self, path):
        self.url = "file://" + path

    def __call__(self, *args, timeout=10000):
        return lib.run_muster("kv", "--store", self.url, "--timeout", "%dms" % timeout,
                              *args)


def test_values(checks, kv, store):
    store.set("t", "from PyTorch")
    checks.equal(kv("get", "t")[:2], (OK, b"from PyTorch\n"), "we get what PyTorch set")
    kv("set", "m", "from muster")
    checks.equal(store.get("m"), b"from muster", "PyTorch gets what we set")
    kv("set", "t", "anew")
    checks.equal(store.get("t"), b"anew", "the last record wins, ours over theirs")
    store.set("m", "")
    checks.equal(kv("get", "m")[:2], (OK, b"\n"), "theirs over ours, and empty")
    long = "x" * 90000
    kv("set", "long", long)
    checks.equal(store.get("long"), long.encode(), "a value of 90,000 bytes")
    checks.equal(kv("cas", "c", "", "a")[:2], (OK, b"a\n"), "cas creates")
    checks.equal(store.compare_set("c", "a", "b"), b"b", "PyTorch's compare_set matches it")
    checks.equal(kv("cas", "c", "a", "z")[1], b"b\n",
                 "cas that does not match prints what is there")
    checks.equal(store.get("c"), b"b", "and changed nothing")


def test_counters(checks, kv, store):
    checks.equal(kv("add", "n", "5")[:2], (OK, b"5\n"), "add creates")
    checks.equal(store.add("n", 2), 7, "PyTorch adds to it")
    checks.equal(kv("add", "n", "-10")[:2], (OK, b"-3\n"), "and we to that")
    checks.equal(int(kv("count")[1]), store.num_keys(), "count agrees with num_keys")


def test_deletes(checks, kv, store):
    store.set("d1", "1")
    kv("set", "d2", "1")
    checks.equal(kv("del", "d1")[0], OK, "we delete what PyTorch set")
    checks.ok(not store.check(["d1"]), "PyTorch sees it gone") if hasattr(store, "check") else \
        checks.raises(RuntimeError, lambda: store.wait(["d1"], datetime.timedelta(milliseconds=10)),
                      "PyTorch sees it gone")
    store.delete_key("d2")
    checks.equal(kv("check", "d2")[0], NO_KEY, "PyTorch deletes what we set, we see it gone")
    store.set("d1", "back")
    checks.equal(kv("get", "d1")[:2], (OK, b"back\n"), "a deleted key can come back")
    code, _, err = kv("get", "never", "--wait", timeout=300)
    checks.ok(code == TIMED_OUT and "never" in err, "a get that times out names the key",
              (code, err))


def test_waits(checks, kv, store):
    waiting = subprocess.Popen([lib.muster_path(), "kv", "--store", kv.url, "--timeout", "15s",
                                "wait", "w1", "w2"],
                               preexec_fn=lib.die_with_parent)
    store.set("w1", "1")
    threading.Timer(0.2, lambda: store.set("w2", "1")).start()
    checks.equal(waiting.wait(lib.PATIENCE), OK, "our wait is ended by PyTorch's set")
    got = []
    thread = threading.Thread(target=lambda: got.append(store.get("w3")))
    thread.start()
    kv("set", "w3", "here")
    thread.join(lib.PATIENCE)
    checks.equal(got, [b"here"], "PyTorch's get is ended by our set")


def add_many(path, count):
    """Run in a process of its own: PyTorch's half of the race."""
    store = open_torch(path)
    for _ in range(count):
        print(store.add("race", 1))
    sys.stdout.flush()
    # Its destructor would count this user as gone; the file must stay.
    os._exit(0)


def test_race(checks, kv, path):
    each = 40
    theirs = [subprocess.Popen([sys.executable, __file__, "add", path, str(5 * each)],
                               stdout=subprocess.PIPE,
                               preexec_fn=lib.die_with_parent) for _ in range(2)]
    sums = []

    def ours():
        for _ in range(each):
            sums.append(int(kv("add", "race", "1")[1] or -1))

    threads = [threading.Thread(target=ours) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for process in theirs:
        out, _ = process.communicate(timeout=3 * lib.PATIENCE)
        sums += [int(line) for line in out.split()]
    total = 2 * each + 2 * 5 * each
    checks.ok(sorted(sums) == list(range(1, total + 1)),
              "%d adds from two processes of each at once: no sum twice, none lost" % total,
              "%d sums, %d of them different" % (len(sums), len(set(sums))))


def test_damage(checks, path):
    """A file that ends in the middle of a record, or whose lengths are absurd."""
    with open(path, "rb") as file:
        whole = file.read()
    bad = path + ".bad"
    for name, content in (("cut short", whole[:-3]), ("absurd length",
                                                      whole + b"\xff\xff\xff\xff" + b"x" * 100),
                          ("not a store", b"#!/bin/sh\necho hello\n" * 20)):
        with open(bad, "wb") as file:
            file.write(content)
        code, _, err = lib.run_muster("kv", "--store", "file://" + bad, "--timeout", "300ms", "get",
                                      "--wait", "no such key")
        checks.ok(code in (1, 3, 5) and len(err.strip().splitlines()) == 1,
                  "a damaged file (%s) is one sentence, not a crash or a hang" % name, (code, err))


def test_fresh(checks):
    with lib.Scratch() as scratch:
        fresh = os.path.join(scratch, "fresh")
        lib.run_muster("kv", "--store", "file://" + fresh, "set", "first", "ours")
        checks.equal(open_torch(fresh).get("first"), b"ours",
                     "a file that we made, opened by PyTorch")


def main():
    if "add" in sys.argv:
        return add_many(sys.argv[2], int(sys.argv[3]))
    checks = lib.Checks()
    with lib.Scratch() as scratch:
        path = os.path.join(scratch, "store")
        kv = Kv(path)
        store = open_torch(path)
        for test in (lambda: test_values(checks, kv, store),
                     lambda: test_counters(checks, kv, store),
                     lambda: test_deletes(checks, kv, store),
                     lambda: test_waits(checks, kv, store),
                     lambda: test_race(checks, kv, path), lambda: test_fresh(checks),
                     lambda: test_damage(checks, path)):
            try:
                test()
            except (RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
                checks.ok(False, "a test ended early", repr(error))
    checks.done()


main()
