#!/usr/bin/python3
"""PyTorch's EtcdStore and ours (api=v2) in one directory of a real etcd, both ways.

    etcd_store.py [MUSTER]
"""
import datetime
import threading

import etcd
from torch.distributed.elastic.rendezvous.etcd_store import EtcdStore

import etcd_lib
import lib
from etcd_lib import kv

OK, TIMED_OUT, NO_KEY = 0, 3, 7
PREFIX = "/torch/elastic/store"


def main():
    checks = lib.Checks()
    etcd_lib.need_v2()
    with etcd_lib.Etcd() as server:
        client = etcd.Client(host=lib.HOST, port=server.ports[0])
        store = EtcdStore(client, PREFIX, timeout=datetime.timedelta(seconds=10))
        url = "etcd://%s%s?api=v2" % (server.authority(), PREFIX)

        checks.equal(kv(url, "check", "a")[0], NO_KEY, "check before there is a directory")
        store.set("t", "from PyTorch")
        checks.equal(kv(url, "get", "t")[:2], (OK, b"from PyTorch\n"), "we get what PyTorch set")
        kv(url, "set", "m", "from muster")
        checks.equal(store.get("m"), b"from muster", "PyTorch gets what we set")
        checks.equal(store.add("n", 5), 5, "PyTorch creates a counter")
        checks.equal(kv(url, "add", "n", "2")[:2], (OK, b"7\n"), "we add to it")
        checks.equal(kv(url, "add", "k", "3")[:2], (OK, b"3\n"), "we create one")
        checks.equal(store.add("k", 4), 7, "PyTorch adds to that")
        store.wait(["t", "m"], datetime.timedelta(seconds=5))
        checks.equal(kv(url, "wait", "t", "m")[0], OK, "both wait for both")
        checks.ok(store.check(["m"]) and not store.check(["none"]), "PyTorch checks ours")

        late = threading.Timer(0.5, lambda: store.set("late", "x"))
        late.start()
        checks.equal(kv(url, "get", "--wait", "late")[:2], (OK, b"x\n"), "we wait for what PyTorch sets")
        late = threading.Timer(0.5, lambda: kv(url, "set", "later", "y"))
        late.start()
        checks.equal(store.get("later"), b"y", "PyTorch waits for what we set")

        for key in ("???", "a?b~c?>", "\u00ff?\u00bf>>>???"):
            store.set(key, "slash")
            checks.equal(kv(url, "get", key)[:2], (OK, b"slash\n"),
                         "a key whose base64 has slashes is found: %r" % key)
        names = kv(url, "keys")[1].decode().split("\n")
        checks.ok("???" in names and "t" in names and "a?b~c?>" in names, "and listed", names)
        checks.equal(kv(url, "cas", "t", "from PyTorch", "new")[:2], (OK, b"new\n"), "cas")
        checks.equal(store.get("t"), b"new", "which PyTorch sees")
        checks.equal(kv(url, "del", "t")[:2], (OK, b"1\n"), "del")
        checks.ok(not store.check(["t"]), "which PyTorch sees as well")
        code, _, err = kv(url, "get", "--wait", "never", timeout=400)
        checks.ok(code == TIMED_OUT and '"never"' in err, "a timeout names the key", err)

        threads = [threading.Thread(target=lambda: [store_of(server).add("race", 1)
                                                    for _ in range(10)])]
        threads += [threading.Thread(target=lambda: [kv(url, "add", "race", "1")
                                                     for _ in range(10)])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        checks.equal(store.add("race", 0), 20, "adds of both at once")
    checks.done()


def store_of(server):
    return EtcdStore(etcd.Client(host=lib.HOST, port=server.ports[0]), PREFIX,
                     timeout=datetime.timedelta(seconds=10))


main()
