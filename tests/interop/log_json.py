#!/usr/bin/python3
"""Logs and events as JSON lines, of a server, of agents and of nodes of a rendezvous: every line is
parsed, and has run, round and rank in it.

    log_json.py [MUSTER] [--only=NAME]
"""
import json
import os
import signal
import subprocess

from lib import (HOST, Checks, Muster, Scratch, die_with_parent, free_port, muster_path, option,
                 wait_until)
from rdzv_nodes import Fleet, endpoint_of

checks = Checks()
LEVELS = ("error", "warn", "info", "debug")


def is_number_or_none(value):
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)


def fault_of(line):
    """What is wrong with a line; None: nothing."""
    try:
        o = json.loads(line)
    except ValueError as error:
        return str(error)
    if set(o) != {"time", "level", "id", "run", "round", "rank", "host", "pid", "text", "fields"}:
        return "members: %s" % sorted(o)
    if not isinstance(o["time"], float) or o["level"] not in LEVELS or \
            not isinstance(o["id"], str) or not isinstance(o["text"], str) or \
            not isinstance(o["fields"], dict) or not isinstance(o["pid"], int) or \
            not isinstance(o["host"], str) or not isinstance(o["run"], (str, type(None))) or \
            not is_number_or_none(o["round"]) or not is_number_or_none(o["rank"]):
        return "types: %r" % o
    return None


def lines_of(text, what):
    """All lines, each checked."""
    lines = text.decode(errors="strict").split("\n")
    faults = [(line, fault) for line, fault in ((l, fault_of(l)) for l in lines[:-1]) if fault]
    checks.ok(lines[-1] == "" and len(lines) > 1 and not faults,
              "%s: each of %d lines is as documented" % (what, len(lines) - 1), faults[:3])
    return [json.loads(line) for line in lines[:-1]]


def read(path):
    with open(path, "rb") as file:
        return file.read()


def test_a_server():
    with Scratch() as scratch:
        events = os.path.join(scratch, "events")
        name = "na\"me \\ " + b"\xff\xc3\xa9".decode("utf-8", "surrogateescape")
        errors = os.path.join(scratch, "errors")
        port = free_port()
        with open(errors, "wb") as file:
            server = subprocess.Popen([muster_path(), "serve", "--listen", "%s:%d" % (HOST, port),
                                       "--log-format", "json", "--events", events, "--verbose"],
                                      stdout=subprocess.PIPE, stderr=file,
                                      preexec_fn=die_with_parent)
        server.stdout.readline()
        with Fleet("%s:%d" % (HOST, port), name, "2:3", args=("--rejoin",)) as fleet:
            for node in ("alpha", "beta", "gamma"):
                fleet.add(node)
            fleet.world()
            fleet.nodes["gamma"].process.kill()
            wait_until(lambda: b"RDZV-ROUND-ENDED" in read(events), "the round is over")
            wait_until(lambda: read(events).count(b"RDZV-ROUND-FORMED") >= 2, "another begins")
        server.send_signal(signal.SIGTERM)
        checks.equal(server.wait(20), 0, "the server ends well")
        server.stdout.close()
        shown = lines_of(read(errors), "its standard error")
        kept = lines_of(read(events), "its events")
        formed = [l for l in kept if l["id"] == "RDZV-ROUND-FORMED"]
        checks.ok(all(l["run"] and l["run"].startswith("na\"me \\ ") for l in formed) and
                  [l["round"] for l in formed][:2] == [0, 1], "rounds have their run and number",
                  formed)
        ended = next(l for l in kept if l["id"] == "RDZV-ROUND-ENDED")
        checks.ok(ended["round"] == 0 and isinstance(ended["rank"], int) and
                  "gamma" in ended["fields"]["node"] and ended["fields"]["reason"] == "lost",
                  "the end of a round names who, by rank", ended)
        checks.ok(any(l["id"] == "SERVING" and l["fields"]["address"].endswith(":%d" % port)
                      for l in kept), "where it serves is an event")
        checks.ok(all(l["level"] != "debug" for l in kept if l["id"] != "RDZV-STEP") and
                  any(l["level"] == "debug" for l in shown), "levels hold: events to info, "
                  "--verbose to debug", [l["id"] for l in kept if l["level"] == "debug"])
        done = subprocess.run([muster_path(), "serve", "--listen", "256.0.0.1:0"],
                              capture_output=True, timeout=30,
                              env=dict(os.environ, MUSTER_LOG_FORMAT="json"))
        failed = lines_of(done.stderr, "an error")[-1]
        checks.ok(failed["level"] == "error" and failed["id"] == "FAILED" and
                  failed["fields"]["exit_code"] == done.returncode, "an error is a line, too", failed)
        done = subprocess.run([muster_path(), "serve", "--listen", HOST + ":0", "--events",
                               os.path.join(scratch, "no", "such")], capture_output=True, timeout=30)
        checks.ok(done.returncode == 1 and b"cannot write events" in done.stderr,
                  "a file that cannot be is said", done.stderr)
        done = subprocess.run([muster_path(), "serve", "--log-format", "xml"], capture_output=True,
                              timeout=30)
        checks.equal(done.returncode, 2, "another format is wrong usage")


def test_wrong_usage():
    """Each is wrong in a way of its own; with the option, with the variable, and with neither."""
    def call(args, **environment):
        clean = {name: value for name, value in os.environ.items()
                 if name not in ("MUSTER_LOG_FORMAT", "MUSTER_EVENTS")}
        return subprocess.run([muster_path(), *args], capture_output=True, timeout=30,
                              stdin=subprocess.DEVNULL, env=dict(clean, **environment))

    json_option = ["--log-format", "json"]
    for args, verb, said in (
            (["serve", "--bogus", *json_option], "serve", "--bogus"),
            (["serve", *json_option, "--bogus"], "serve", "--bogus"),
            (["serve", "--bogus", "value", "--log-format=json"], "serve", "--bogus"),
            (["serve", *json_option, "stray"], "serve", "stray"),
            (["serve", "--listen", HOST + ":0", "--max-connections", "many", *json_option], "serve",
             "many"),
            (["serve", *json_option, "--listen"], "serve", "needs a value"),
            (["serve", "--verbose=1", *json_option], "serve", "takes no value"),
            (["rdzv", *json_option], "rdzv", ""),
            (["rdzv", "join", "--bogus", *json_option], "rdzv", "--bogus"),
            (["rdzv", "--bogus", "join", *json_option], "rdzv", "--bogus"),
            (["rdzv", "join", "stray", *json_option], "rdzv", "stray"),
            (["run", "--bogus", *json_option, "x.py"], "run", "--bogus"),
            (["run", "--log_format", "json", "--n", "2", "x.py"], "run", "could be"),
            (["run", "--nproc_per_node", "2", *json_option], "run", "script"),
            (["run", "-r", "3", *json_option, "--bogus"], "run", "--bogus")):
        bare = [word for word in args
                if word not in ("json", "--log-format", "--log-format=json", "--log_format")]
        for done in (call(args), call(bare, MUSTER_LOG_FORMAT="json")):
            lines = lines_of(done.stderr, " ".join(args))
            checks.ok(done.returncode == 2 and len(lines) == 1 and lines[0]["id"] == "USAGE" and
                      lines[0]["level"] == "error" and said in lines[0]["text"] and
                      lines[0]["fields"] == {"verb": verb, "exit_code": 2},
                      "and says what is wrong", (done.returncode, lines))
        plain = call(bare)
        checks.ok(plain.returncode == 2 and plain.stderr.startswith(b"muster %s: " % verb.encode()),
                  "without it, text", plain.stderr)
    for args, what in ((["serve", "--bogus", "--log-format", "text"], "a word counts first"),
                       (["serve", "--log-format", "xml"], "a format that is none"),
                       (["kv", "--bogus"], "a verb that has no such option")):
        done = call(args, MUSTER_LOG_FORMAT="json")
        checks.ok(done.returncode == 2 and done.stderr.startswith(b"muster "), what + " is text",
                  done.stderr)
    done = call(["run", "--bogus", "--", "x.py", *json_option])
    checks.ok(done.stderr.startswith(b"muster run: "), "words of the script do not count",
              done.stderr)
    done = call(["run", "--nnodes", "x", "x.py", *json_option])
    checks.ok(done.stderr.startswith(b"muster"), "nor without the dashes", done.stderr)


def test_a_fatal_error():
    """The line that ends a command, before and after the log is open."""
    with Scratch() as scratch:
        absent = os.path.join(scratch, "no", "such")
        for args, code in ((["serve", "--listen", "256.0.0.1:0"], None),
                           (["serve", "--listen", HOST + ":0", "--events", absent], 1),
                           (["serve", "--listen", HOST + ":0", "--token-file", absent], None),
                           (["serve", "--listen", "0.0.0.0:0"], 6),
                           (["rdzv", "join", "--rdzv-endpoint", HOST + ":1", "--rdzv-id", "x",
                             "--rdzv-conf", "is_host=false,join_timeout=1"], None),
                           (["run", "--nnodes", "x", "x.py"], None),
                           (["run", "--signals-to-handle", "SIGNONE", "--nnodes", "0", "x.py"],
                            None)):
            done = subprocess.run([muster_path(), args[0], "--log-format", "json", *args[1:]],
                                  capture_output=True, timeout=60, stdin=subprocess.DEVNULL)
            last = lines_of(done.stderr, " ".join(args[:3]))[-1]
            checks.ok(done.returncode not in (0, None) and code in (None, done.returncode) and
                      last["level"] == "error" and
                      last["fields"].get("exit_code") == done.returncode,
                      "ends with the error", (done.returncode, last))
    done = subprocess.run([muster_path(), "bogus"], capture_output=True, timeout=30,
                          env=dict(os.environ, MUSTER_LOG_FORMAT="json"))
    checks.equal(lines_of(done.stderr, "a verb that is none")[0]["fields"], {"exit_code": 2},
                 "is an error, too")


WORKER = """
if [ "$RANK" = 1 ] && [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then exit 7; fi
if [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then sleep 60; fi
exit ${END:-0}
"""


def run(scratch, number, *args, **environment):
    """An agent of two workers, of which rank 1 fails at first: what it wrote, and its events."""
    script = os.path.join(scratch, "worker.sh")
    events = os.path.join(scratch, "events-%d" % number)
    with open(script, "w") as file:
        file.write(WORKER)
    done = subprocess.run([muster_path(), "run", "--rdzv-backend", "muster", "--rdzv-endpoint",
                           "%s:%d" % (HOST, free_port()), "--rdzv-id", "train-19",
                           "--nproc-per-node", "2", "--no-python", "--events", events, *args, "sh",
                           script], capture_output=True, timeout=120,
                          env=dict(os.environ, LOGLEVEL="INFO", **environment))
    return done, events


def test_an_agent():
    with Scratch() as scratch:
        done, events = run(scratch, 1, "--max-restarts", "1", "--log-format", "json")
        checks.equal(done.returncode, 0, "a job that fails once succeeds")
        shown = lines_of(done.stderr, "its standard error")
        kept = lines_of(read(events), "its events")
        checks.ok(all(l["run"] == "train-19" for l in kept if l["id"].startswith(("AGENT", "WORK"))),
                  "the run is in every line")
        workers = [(l["id"], l["round"], l["rank"], l["fields"].get("exit_code")) for l in kept
                   if l["id"].startswith("WORKER-")]
        lives = {}
        for what, number, rank, code in workers:
            lives.setdefault((number, rank), []).append((what, code))
        checks.ok(sorted(lives) == [(0, 0), (0, 1), (1, 0), (1, 1)] and
                  all([what for what, _ in life] == ["WORKER-STARTED", "WORKER-ENDED"]
                      for life in lives.values()) and
                  [lives[k][1][1] for k in ((0, 1), (1, 0), (1, 1))] == [7, 0, 0],
                  "workers start and end, by round and rank", workers)
        rounds = [(l["round"], l["rank"], l["fields"]["nodes"]) for l in kept
                  if l["id"] == "AGENT-ROUND"]
        checks.equal(rounds, [(0, 0, 1), (1, 0, 1)], "rounds, with the rank of the node")
        end = [l for l in shown if l["id"] == "AGENT-ENDED"]
        checks.ok(len(end) == 1 and end[0]["fields"]["outcome"] == "SUCCEEDED" and
                  end[0]["level"] == "info", "the verdict is one line", end)
        done, events = run(scratch, 2, "--max-restarts", "1", END="9", MUSTER_LOG_FORMAT="json")
        last = lines_of(done.stderr, "of one that fails, too")[-1]
        verdict = next(l for l in lines_of(read(events), "and its events")
                       if l["id"] == "AGENT-ENDED")
        checks.ok(done.returncode == 1 and verdict["fields"]["first_failure"]["exit_code"] == 9 and
                  verdict["level"] == "error", "with the first failure in it", (last, verdict))
        done, events = run(scratch, 3, "--max-restarts", "1")
        lines_of(read(events), "events beside text")
        checks.ok(b"muster: round 1: node 0 of 1\n" in done.stderr and b'"level"' not in done.stderr,
                  "text stays text", done.stderr)


def test_nodes_share_a_file():
    with Scratch() as scratch, Muster() as server:
        events = os.path.join(scratch, "events")
        count = 8
        nodes = [subprocess.Popen([muster_path(), "rdzv", "join", "--rdzv-endpoint",
                                   endpoint_of(server), "--rdzv-id", "train-20", "--nnodes",
                                   str(count), "--log-format", "json", "--events", events],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                  preexec_fn=die_with_parent) for _ in range(count)]
        wait_until(lambda: os.path.exists(events) and
                   read(events).count(b'"ROUND-BEGAN"') == count, "all are in")
        for node in nodes:
            node.send_signal(signal.SIGTERM)
        for node in nodes:
            _, errors = node.communicate(timeout=30)
            lines_of(errors, "standard error of a node")
        kept = lines_of(read(events), "the file of %d nodes" % count)
        began = [l for l in kept if l["id"] == "ROUND-BEGAN"]
        checks.equal(sorted(l["rank"] for l in began), list(range(count)), "each rank has begun")
        checks.ok(all(l["run"] == "train-20" and l["round"] == 0 and
                      l["fields"]["world_size"] == count for l in began), "in one round", began)
        checks.equal(len({l["pid"] for l in kept}), count, "lines of all of them")
        checks.equal(sum(l["id"] == "LEFT" for l in kept), count, "and all have left")


only = option("only", "")
for name, test in list(globals().items()):
    if name.startswith("test_") and only in name:
        print("-- " + name[5:].replace("_", " "), flush=True)
        test()
checks.done()
