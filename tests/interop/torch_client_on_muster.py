#!/usr/bin/python3
"""PyTorch's own client on our server: every operation, its timeouts, PrefixStore, and two processes
that form a gloo group and reduce through it.

    torch_client_on_muster.py [MUSTER] [--torch | --gateway]

--torch runs it on PyTorch's own server instead: a test of this test. --gateway puts another server
of ours between.
"""
import datetime
import os
import subprocess
import sys
import threading

import torch
import torch.distributed as dist

import lib

SHORT = datetime.timedelta(milliseconds=300)
LONG = datetime.timedelta(seconds=lib.PATIENCE)


def connect(port, timeout=LONG, world_size=None, wait_for_workers=False):
    return dist.TCPStore(lib.HOST, port, world_size, False, timeout, wait_for_workers)


def test_values(checks, port):
    store = connect(port)
    store.set("k", "v")
    checks.equal(store.get("k"), b"v", "set, then get")
    store.set("k", "")
    checks.equal(store.get("k"), b"", "an empty value")
    big = "x" * (1 << 20)
    store.set("big", big)
    checks.equal(store.get("big"), big.encode(), "a value of 1 MiB")
    long_key = "k" * 8000
    store.set(long_key, "1")
    checks.equal(store.get(long_key), b"1", "a key of 8000 bytes")
    store.set("unicode \u00fc", "\u20ac")
    checks.equal(store.get("unicode \u00fc"), "\u20ac".encode(), "text beyond ASCII")
    checks.equal(store.add("n", 5), 5, "add creates")
    checks.equal(store.add("n", -7), -2, "add of a negative number")
    checks.equal(store.get("n"), b"-2", "a number is stored as its digits")
    store.set("s", " 12abc")
    checks.equal(store.add("s", 1), 13, "add reads a number as strtoll does")


def test_compare_set(checks, port):
    store = connect(port)
    checks.equal(store.compare_set("c1", "", "a"), b"a", "compare_set creates where nothing is")
    checks.equal(store.compare_set("c1", "a", "b"), b"b", "compare_set writes where it matches")
    checks.equal(store.compare_set("c1", "zzz", "c"), b"b", "compare_set leaves what differs")
    checks.equal(store.compare_set("c2", "x", "y"), b"x",
                 "compare_set on nothing answers what was expected")
    checks.raises(RuntimeError, lambda: connect(port).wait(["c2"], SHORT), "and does not create it")
    store.set("c3", "")
    checks.equal(store.compare_set("c3", "", "full"), b"full", "compare_set on an empty value")


def test_counting(checks, port):
    store = connect(port)
    before = store.num_keys()
    store.set("d1", "1")
    checks.equal(store.num_keys(), before + 1, "num_keys counts a new key")
    checks.equal(store.delete_key("d1"), True, "delete_key of a key")
    checks.equal(store.delete_key("d1"), False, "delete_key of nothing")
    checks.equal(store.num_keys(), before, "num_keys after the delete")


def test_newer(checks, port):
    """What PyTorch has since 2.x."""
    if lib.torch_version() < (2, 12) or "--no-libuv" in sys.argv:
        return  # the server without libuv has no queues
    store, other = connect(port), connect(port)
    store.append("ap", "one")
    store.append("ap", "two")
    checks.equal(store.get("ap"), b"onetwo", "append")
    store.multi_set(["m1", "m2"], ["1", "2"])
    store.num_keys()
    checks.equal(other.multi_get(["m1", "m2"]), [b"1", b"2"], "multi_set, then multi_get")
    checks.ok("m1" in store.list_keys(), "list_keys")
    store.queue_push("q", "first")
    store.queue_push("q", "second")
    checks.equal((store.queue_len("q"), store.queue_pop("q"), store.queue_pop("q")),
                 (2, b"first", b"second"), "a queue")
    # In a process of its own: PyTorch holds the interpreter while it waits.
    with subprocess.Popen([sys.executable, __file__, "newer", "2", str(port)], stdout=subprocess.PIPE,
                          text=True, preexec_fn=lib.die_with_parent) as beside:
        store.wait(["newer/here"])
        store.queue_push("q", "late")
        checks.equal(beside.stdout.readline(), "late\n", "queue_pop waits for a push")
        store.barrier("b", 2, LONG)
        checks.equal(beside.stdout.readline(), "met\n", "two clients meet at a barrier")
    checks.raises(RuntimeError, lambda: store.barrier("alone", 2, SHORT), "alone nobody passes one")
    checks.equal(store.get("ap"), b"onetwo", "and its client goes on")


def test_waits(checks, port):
    store = connect(port)
    store.set("w1", "1")
    store.wait(["w1"])
    checks.ok(True, "wait for what is there")
    checks.raises(RuntimeError, lambda: store.wait(["never"], SHORT),
                  "wait for what never comes ends",
                  "Socket Timeout" if lib.torch_version() < (2, 0) else "wait timeout after")
    waiting = connect(port)
    got = []
    thread = threading.Thread(target=lambda: got.append(waiting.get("later")))
    thread.start()
    connect(port).set("later", "now")
    thread.join(lib.PATIENCE)
    checks.equal(got, [b"now"], "a get that waits is answered by a later set")
    thread = threading.Thread(target=lambda: (waiting.wait(["m1", "m2", "m3"]), got.append("all")))
    thread.start()
    setter = connect(port)
    for key in ("m3", "m1"):
        setter.set(key, "1")
    setter.add("m2", 1)
    thread.join(lib.PATIENCE)
    checks.equal(got[-1], "all", "a wait for three keys, one of them made by add")


def test_prefix(checks, port):
    plain = connect(port)
    outer = dist.PrefixStore("pp", plain)
    inner = dist.PrefixStore("qq", outer)
    outer.set("x", "1")
    inner.set("x", "2")
    checks.equal(plain.get("pp/x"), b"1", "a PrefixStore's key, seen without it")
    checks.equal(plain.get("pp/qq/x"), b"2", "a PrefixStore in a PrefixStore")
    checks.equal(inner.add("n", 3), 3, "add through two prefixes")
    checks.equal(plain.add("pp/qq/n", 4), 7, "and the same key without them")
    checks.equal(outer.compare_set("x", "1", "3"), b"3", "compare_set through a prefix")
    checks.equal(outer.delete_key("x"), True, "delete_key through a prefix")
    with lib.Conn(port) as raw:
        checks.equal(raw.get("/pp/qq/x"), b"2", "the key on the wire has its slash")


def test_workers(checks, port):
    with lib.Conn(port) as raw:
        before = raw.add("init/", 0)
        stores = [connect(port, world_size=3, wait_for_workers=True) for _ in range(3)]
        checks.equal(raw.add("init/", 0) - before, 3,
                     "three clients with a world size count themselves")
        stores[0].set("shared", "yes")
        checks.equal(stores[2].get("shared"), b"yes", "and see each other's keys")


def test_many_clients(checks, port):
    sums = []

    def count(index):
        store = connect(port)
        for _ in range(50):
            sums.append(store.add("together", 1))

    threads = [threading.Thread(target=count, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    checks.equal(sorted(sums), list(range(1, 401)), "8 clients add 50 times each, no sum twice")


def test_drop(checks, port):
    """What costs a client its connection costs nobody else's."""
    other = connect(port)
    other.set("text", "abc")
    victim = connect(port)
    checks.raises(RuntimeError, lambda: victim.add("text", 1), "add to what is no number fails")
    checks.equal(other.get("text"), b"abc", "and another client is served on")


def worker(port, rank):
    """Run in a process of its own."""
    store = connect(port, world_size=2, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    tensor = torch.full((1000,), float(rank + 1))
    dist.all_reduce(tensor)
    assert bool((tensor == 3.0).all()), tensor
    dist.barrier()
    names = [None, None]
    dist.all_gather_object(names, "rank %d" % rank)
    assert names == ["rank 0", "rank 1"], names
    dist.destroy_process_group()
    print("rank %d reduced" % rank)


def test_gloo(checks, port, rendezvous):
    env = dict(os.environ, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1", MASTER_ADDR=lib.HOST,
               MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True",
               TORCHELASTIC_RESTART_COUNT="0")
    workers = [
        subprocess.Popen([sys.executable, __file__, rendezvous, str(port), str(rank)], env=env,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         preexec_fn=lib.die_with_parent)
        for rank in range(2)
    ]
    for rank, process in enumerate(workers):
        try:
            output, _ = process.communicate(timeout=3 * lib.PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        checks.ok(process.returncode == 0 and "reduced" in output,
                  "gloo rank %d of 2: group, all_reduce, barrier, all_gather (%s)" %
                  (rank, rendezvous),
                  output[-1500:])


def env_worker(rank):
    """As a worker under torchrun: the store is found through the environment."""
    dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=2)
    tensor = torch.full((10,), float(rank + 1))
    dist.all_reduce(tensor)
    assert bool((tensor == 3.0).all()), tensor
    dist.destroy_process_group()
    print("rank %d reduced" % rank)


def beside_newer(port):
    store = connect(port)
    store.set("newer/here", "1")
    print(store.queue_pop("q").decode(), flush=True)
    store.barrier("b", 2, LONG)
    print("met", flush=True)


def main():
    if "newer" in sys.argv:
        return beside_newer(int(sys.argv[3]))
    if "worker" in sys.argv:
        return worker(int(sys.argv[2]), int(sys.argv[3]))
    if "env" in sys.argv:
        return env_worker(int(sys.argv[3]))
    checks = lib.Checks()
    kind = lib.TorchServer if "--torch" in sys.argv else \
        lib.Gateway if "--gateway" in sys.argv else lib.Muster
    with kind() as server:
        for test in (test_values, test_compare_set, test_counting, test_newer, test_waits, test_prefix,
                     test_workers,
                     test_many_clients, test_drop):
            test(checks, server.port)
        test_gloo(checks, server.port, "worker")
        test_gloo(checks, server.port, "env")
        checks.ok(server.alive(), "the server is still there")
    checks.done()


main()
