#!/usr/bin/python3
"""Our client on PyTorch's server: `muster kv` with every operation that it has.

Both ways of opening it are tried: told of which generation the server is, and left to find out. What
one side writes, the other reads.

    muster_client_on_torch.py [MUSTER] [--no-libuv]
"""
import datetime
import json
import subprocess
import sys
import threading
import time

import torch.distributed as dist
import torch.distributed.elastic.utils.store as elastic

import lib

NEWER = lib.torch_version() >= (2, 1)
OK, FAILED, USAGE, TIMED_OUT, NO_STORE, NO_KEY = 0, 1, 2, 3, 4, 7


class Kv:
    def __init__(self, url):
        self.url = url

    def __call__(self, *args, timeout=5000, options=()):
        return lib.run_muster("kv", "--store", self.url, "--timeout", "%dms" % timeout,
                              *options, *args)


def test_values(checks, kv, store, p):
    code, out, err = kv("set", p + "k", "value")
    checks.equal((code, err), (OK, ""), "set")
    checks.equal(store.get(p + "k"), b"value", "PyTorch gets what we set")
    store.set(p + "theirs", "from PyTorch")
    checks.equal(kv("get", p + "theirs")[:2], (OK, b"from PyTorch\n"), "we get what PyTorch set")
    kv("set", p + "empty", "")
    checks.equal(kv("get", p + "empty")[:2], (OK, b"\n"), "an empty value")
    long = "x" * 100000
    store.set(p + "long", long)
    checks.equal(kv("get", p + "long")[:2], (OK, long.encode() + b"\n"), "a value of 100,000 bytes")
    checks.equal(kv("add", p + "n", "5")[:2], (OK, b"5\n"), "add creates")
    checks.equal(store.add(p + "n", 2), 7, "PyTorch adds to it")
    checks.equal(kv("add", p + "n", "-10")[:2], (OK, b"-3\n"), "add of a negative number")


def test_compare_set(checks, kv, store, p):
    checks.equal(kv("cas", p + "c", "", "a")[:2], (OK, b"a\n"), "cas creates")
    checks.equal(kv("cas", p + "c", "a", "b")[:2], (OK, b"b\n"), "cas that matches")
    code, out, _ = kv("cas", p + "c", "zzz", "c")
    checks.equal(out, b"b\n", "cas that does not match prints what is there")
    checks.equal(store.get(p + "c"), b"b", "and PyTorch sees that nothing changed")


def test_keys(checks, kv, store, p):
    store.set(p + "there", "1")
    checks.equal(kv("check", p + "there")[0], OK, "check of a key that is there")
    checks.equal(kv("check", p + "there", p + "absent")[0], NO_KEY, "check of one that is not")
    checks.equal(int(kv("count")[1]), store.num_keys(), "count is PyTorch's num_keys")
    checks.equal(kv("del", p + "there")[0], OK, "del")
    checks.equal(kv("del", p + "there")[0], NO_KEY, "del of nothing")
    code, out, err = kv("keys", p + "k")
    if NEWER:
        checks.equal((code, out.decode().splitlines()), (OK, [p + "k"]), "keys, with a prefix")
        return
    checks.ok(code == FAILED and len(err.strip().splitlines()) == 1,
              "keys, which PyTorch 1.13 does not have, is refused in one sentence", (code, err))


def test_waits(checks, kv, store, p):
    store.set(p + "w", "1")
    checks.equal(kv("wait", p + "w")[0], OK, "wait for what is there")
    start = time.monotonic()
    code, _, err = kv("wait", p + "w", p + "never", timeout=400)
    took = time.monotonic() - start
    checks.ok(code == TIMED_OUT and p + "never" in err and 0.3 < took < 30,
              "a wait that times out names the key", (code, err, took))
    waiting = subprocess.Popen(
        [lib.muster_path(), "kv", "--store", kv.url, "--timeout", "15s", "--wait", "get", p + "later"],
        stdout=subprocess.PIPE, preexec_fn=lib.die_with_parent)
    threading.Timer(0.3, lambda: store.set(p + "later", "now")).start()
    out, _ = waiting.communicate(timeout=lib.PATIENCE)
    checks.equal((waiting.returncode, out), (OK, b"now\n"),
                 "a get waits until PyTorch sets the key")


def test_newer(checks, kv, store, p):
    """What PyTorch has since 2.x."""
    if not NEWER:
        return
    kv("append", p + "a", "one")
    store.append(p + "a", "two")
    checks.equal(kv("get", p + "a")[1], b"onetwo\n", "both append to one value")
    kv("mset", p + "m1", "1", p + "m2", "2")
    checks.equal(store.multi_get([p + "m1", p + "m2"]), [b"1", b"2"], "PyTorch gets what we set at once")
    store.multi_set([p + "m3", p + "m4"], ["3", "4"])
    checks.equal(kv("mget", p + "m3", p + "m4")[1], b"3\n4\n", "we get what PyTorch set at once")
    if "--no-libuv" in sys.argv:
        return  # that server has no queues
    kv("push", p + "q", "first")
    store.queue_push(p + "q", "second")
    store.num_keys()
    checks.equal(kv("len", p + "q")[1], b"2\n", "a queue that both put into")
    checks.equal((store.queue_pop(p + "q"), kv("pop", p + "q")[1]), (b"first", b"second\n"),
                 "and both take from, in order")
    waiting = subprocess.Popen([lib.muster_path(), "kv", "--store", kv.url, "barrier", p + "b", "2"],
                               preexec_fn=lib.die_with_parent)
    elastic.barrier(store, 2, p + "b")
    checks.equal(waiting.wait(lib.PATIENCE), OK, "both meet at a barrier of torchrun's")


def test_json(checks, kv, store, p):
    store.set(p + "j", "text")
    code, out, _ = kv("get", p + "j", options=("--json",))
    try:
        parsed = json.loads(out)
    except ValueError:
        parsed = None
    checks.ok(code == OK and "text" in json.dumps(parsed), "get --json prints JSON", out)


def main():
    checks = lib.Checks()
    with lib.TorchServer() as server:
        store = dist.TCPStore(lib.HOST, server.port, None, False, datetime.timedelta(seconds=20),
                              False)
        known = "?protocol=torch2" if NEWER else "?protocol=torch1"
        for name, query in (("told", known), ("left to find out", "")):
            checks.note("the client is %s what kind of server this is" % name)
            kv = Kv("tcp://%s:%d%s" % (lib.HOST, server.port, query))
            for test in (test_values, test_compare_set, test_keys, test_waits, test_newer, test_json):
                try:
                    test(checks, kv, store, name + "/")
                except (RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
                    checks.ok(False, test.__name__, "ended early: %r" % error)
        # The 1.13 server stalls as a whole if somebody leaves half a request with it.
        store.set("after", "1")
        checks.equal(store.get("after"), b"1", "PyTorch's own client is still served")
        checks.ok(server.alive(), "PyTorch's server is still there")
    checks.done()


main()
