#!/usr/bin/python3
"""Writes the seeds of fuzz_flight next to itself: dumps of a flight recorder as PyTorch 2.4 to 2.11 write
them (protocol 2), and some that are not quite that."""
import os
import pickle

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus", "flight")
FRAMES = [{"name": "all_reduce", "filename": "/usr/lib/python3/dist-packages/torch/x.py", "line": 2696},
          {"name": "train", "filename": "/job/train.py", "line": 81}]


def entry(seq, name="nccl:all_reduce", state="completed", **more):
    made = {"frames": FRAMES, "record_id": seq, "pg_id": 0, "process_group": ("0", "default_pg"),
            "collective_seq_id": seq, "p2p_seq_id": 0, "op_id": seq, "profiling_name": name,
            "time_created_ns": 1700000000000000000 + seq, "duration_ms": 1.5, "input_sizes": [[1024, 4]],
            "input_dtypes": ["Float"], "output_sizes": [[1024, 4]], "output_dtypes": ["Float"],
            "state": state, "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
            "retired": False, "timeout_ms": 600000, "is_p2p": False}
    made.update(more)
    return made


def dump(version, entries, **more):
    made = {"version": version,
            "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}},
            "pg_status": {"0": {"last_enqueued_collective": 2, "last_started_collective": 2,
                                "last_completed_collective": 1}},
            "entries": entries}
    made.update(more)
    return made


def write(name, data):
    os.makedirs(FOLDER, exist_ok=True)
    with open(os.path.join(FOLDER, name), "wb") as f:
        f.write(data if isinstance(data, bytes) else pickle.dumps(data, 2))


both = [entry(1), entry(2, state="started")]
for version in ("1.5", "2.0", "2.4", "2.10"):
    write("version_" + version, dump(version, both))
write("empty", dump("2.10", []))
write("bare", {"version": "2.3"})
write("p2p", dump("2.10", [entry(3, "nccl:recv 3<-0", "scheduled", is_p2p=True, p2p_seq_id=4)]))
write("groups", dump("2.10", [entry(1, process_group=("7", "tp"), pg_id=1), entry(1)],
                     pg_config={"7": {"name": "7", "desc": "tp", "ranks": "[2, 3]"}}))
write("shapes", dump("2.10", [entry(1, "nccl:all_to_all", input_sizes=[[2, 3], [], [2**40]],
                                    output_dtypes=["Half", "BFloat16"])]))
write("comms", dump("2.10", both, comm_lib_version="2.27.5", nccl_comm_state={"0x1": {"rank": "0"}}))
write("state", dump("2.10", [entry(1, state="asleep")]))
write("negative", dump("2.10", [entry(-1)]))
write("bad_ranks", dump("2.10", both, pg_config={"0": {"ranks": "[99999999999]"}}))
write("infinite", dump("2.10", [entry(1, duration_ms=float("inf"))]))
write("cut", pickle.dumps(dump("2.10", both), 2)[:300])
write("system", b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.")
