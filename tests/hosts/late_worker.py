"""The worker of late.py, and a worker that is late.

    late_worker.py FOLDER                  meets the others of its round and writes the round's word
    late_worker.py FOLDER ADDR PORT NAME   comes from a round with that address; says what it gets
"""
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "interop"))
from lib import STOP_WAITING, Closed, Conn, Silent, texts  # noqa: E402


def say(folder, name, *words):
    path = os.path.join(folder, name)
    with open(path + ".new", "w") as file:
        print(*words, file=file)
    os.rename(path + ".new", path)


def await_file(folder, name):
    while not os.path.exists(os.path.join(folder, name)):
        time.sleep(0.01)


def work(folder):
    rank, size, number = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MUSTER_ROUND"))
    addr, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    with Conn(int(port), 2, host=addr, patience=60) as conn:
        if rank == 0:
            conn.set("word", str(number))
        if conn.add("here", 1) == size:
            conn.set("all", "1")
        conn.send(conn.op("wait", texts(["all"])))
        assert conn.recv(1) == STOP_WAITING
        say(folder, "round.%d.%d" % (number, rank), addr, port)
        await_file(folder, "over.%d" % number)
        say(folder, "word.%d.%d" % (number, rank), conn.get("word").decode())
        await_file(folder, "gone.%d" % number)  # the first to go ends the round for all
    sys.exit(0 if os.path.exists(os.path.join(folder, "end")) else 1)


def try_store(conn):
    """Reads and writes the round's word. Returns what it reads."""
    try:
        conn.set("word", "late")
        return conn.get("word").decode()
    except (Closed, Silent, OSError):
        return None


def come_late(folder, addr, port, name):
    conn = Conn(int(port), 2, host=addr, patience=10)
    say(folder, name + ".first", conn.get("word").decode())
    await_file(folder, name + ".go")
    got = [try_store(conn)]
    try:
        got.append(try_store(Conn(int(port), 2, host=addr, patience=10)))
    except (Closed, Silent, OSError):
        got.append(None)
    say(folder, name + ".got", *got)


if len(sys.argv) == 2:
    work(sys.argv[1])
else:
    come_late(*sys.argv[1:])
