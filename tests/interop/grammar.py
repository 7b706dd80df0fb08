#!/usr/bin/python3
"""One grammar for all commands. What is tried comes from the tables that the commands parse with
(`muster help --json`, `muster COMMAND --help --json`), so a new command, operation or option is tried as
soon as it is there. Each operation needs an example below, and each example one of the exit codes.

    grammar.py [MUSTER] [--only=NAME]
"""
import json
import os
import re
import subprocess
import sys

import lib
from lib import HOST, Checks, Muster, Scratch, die_with_parent, free_port, muster_path, run_muster

USAGE, TIMED_OUT, CONNECT, STORAGE, ADDRESS, NO_KEY, CLOSED = 2, 3, 4, 5, 6, 7, 8
checks = Checks()

# --- the tables ---------------------------------------------------------------------------------


class Table:
    """A command, or the part of one that has options of its own ("bench rdzv")."""

    def __init__(self, *words):
        self.words = list(words)
        self.raw = load(*words, "--help", "--json")
        self.options = [o for o in self.raw["options"] if o["type"] != "gone"]
        self.gone = [o for o in self.raw["options"] if o["type"] == "gone"]
        self.is_run = self.raw["ends_at_operand"]

    @property
    def name(self):
        return " ".join(self.words)

    def calls(self):
        """The words before which and behind which options may stand."""
        return [self.words + [word] for word in self.raw["operations"]] or [self.words]


def load(*words):
    code, out, err = run_muster(*words)
    if code != 0:
        raise AssertionError("muster %s: %s" % (" ".join(words), err))
    return json.loads(out)


def all_tables():
    found = []
    for command in load("help", "--json")["commands"]:
        if command["foreign"]:
            continue  # p2pd has the flags of libp2p's daemon.
        table = Table(command["name"])
        # An operation with a table of its own prints that one.
        own = [Table(command["name"], word) for word in table.raw["operations"]]
        own = [t for t in own if t.raw["command"] != table.raw["command"]]
        table.raw["operations"] = [word for word in table.raw["operations"]
                                   if word not in [t.words[1] for t in own]]
        found += [table] + own
    return found


TABLES = all_tables()
CALLS = [(table, call) for table in TABLES for call in table.calls()]


def refused(words, what, *texts):
    code, out, err = run_muster(*words)
    return checks.ok(code == USAGE and out == b"" and len(err.splitlines()) == 1 and
                     all(text in err for text in texts), what, (words, code, out, err))


# --- what every command does alike ------------------------------------------------------------------


def test_help():
    for table, call in CALLS:
        said = run_muster(*call, "--help")
        checks.ok(said[0] == 0 and said[1].startswith(b"usage: muster " + table.name.encode()) and
                  said[2] == "", "%s --help" % " ".join(call), said)
        checks.equal(run_muster("help", *call), said, "help %s says the same" % " ".join(call))
        if not table.is_run:
            checks.equal(run_muster(*call, "word", "--json", "-h", "more")[0], 0,
                         "%s: -h after other words" % " ".join(call))
    for name in ("run", "p2pd"):
        refused(["help", name, "train.py"], "help %s starts nothing" % name,
                'unexpected argument "train.py"')
    top = run_muster("help")
    checks.ok(top[0] == 0 and all(b"  " + table.words[0].encode() in top[1] for table in TABLES),
              "muster help names all commands", top)
    checks.equal(run_muster("--help"), top, "as --help does")
    checks.equal(run_muster()[:2], (USAGE, top[1]), "and no words at all, which is wrong usage")
    version = run_muster("version")
    checks.ok(version[0] == 0 and re.fullmatch(rb"muster \d+\.\d+\.\d+\n", version[1]), "version",
              version)
    checks.equal(run_muster("--version"), version, "--version")
    checks.equal(load("version", "--json")["version"], version[1].split()[1].decode(),
                 "version --json")


def test_options_have_one_kind_of_time():
    for table in TABLES:
        for o in table.options:
            name = "%s --%s" % (table.name, o["name"])
            checks.ok(o.get("value") not in ("MS", "SECONDS") and
                      not re.search(r"-(ms|seconds|secs)$|^seconds$", o["name"]),
                      name + " is not bound to a unit", o)
            if re.search(r"timeout|interval$|delay$|^idle$|^connect$", o["name"]):
                checks.equal((o["type"], o["value"]), ("time", "TIME"), name + " is a time")
            if o["type"] == "time":
                # An option that does not exist is the next thing that the parser meets.
                for good in ("500ms", "0.5", "5s", "0.01m", "0.001h"):
                    refused(table.calls()[0] + ["--" + o["name"], good, "--no-such-option"],
                            "%s takes %s" % (name, good), "there is no option --no-such-option")
                refused(table.calls()[0] + ["--%s=" % o["name"]], name + " needs a value",
                        "needs a value (TIME)")
                for bad in ("5x", "-1", "5 s", "soon"):
                    refused(table.calls()[0] + ["--%s=%s" % (o["name"], bad)],
                            "%s refuses \"%s\"" % (name, bad), "is not a time: write 500ms, 5s")
                refused(table.calls()[0] + ["--" + o["name"], "300000"],
                        name + " refuses the milliseconds of old", "300000ms")


def test_timeout_is_the_same_everywhere():
    for table, call in CALLS:
        has = "timeout" in [o["name"] for o in table.options]
        refused(call + ["--timeout", "500ms", "--no-such-option"], "%s --timeout 500ms: %s" % (
            " ".join(call), "taken" if has else "no such option"),
            "there is no option --no-such-option" if has else "there is no option --timeout")


def test_json_is_everywhere():
    for table in TABLES:
        found = [o for o in table.options if o["name"] == "json"]
        checks.ok(len(found) == 1 and found[0]["type"] == "flag", table.name + " has --json", found)


def test_mistyped_options():
    for table, call in CALLS:
        refused(call + ["--no-such-option"], "%s: a bad option" % " ".join(call),
                "there is no option --no-such-option", "see `muster %s --help`" % table.name)
        refused(call + ["--jsno"], "%s: a mistyped one" % " ".join(call), "(did you mean --json?)")
    for table in TABLES:
        names = [o["name"] for o in table.options]
        for name in names:
            wrong = name[:-2] + name[-1] + name[-2]
            if len(name) < 4 or wrong in names or wrong == name:
                continue
            code, _, err = run_muster(*table.calls()[0], "--" + wrong)
            near = re.search(r"did you mean --([\w-]+)\?", err)
            checks.ok(code == USAGE and near and near[1] in names,
                      "%s --%s is known for a mistake" % (table.name, wrong), err)
        for o in table.gone:
            refused(table.calls()[0] + ["--" + o["name"], "1"],
                    "%s --%s is gone" % (table.name, o["name"]), "any more: " + o["instead"])


def test_mistyped_commands_and_operations():
    for table, call in CALLS:
        wrong = call[-1] + call[-1][-1]
        refused(call[:-1] + [wrong], "%s: did you mean" % " ".join(call[:-1] + [wrong]),
                "(did you mean %s?)" % call[-1])
    for table in TABLES:
        if table.raw["operations"]:
            refused(table.words + ["entirely-other"], table.name + ": a wrong operation lists them",
                    "there is no operation \"entirely-other\"", table.raw["operations"][-1])
            refused(table.words, table.name + " without an operation says so", "operation"
                    if table.name == "kv" else "say what to do")
    for wrong, meant in (("rnu", "run"), ("server", "serve"), ("docter", "doctor"), ("hlep", "help")):
        refused([wrong], wrong, "there is no command \"%s\" (did you mean %s?)" % (wrong, meant))
    refused(["help", "rnu"], "help rnu", "(did you mean run?)")


def test_options_after_words():
    for table, call in CALLS:
        if not table.is_run:
            refused(call + ["word", "--json", "--no-such-option"],
                    "%s: an option after a word" % " ".join(call),
                    "there is no option --no-such-option")
    code, out, err = run_muster("run", "--no-python", "/bin/echo", "--json", "--no-such-option")
    checks.equal((code, out), (0, b"--json --no-such-option\n"),
                 "run: what is after the script belongs to it")


# --- examples: what each operation prints as JSON, and its exit codes -----------------------------


class World:
    """What the examples talk to."""

    def __init__(self, path):
        self.path = path
        self.server = Muster("--http", HOST + ":0")
        self.store = "tcp://%s:%d" % (HOST, self.server.port)
        self.endpoint = "%s:%d" % (HOST, self.server.port)
        page = re.search(r"status at http://(\S+)/", self.server.output())
        self.page = page[1]
        self.nobody = "%s:%d" % (HOST, free_port())
        self.processes = []
        self.token = self.file("token")
        run_muster("keygen", "token", self.token)
        self.model = self.file("m.safetensors")
        head = b'{"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}   '
        with open(self.model, "wb") as file:
            file.write(len(head).to_bytes(8, "little") + head + b"12345678")
        run_muster("kv", "--store", self.store, "mset", "a", "1", "n", "5")
        run_muster("kv", "--store", self.store, "push", "q", "x")
        self.lease = run_muster("kv", "--store", self.store, "lease", "grant",
                                "1h")[1].decode().strip()
        self.rpc = self.serve("rpc", "serve", "--listen", HOST + ":0")["address"]
        self.peer = self.serve("peer", "serve")["listen"][0]
        self.dht = self.serve("dht", "serve")["listen"][0]
        self.donor = self.serve("state", "serve", "--listen", HOST + ":0", self.model)["address"]

    def file(self, name):
        return os.path.join(self.path, name)

    def serve(self, *words):
        """Starts a command that serves; returns the first object that it prints."""
        process = subprocess.Popen([muster_path(), *words, "--json"], stdout=subprocess.PIPE,
                                   stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                   preexec_fn=die_with_parent)
        self.processes.append(process)
        line = process.stdout.readline()
        if not line.startswith(b"{"):
            raise AssertionError("%s: %r" % (" ".join(words), line + process.stderr.read()))
        return json.loads(line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdout.close()
            process.stderr.close()
        self.server.stop()


def examples(w):
    """{call: its words}: each ends well and prints nothing but JSON. Those of SERVING go on until a
    signal."""
    kv = ["--store", w.store]
    run = ["--rdzv-endpoint", w.endpoint, "--rdzv-id", "demo"]
    return {
        "serve": ["--listen", HOST + ":0"], "rpc serve": ["--listen", HOST + ":0"], "peer serve": [],
        "dht serve": [], "state serve": ["--listen", HOST + ":0", w.model],
        "rdzv join": run + ["--quiet"],
        "kv get": kv + ["a"], "kv set": kv + ["b", "2"], "kv add": kv + ["n", "1"],
        "kv cas": kv + ["b", "2", "3"], "kv wait": kv + ["a"], "kv check": kv + ["a"],
        "kv append": kv + ["a", "1"], "kv keys": kv, "kv count": kv, "kv mget": kv + ["a", "b"],
        "kv mset": kv + ["c", "1", "d", "2"], "kv push": kv + ["q", "y"], "kv pop": kv + ["q"],
        "kv len": kv + ["q"], "kv barrier": kv + ["bar", "1"], "kv del": kv + ["d"],
        "kv watch": kv + ["a", "--current", "--once", "--timeout", "5s"],
        "kv lease": kv + ["keep", w.lease],
        "rdzv exclude": run + ["node7", "--reason", "loud"], "rdzv include": run + ["node7"],
        "rdzv status": ["--rdzv-endpoint", w.endpoint], "rdzv close": run,
        "rdzv extra": None,  # needs etcd: tests/interop/rdzv_etcd_old.py
        "peer id": ["--new", w.file("peer.key")], "peer ping": [w.peer, "--count", "1"],
        "peer call": [w.peer, "muster::Echo.echo", "hello"],
        "dht store": ["--bootstrap", w.dht, "record", "1"],
        "dht get": ["--bootstrap", w.dht, "record"],
        "rpc call": ["--to", w.rpc, "muster::Rpc.echo", "hello"],
        "rpc bench": ["--to", w.rpc, "--duration", "50ms"],
        "state pull": ["-q", "-o", w.file("out"), w.donor], "state ls": [w.donor],
        "keygen token": [], "keygen tls": ["--host", "a", w.file("tls")], "keygen page": [w.token],
        "stacks": ["--pid", str(os.getpid())],
        "top": [w.page, "--once"], "doctor": None,  # says what is bad with this machine, too
        "bench store": kv + ["--duration", "50ms"], "bench rdzv": ["--nodes", "2"],
        "bench job": ["--ranks", "16"],
        "bench etcd": None,  # needs etcd: bench/bench_etcd
        "run": ["--json", "--no-python", "/bin/true"],
        "average": None,  # needs another member: average_cli.py
    }


SERVING = {"serve", "rpc serve", "peer serve", "dht serve", "state serve", "rdzv join"}


def read_json(text):
    return [json.loads(line) for line in text.splitlines()]


def test_json_of_every_operation():
    with Scratch() as path, World(path) as w:
        known = examples(w)
        checks.equal(set(known), {" ".join(call) for _, call in CALLS},
                     "each operation has an example in this test")
        for name in known:
            if name in SERVING:
                checks.ok(isinstance(w.serve(*name.split(), *known[name]), dict), name + " --json")
            elif known[name] is not None:
                last = [] if name == "run" else ["--json"]
                code, out, err = run_muster(*name.split(), *known[name], *last)
                try:
                    objects = read_json(err if name == "run" else out.decode())
                except ValueError as error:
                    objects = error
                silent = name in ("kv set", "kv wait", "kv append", "kv mset", "kv push",
                                  "kv barrier", "rdzv close", "rdzv exclude",
                                  "rdzv include")
                checks.ok(code == 0 and isinstance(objects, list) and (silent or len(objects) > 0),
                          name + " --json", (code, out[:300], err, objects))


def test_exit_codes():
    with Scratch() as path, World(path) as w:
        kv = ["--store", w.store]
        nobody, away = ["--store", "tcp://" + w.nobody, "--connect", "300ms"], ["--timeout", "500ms"]
        busy = w.endpoint.split(":")[1]
        done = ["--rdzv-backend", "c10d", "--rdzv-endpoint", w.endpoint, "--rdzv-id", "done"]
        run_muster("rdzv", "close", *done)
        with open(w.file("plain"), "w") as file:
            file.write("not a directory\n")
        cases = [
            (NO_KEY, "kv get", kv + ["none"]), (NO_KEY, "kv mget", kv + ["a", "none"]),
            (NO_KEY, "kv pop", kv + ["none"]), (NO_KEY, "kv check", kv + ["none"]),
            (NO_KEY, "kv del", kv + ["none"]), (NO_KEY, "kv lease", kv + ["keep", "12345"]),
            (TIMED_OUT, "kv get", kv + ["none", "--wait", "--timeout", "200ms"]),
            (TIMED_OUT, "kv mget", kv + ["a", "none", "--wait", "--timeout", "200ms"]),
            (TIMED_OUT, "kv pop", kv + ["none", "--wait", "--timeout", "200ms"]),
            (TIMED_OUT, "kv wait", kv + ["none", "--timeout", "200ms"]),
            (TIMED_OUT, "kv barrier", kv + ["b2", "2", "--timeout", "200ms"]),
            (1, "kv cas", kv + ["a", "other", "x"]), (CONNECT, "kv get", nobody + ["a"]),
            (NO_KEY, "rdzv status", ["--rdzv-endpoint", w.endpoint, "--rdzv-id", "none"]),
            (CONNECT, "rdzv status", ["--rdzv-endpoint", w.nobody] + away),
            (CLOSED, "rdzv join", done),
            # A call waits for its worker, which may be about to start.
            (TIMED_OUT, "rpc call", ["--to", w.nobody, "muster::Rpc.echo"] + away),
            (1, "rpc call", ["--to", w.rpc, "muster::Rpc.fail"]),
            (TIMED_OUT, "rpc call", ["--to", w.rpc, "muster::Rpc.sleep", "9000"] + away),
            (CONNECT, "state ls", [w.nobody, "--connect", "300ms"]),
            (CONNECT, "state pull", [w.nobody, "--connect", "300ms", "--idle", "1s", "-q", "-o",
                                     w.file("none")]),
            (CONNECT, "peer ping", ["/ip4/127.0.0.1/tcp/%s" % w.nobody.split(":")[1]] + away),
            (CONNECT, "peer call", ["/ip4/127.0.0.1/tcp/%s" % w.nobody.split(":")[1], "a::B.c"] +
             away),
            (NO_KEY, "dht get", ["--bootstrap", w.dht, "none"]),
            (CONNECT, "dht get", ["--bootstrap", re.sub(r"/tcp/\d+", "/tcp/" +
                                                        w.nobody.split(":")[1], w.dht), "x"] + away),
            (ADDRESS, "serve", ["--listen", w.endpoint]),
            (ADDRESS, "rpc serve", ["--listen", w.endpoint]),
            (ADDRESS, "state serve", ["--listen", w.endpoint, w.model]),
            (ADDRESS, "peer serve", ["--listen", "/ip4/127.0.0.1/tcp/" + busy]),
            (ADDRESS, "dht serve", ["--listen", "/ip4/127.0.0.1/tcp/" + busy]),
            (STORAGE, "serve", ["--listen", HOST + ":0", "--data-dir", w.file("plain")]),
            (1, "stacks", ["--rdzv-id", "no-such-run"]), (USAGE, "stacks", ["--pid", "x"]),
            (USAGE, "stacks", ["--pid", "1", "--rdzv-endpoint", w.endpoint]),
            (NO_KEY, "stacks", ["--rdzv-endpoint", w.endpoint, "--rdzv-id", "no-such-run"]),
            (CONNECT, "top", [w.nobody, "--once"]), (CONNECT, "bench store", ["--store", "tcp://" +
                                                                              w.nobody]),
            (CONNECT, "doctor", ["etcd", "etcd://" + w.nobody] + away),
            (1, "stacks", ["--pid", "2147483647"]),
            (1, "keygen token", [w.token]), (1, "keygen page", [w.file("none")]),
            (1, "run", ["--no-python", "/bin/false"]), (0, "run", ["--no-python", "/bin/true"]),
            (USAGE, "p2pd", ["-no-such-flag"]), (0, "p2pd", ["-help"]), (0, "doctor", ["--help"]),
        ]
        for code, name, words in cases:
            got, out, err = run_muster(*name.split(), *words, patience=30)
            checks.ok(got == code, "%s exits with %d" % (" ".join([name] + words[-3:])[:70], code),
                      (got, out, err))


def test_serve_needs_no_words():
    with Scratch() as path:
        process = subprocess.Popen([muster_path(), "serve", "--json"], cwd=path,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   preexec_fn=die_with_parent)
        try:
            line = process.stdout.readline()
            if line == b"" and b"in use" in process.stderr.read():
                checks.note("the default port is in use on this machine")
            else:
                checks.equal(json.loads(line)["address"], "127.0.0.1:29400",
                             "serve without words serves on loopback")
        finally:
            process.kill()
            process.wait()


if __name__ == "__main__":
    os.environ.pop("MUSTER_STORE", None)
    checks.run_tests(globals())
    checks.done()
