#!/usr/bin/python3
"""The lock at an age: a server, and one who dials, whose clock moves by minutes and by years while
they run, forwards and backwards, still know their token.

    lock_age.py [MUSTER]

It runs in a network of its own if the system lets it make one; else on the address of this host.
The clock is libfaketime's, and the wall clock alone: that is what certificates and OpenSSL go by.
"""
import os

from lib import (Checks, Muster, Scratch, beyond_loopback, free_port, is_sanitized, muster_path,
                 run_muster)

checks = Checks()
LIBRARY = "/usr/$LIB/faketime/libfaketimeMT.so.1"
# In the order in which they come: the clock jumps from each to the next.
AGES = ("+303", "+600", "+2d", "+400d", "-400d", "+0", "+20y")


class Clock:
    """The wall clock of the processes that are started with `run()` before them."""

    def __init__(self, scratch, name):
        self.path = os.path.join(scratch, name)
        self.set("+0")

    def set(self, age):
        with open(self.path + ".new", "w") as file:
            file.write(age + "\n")
        os.rename(self.path + ".new", self.path)

    def run(self):
        os.environ.update(LD_PRELOAD=LIBRARY, FAKETIME_TIMESTAMP_FILE=self.path,
                          FAKETIME_NO_CACHE="1", FAKETIME_DONT_FAKE_MONOTONIC="1")


def clock_works(scratch):
    """Whether there is a libfaketime, and it moves the clock of a process."""
    clock = Clock(scratch, "probe")
    clock.set("+400d")
    read, write = os.pipe()
    if os.fork() == 0:
        clock.run()
        os.dup2(write, 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.execlp("date", "date", "+%s")
    os.close(write)
    with os.fdopen(read) as file:
        moved = int(file.read() or 0)
    os.wait()
    return moved > os.stat(clock.path).st_mtime + 399 * 86400


def test_server_of_any_age_takes_a_client(scratch, lock, address):
    clock = Clock(scratch, "server")
    with Muster(*lock, listen=address + ":0", preexec=clock.run) as server:
        for age in AGES:
            clock.set(age)
            code, _, err = run_muster("kv", "--store", "tcp://%s:%d" % (address, server.port), *lock,
                                      "set", "age", age)
            checks.equal((code, err), (0, ""), "a server of the age %s takes a client" % age)


def test_old_client_dials(scratch, lock, address):
    """A gateway is one who dials again whenever its origin was away."""
    clock = Clock(scratch, "gateway")
    port = free_port()
    where = "%s:%d" % (address, port)
    origin = Muster(*lock, listen=where)
    try:
        with Muster("--backing", "tcp://" + where, *lock, preexec=clock.run) as gateway:
            for age in AGES:
                clock.set(age)
                origin.kill()
                origin = Muster(*lock, listen=where)
                code, _, err = run_muster("kv", "--store", "tcp://127.0.0.1:%d" % gateway.port,
                                          "set", "age", age)
                checks.equal((code, err), (0, ""), "one of the age %s who dials is let in" % age)
    finally:
        origin.kill()


def main():
    address, _ = beyond_loopback()
    if is_sanitized():
        checks.skip("libfaketime and a sanitizer want the same calls")
        checks.done()
    with Scratch() as scratch:
        if not clock_works(scratch):
            checks.skip("there is no libfaketime: apt-get install faketime")
            checks.done()
        token = os.path.join(scratch, "token")
        run_muster("keygen", "token", token)
        test_server_of_any_age_takes_a_client(scratch, ("--token-file", token), address)
        test_old_client_dials(scratch, ("--token-file", token), address)
    checks.done()


if __name__ == "__main__":
    main()
