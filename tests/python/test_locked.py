#!/usr/bin/python3
"""Beyond loopback: a server with the job's token, and who gets to it. It runs in a network of its
own if the system lets it make one; else on the address of this host."""

import asyncio
import os

import harness

import lib

import muster
from muster import errors

checks = harness.checks


def test_token() -> None:
    address = lib.beyond_loopback()[0]
    with harness.Scratch() as folder:
        right, wrong = os.path.join(folder, "right"), os.path.join(folder, "wrong")
        for path in (right, wrong):
            lib.run_muster("keygen", "token", path)
        checks.raises(errors.Locked, lambda: muster.Server(f"{address}:0"),
                      "no server without a credential; the remedy is not a command's",
                      "give every node MUSTER_TOKEN_FILE=FILE, or MUSTER_ALLOW=CIDR (PyTorch only) or "
                      "MUSTER_INSECURE=1")
        with muster.Runtime(token_file=right) as inside, \
                muster.Server(f"{address}:0", runtime=inside) as server:
            with muster.Store(server.url, runtime=inside) as store:
                store.set("a", "b")
            os.environ["MUSTER_TOKEN_FILE"] = right
            with muster.Runtime() as named, muster.Store(server.url, runtime=named) as store:
                checks.equal(store.get("a"), b"b", "the token that the environment names")
            del os.environ["MUSTER_TOKEN_FILE"]
            with muster.Runtime(token_file=right) as other:
                with muster.Store(server.url, runtime=other) as store:
                    checks.equal(store.get("a"), b"b", "the right token")
                    asyncio.run(store.aio.set("a", "c"))
                    checks.equal(store.get("a"), b"c", "the same, awaited")
            with muster.Runtime(token_file=wrong) as outside:
                checks.raises(
                    errors.ConnectionFailed,
                    lambda: muster.Store(server.url, runtime=outside, connect_timeout=5),
                    "the wrong token")
            checks.raises((errors.Locked, errors.ConnectionFailed),
                          lambda: muster.Store(server.url, connect_timeout=5), "no token")
        checks.raises(OSError, lambda: muster.Runtime(token_file="/nowhere/token"),
                      "a token that is not there")
        checks.raises(ValueError, lambda: muster.Runtime(token_file=right, cert=right),
                      "a token and a certificate")
        os.chmod(right, 0o644)
        checks.raises(errors.MusterError, lambda: muster.Runtime(token_file=right),
                      "a token that everybody can read")


harness.main(globals())
