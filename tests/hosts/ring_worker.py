"""A worker that depends on the others, as those of a training job do: each holds a connection to the
next one, and fails when it loses one of its two neighbours. While all is well it writes down that
its world trains, as stamping_worker.py does, and it ends well when there is a file `done`.

usage: ring_worker.py FOLDER

A file `fail.HOST` in the folder makes the worker of that host fail by itself, and a file
`early.HOST` makes it end well. With a file `loose` there is no ring.
"""
import os
import select
import socket
import sys
import time

from stamping_worker import Closed, Conn, meet, wait_for


def join_ring(rank, size):
    """The connections to the one before and to the one behind."""
    if size == 1 or os.path.exists(os.path.join(sys.argv[1], "loose")):
        return []
    listener = socket.create_server(("", 0))
    with Conn(int(os.environ["MASTER_PORT"]), 2, host=os.environ["MASTER_ADDR"],
              patience=1000) as conn:
        port = listener.getsockname()[1]
        conn.set("ring/%d" % rank, "%s:%d" % (os.uname().nodename, port))
        key = "ring/%d" % ((rank + 1) % size)
        wait_for(conn, key)
        host, port = conn.get(key).decode().split(":")
    behind = socket.create_connection((host, int(port)), 30)
    before = listener.accept()[0]
    listener.close()
    return [before, behind]


def check(ring, done):
    """Raises what a collective operation would, unless the others have just seen that the work is
    done."""
    readable, _, _ = select.select(ring, [], [], 0.01)
    for sock in readable:
        if not sock.recv(1) and not os.path.exists(done):
            raise RuntimeError("Connection closed by peer")


def main(folder):
    host = os.uname().nodename
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        world = meet(rank, size)
        ring = join_ring(rank, size)
    except (Closed, OSError, AssertionError):
        raise RuntimeError("Connection closed by peer") from None
    path = os.path.join(folder, "stamps.%s.%d" % (host, os.getpid()))
    line = " %s %d %d %s\n" % (world, rank, size, os.environ["TORCHELASTIC_RESTART_COUNT"])
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    done = os.path.join(folder, "done")
    while not os.path.exists(done):
        os.write(out, (repr(time.monotonic()) + line).encode())
        if os.path.exists(os.path.join(folder, "fail." + host)):
            raise ValueError("told to fail")
        if os.path.exists(os.path.join(folder, "early." + host)):
            return
        if ring:
            check(ring, done)
        else:
            time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1])
