#!/usr/bin/python3
"""The harness itself: a server is there, a program's end is told."""

import os

import harness

checks = harness.checks


def test_server() -> None:
    with harness.Server() as server:
        checks.ok(server.url.startswith("tcp://127.0.0.1:"), "a server has a URL")
        checks.ok(server.alive(), "the server runs")


def test_programs() -> None:
    ended = harness.run("import sys; print('out'); sys.exit(3)")
    checks.equal((ended.code, ended.out, ended.err), (3, "out\n", ""), "a program's end")
    ended = harness.run("import time; time.sleep(60)", patience=0.2)
    checks.equal(ended.code, None, "a program that does not end is killed")


def test_paths() -> None:
    checks.ok(os.path.exists(harness.MUSTER), "the command is there")
    checks.ok(os.path.exists(harness.LIBRARY), "the library is there")


harness.main(globals())
