"""A worker that does with its flight recorder what PyTorch's ProcessGroupNCCL does: it listens on a
named pipe, and writes a dump when a byte comes. It "trains" until collective STOP, where the ranks
do what the first argument says, and then stands still until it is ended.

usage: flight_worker.py missing|order|size|group|none|spin|ATTACK VICTIM DIRECTORY

"spin" is as "size", and all ranks wait for their GPUs, as CUDA does by default: in a busy loop.

An attack is what the victim does instead of writing its dump: huge, garbage, cut, never, file, link, gone.
"""
import os
import pickle
import sys
import threading
import time

STOP = 41
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
WHAT, VICTIM, DIRECTORY = sys.argv[1], int(sys.argv[2]), sys.argv[3]


def entry(seq, state="completed", name="all_reduce", size=1024, group=("0", "default_pg"), pg_id=0):
    return {"record_id": seq, "pg_id": pg_id, "process_group": group, "collective_seq_id": seq,
            "p2p_seq_id": 0, "op_id": seq, "profiling_name": "nccl:" + name, "time_created_ns": seq * 10**9,
            "input_sizes": [[size, 4]], "input_dtypes": ["Float"], "output_sizes": [[size, 4]],
            "output_dtypes": ["Float"], "state": state, "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None, "retired": state == "completed", "timeout_ms": 600000,
            "is_p2p": False,
            "frames": [{"name": "step", "filename": "/job/train.py", "line": 81}]}


def dump():
    mine = RANK == VICTIM
    half = list(range(WORLD // 2)) if RANK < WORLD // 2 else list(range(WORLD // 2, WORLD))
    tp = ("7" if RANK < WORLD // 2 else "8", "tp")
    entries = [entry(seq) for seq in range(1, STOP)]
    if WHAT == "order" and mine:
        entries.append(entry(STOP, "started", "broadcast"))
    elif WHAT in ("size", "spin") and mine:
        entries.append(entry(STOP, "started", size=1000))
    elif WHAT == "group":
        entries += [entry(seq, group=tp, pg_id=1) for seq in range(1, 9)]
        if half[0] <= VICTIM <= half[-1] and not mine:
            entries.append(entry(9, "started", group=tp, pg_id=1))
    elif not mine:
        entries.append(entry(STOP, "started"))
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(WORLD)))}}
    if WHAT == "group":
        config[tp[0]] = {"name": tp[0], "desc": "tp", "ranks": str(half)}
    return pickle.dumps({"version": "2.10", "pg_config": config, "entries": entries}, protocol=2)


def write(path):
    data = dump()
    if RANK == VICTIM and WHAT == "never":
        return
    if RANK == VICTIM and WHAT == "garbage":
        data = os.urandom(5000)
    if RANK == VICTIM and WHAT == "cut":
        data = data[:-100]
    with open(path, "wb") as file:  # As PyTorch: in place, where everybody can see it grow.
        if RANK == VICTIM and WHAT == "huge":
            file.truncate(1 << 40)
            return
        file.write(data[:500])
        file.flush()
        time.sleep(0.15)
        file.write(data[500:])


def listen():
    """Returns when the pipe is there; a thread reads from it."""
    stem = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"]
    size = os.environ.get("TORCH_FR_BUFFER_SIZE", os.environ.get("TORCH_NCCL_TRACE_BUFFER_SIZE", "0"))
    target = os.environ.get("TORCH_FR_DUMP_TEMP_FILE", os.environ.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", ""))
    name = "%s%d.pipe" % (stem, RANK)
    with open(os.path.join(DIRECTORY, "pipe%d" % RANK), "w") as file:
        file.write(name)
    assert int(size) > 0 and target and os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    if os.path.lexists(name):
        os.unlink(name)
    if RANK == VICTIM and WHAT == "file":
        open(name, "w").close()
        return
    if RANK == VICTIM and WHAT == "link":
        os.mkfifo(os.path.join(DIRECTORY, "elsewhere"))
        os.symlink(os.path.join(DIRECTORY, "elsewhere"), name)
        os.open(os.path.join(DIRECTORY, "elsewhere"), os.O_RDONLY | os.O_NONBLOCK)
        return
    os.mkfifo(name, 0o666)
    if RANK == VICTIM and WHAT == "gone":
        return
    fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
    threading.Thread(target=answer, args=(fd, "%s%d" % (target, RANK)), daemon=True).start()


def answer(fd, path):
    while True:
        time.sleep(0.3)
        try:
            asked = os.read(fd, 128)
        except BlockingIOError:
            continue
        if asked:
            write(path)


def all_reduce():
    time.sleep(1000)


def load():
    time.sleep(1000)


SPIN = """
import time

def synchronize():
    while sum(range(1000000)) and time.sleep(0.02) is None: pass
"""


def spin():
    """In a file with the name of PyTorch's, whose functions are known."""
    path = os.path.join(DIRECTORY, "torch/cuda/__init__.py")
    names = {}
    exec(compile(SPIN, path, "exec"), names)
    names["synchronize"]()


listen()
print("started", flush=True)
if WHAT == "spin":
    spin()
if RANK == VICTIM and WHAT not in ("order", "size"):
    load()
all_reduce()
