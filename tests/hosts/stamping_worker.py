"""A worker of the drills: it meets the other workers of its round at the round's store, takes the
name that rank 0 gives to their world, and from then on writes down, a hundred times in a second,
that this world trains. It ends well when there is a file `done`, and in no other way by itself.

usage: stamping_worker.py FOLDER
"""
import os
import sys
import time
import uuid

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "interop"))
from lib import STOP_WAITING, Closed, Conn, texts  # noqa: E402


def wait_for(conn, key):
    conn.send(conn.op("wait", texts([key])))
    assert conn.recv(1, 1000) == STOP_WAITING


def meet(rank, size):
    """Returns the world's name once all are there."""
    with Conn(int(os.environ["MASTER_PORT"]), 2, host=os.environ["MASTER_ADDR"],
              patience=1000) as conn:
        if rank == 0:
            conn.set("drill/world", uuid.uuid4().hex[:8])
        if conn.add("drill/here", 1) == size:
            conn.set("drill/all", "1")
        wait_for(conn, "drill/all")
        return conn.get("drill/world").decode()


def main(folder):
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    done = os.path.join(folder, "done")
    try:
        world = meet(rank, size)
    except (Closed, OSError, AssertionError):
        time.sleep(1000)  # the agent knows better than we what this means
    path = os.path.join(folder, "stamps.%s.%d" % (os.uname().nodename, os.getpid()))
    line = " %s %d %d %s\n" % (world, rank, size, os.environ["TORCHELASTIC_RESTART_COUNT"])
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    while not os.path.exists(done):
        os.write(out, (repr(time.monotonic()) + line).encode())
        time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1])
