"""The native rendezvous with real processes: `muster serve`, or nobody, and `muster rdzv join`.

usage: rdzv_native.py [path of muster] [--only=NAME]
"""
import json
import signal
import socket
import statistics
import subprocess
import time

from lib import HOST, Checks, Lateness, Muster, free_port, muster_path, option, wait_until
from rdzv_nodes import Fleet, agree, endpoint_of

NAMES = ["node1", "node2", "node3", "node10"]
checks = Checks()


def muster(*args):
    return subprocess.run([muster_path(), "rdzv"] + list(args), capture_output=True, text=True,
                          timeout=30)


def status(server, run_id):
    done = muster("status", "--json", "--rdzv-endpoint", endpoint_of(server), "--rdzv-id", run_id)
    return json.loads(done.stdout) if done.returncode == 0 else None


def form(fleet, names=NAMES, **more):
    for name in names:
        fleet.add(name, **more)
    return fleet.world(names)


def test_four_nodes_get_distinct_ranks_in_one_world():
    with Muster() as server, Fleet(endpoint_of(server), "four", 4) as fleet:
        got = form(fleet)
        checks.equal(agree(got), "", "four nodes agree on round, members and store")
        checks.equal([m["name"] for m in got["node1"]["members"]], NAMES,
                     "ranks are in natural order: node2 before node10")
        checks.equal(list(got["node1"])[:6],
                     ["event", "round", "rank", "world_size", "members", "store"],
                     "an assignment has the documented fields")
        store = got["node1"]["store"]
        checks.ok(store.startswith("tcp://%s?prefix=rdzv/four/" % endpoint_of(server)),
                  "the round's store is named", store)
        for verb, rest in (("set", ["key", "value"]), ("get", ["key"])):
            done = subprocess.run([muster_path(), "kv", "--store", store, verb] + rest,
                                  capture_output=True, text=True, timeout=30)
            checks.equal(done.returncode, 0, "the round's store takes a " + verb)
        checks.equal(done.stdout, "value\n", "and gives back what it took")
        run = status(server, "four")
        checks.equal((run["state"], run["running"], [m["name"] for m in run["members"]]),
                     ("running", 4, NAMES), "status tells of the four")
        human = muster("status", "--rdzv-endpoint", endpoint_of(server), "--rdzv-id", "four")
        checks.ok("node10" in human.stdout and "running" in human.stdout,
                  "status is readable", human.stdout)
        everything = muster("status", "--rdzv-endpoint", endpoint_of(server), "--json")
        checks.equal(json.loads(everything.stdout)["run_id"], "four", "status lists all runs")
        checks.equal(muster("status", "--rdzv-endpoint", endpoint_of(server), "--rdzv-id",
                            "nothing").returncode, 7, "a run that is not there has an exit code")


def test_a_lost_member_ends_the_round_for_the_survivors_at_once_by_push():
    delays = []
    late = Lateness()
    with late, Muster() as server, Fleet(endpoint_of(server), "lost", "2:4", args=("--rejoin",),
                                         config="last_call_timeout=0.2") as fleet:
        first = form(fleet)
        for turn in range(option("kills", 3)):
            victim = "node3"
            before = time.monotonic()
            fleet.nodes[victim].kill()
            survivors = [name for name in fleet.nodes if name != victim]
            lost = {name: fleet.nodes[name].until("lost") for name in survivors}
            delays += [event["at"] - before for event in lost.values()]
            if turn == 0:
                checks.equal({event["name"] for event in lost.values()}, {victim},
                             "the survivors are told who was lost")
                ended = fleet.nodes["node1"].next("ended")
                checks.equal((ended["reason"], ended["round"]), ("lost", first["node1"]["round"]),
                             "and that the round is over")
            again = fleet.world(survivors)
            checks.equal(agree(again), "", "the survivors form a world again")
            fleet.add(victim)
            checks.equal(agree(fleet.world()), "", "the node is let in when it is back")
    middle = statistics.median(delays)
    checks.ok(middle < 0.1 + late.worst, "told within 100 ms of a kill -9 (median)",
              (middle, late.worst))
    checks.note("kill -9 to told: median %.1f ms, longest %.1f ms; a sleeper is up to %.1f ms late"
                % (1000 * middle, 1000 * max(delays), 1000 * late.worst))


def test_a_stopped_node_is_out_after_the_bound_and_can_join_again():
    dead = 0.9
    with Muster() as server, Fleet(endpoint_of(server), "stopped", "2:4", args=("--rejoin",),
                                   config="dead=%g,last_call_timeout=0.2" % dead) as fleet:
        form(fleet)
        survivors = [name for name in NAMES if name != "node2"]
        with Lateness() as late:
            before = time.monotonic()
            fleet.nodes["node2"].signal(signal.SIGSTOP)
            delays = [fleet.nodes[name].until("lost")["at"] - before for name in survivors]
        checks.ok(max(delays) <= dead * 1.1 + late.worst,
                  "a silent node is dropped within the bound plus 10 %", (delays, late.worst))
        checks.ok(min(delays) >= dead / 3, "and not before it was silent", delays)
        checks.equal(agree(fleet.world(survivors)), "", "the others go on without it")
        fleet.nodes["node2"].signal(signal.SIGCONT)
        ended = fleet.nodes["node2"].until("ended")
        checks.equal(ended["reason"], "dropped", "it learns that it is out when it continues")
        checks.equal(agree(fleet.world()), "", "and is in again with all others")


def test_a_stopped_node_without_rejoin_ends_with_an_error():
    with Muster() as server, Fleet(endpoint_of(server), "stopped-once", "1:2",
                                   config="dead=0.6,target=2") as fleet:
        form(fleet, ["a", "b"])
        fleet.nodes["a"].signal(signal.SIGSTOP)
        fleet.nodes["b"].until("lost")
        checks.equal(fleet.nodes["b"].wait(), 0, "a node whose round has ended ends well")
        fleet.nodes["a"].signal(signal.SIGCONT)
        checks.equal(fleet.nodes["a"].until("ended")["reason"], "dropped", "the other was dropped")
        checks.equal(fleet.nodes["a"].wait(), 1, "and its exit code says so")


def test_a_close_is_seen_by_all():
    with Muster() as server, Fleet(endpoint_of(server), "close", "2:3",
                                   config="target=3") as fleet:
        first = form(fleet, ["a", "b", "c"])
        fleet.add("spare", "--verbose")
        wait_until(lambda: (status(server, "close") or {}).get("spare") == 1, "a spare")
        done = muster("close", "--rdzv-endpoint", endpoint_of(server), "--rdzv-id", "close")
        checks.equal((done.returncode, done.stderr), (0, ""), "a run is closed from the shell")
        for name, node in fleet.nodes.items():
            node.until("closed")
            checks.equal(node.wait(), 0, "%s ends well with the run" % name)
        fleet.nodes.clear()
        again = form(fleet, ["a", "b", "c"])
        checks.equal(agree(again), "", "a closed run is started again under its id")
        checks.ok(again["a"]["store"] != first["a"]["store"], "with a store of its own",
                  again["a"]["store"])
        checks.equal(muster("close", "--rdzv-endpoint", endpoint_of(server), "--rdzv-id",
                            "nothing").returncode, 7, "a run that is not there cannot be closed")


def test_a_timeout_names_the_missing():
    with Muster() as server, Fleet(endpoint_of(server), "timeout", "3",
                                   config="join_timeout=1") as fleet:
        fleet.add("a")
        fleet.add("b")
        failed = fleet.nodes["a"].next("failed")
        checks.equal(failed["error"], "MUSTER_ERDZV_TIMEOUT", "a join fails when its time is over")
        checks.ok("2 of 3" in failed["text"] or "1 of 3" in failed["text"],
                  "and says how many are missing", failed["text"])
        checks.equal(fleet.nodes["a"].wait(), 3, "a timeout has its exit code")
    with Muster() as server, Fleet(endpoint_of(server), "back", "3", args=("--rejoin",),
                                   config="join_timeout=1.5") as fleet:
        form(fleet, ["a", "b", "c"])
        fleet.nodes["b"].kill()
        failed = fleet.nodes["a"].until("failed")
        checks.ok("b" in failed["text"].split("not back")[-1] and "not back" in failed["text"],
                  "a timeout names the node that is not back", failed["text"])


def test_a_late_comer_is_let_in():
    with Muster() as server, Fleet(endpoint_of(server), "late", "1:3", args=("--rejoin",),
                                   config="last_call_timeout=0.1,upscale_delay=0.3") as fleet:
        form(fleet, ["a"])
        fleet.add("b")
        fleet.add("c")
        waiting = fleet.nodes["a"].next("waiting")
        checks.ok(waiting["count"] >= 1, "those who run are told that somebody waits", waiting)
        ended = fleet.nodes["a"].until("ended")
        checks.equal(ended["reason"], "upscale", "and then that the round is over for them")
        got = fleet.world()
        checks.equal(agree(got), "", "late-comers are in the next round")


def test_wrong_sizes_are_refused_in_words():
    with Muster() as server, Fleet(endpoint_of(server), "sizes", "2:4") as fleet:
        fleet.add("a")
        wait_until(lambda: (status(server, "sizes") or {}).get("gathering") == 1, "a is in")
        node = fleet.add("b", nnodes="3:4")
        failed = node.next("failed")
        checks.ok("2" in failed["text"] and "3" in failed["text"],
                  "another minimum is refused, and both are said", failed["text"])
        checks.equal(node.wait(), 2, "it is wrong usage")
        checks.equal(fleet.nodes["a"].stop(), 0, "a node that leaves while it waits ends well")


def test_without_a_server_one_of_the_nodes_hosts():
    endpoint = "%s:%d" % (HOST, free_port())
    with Fleet(endpoint, "host", 4) as fleet:
        checks.equal(agree(form(fleet)), "", "four nodes meet where nobody serves")
        for node in fleet.nodes.values():
            node.stop()
        lines = [node.complaint for node in fleet.nodes.values()]
        checks.ok(all("hosting at" in line or "connecting to" in line for line in lines),
                  "each says its choice", lines)
    endpoint = "%s:%d" % (HOST, free_port())
    with Fleet(endpoint, "rehost", "1:3", args=("--rejoin",),
               config="grace=0.3,last_call_timeout=0.3,target=3") as fleet:
        first = fleet.add("host", config="is_host=true,grace=0.3,last_call_timeout=0.3,target=3")
        wait_until(lambda: muster("status", "--rdzv-endpoint", endpoint).returncode == 0, "a host")
        for name in ("a", "b"):
            fleet.add(name)
        fleet.assigned()
        first.kill()
        again = fleet.assigned(["a", "b"])
        while any(a["world_size"] != 2 for a in again.values()):
            again = {name: a if a["world_size"] == 2 else fleet.nodes[name].until("assigned")
                     for name, a in again.items()}
        checks.equal(agree(again), "", "when the host dies, another node takes its place")


def test_errors_name_the_thing_and_the_remedy():
    port = free_port()
    done = muster("join", "--rdzv-endpoint", "%s:%d" % (HOST, port), "--rdzv-id", "x",
                  "--rdzv-conf", "is_host=false,join_timeout=0.5")
    checks.equal(done.returncode, 4, "nobody listens: its exit code")
    checks.ok(str(port) in done.stderr and "server" in done.stderr, "nobody listens, in words",
              done.stderr)
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        done = muster("status", "--timeout", "1", "--rdzv-endpoint",
                      "%s:%d" % (HOST, other.getsockname()[1]))
        checks.equal(done.returncode, 4, "something that is no muster server: its exit code")
        checks.ok("not a muster server" in done.stderr, "and in words", done.stderr)
    # MU_RDZV_ASK_SERVERS_MAX
    done = muster("status", "--rdzv-endpoint", ",".join("%s:%d" % (HOST, n) for n in range(1, 34)))
    checks.ok(done.returncode == 2 and "more than 32" in done.stderr, "too many servers",
              done.stderr)
    for args, words in (
            (["--rdzv-conf", "colour=red"], "colour"),
            (["--rdzv-backend", "smoke"], "smoke"),
            (["--nnodes", "4:2"], "maximum"),
            (["--nnodes", "few"], "few"),
            (["--rdzv-conf", "dead=never"], "dead"),
    ):
        done = muster("join", "--rdzv-id", "x", "--rdzv-endpoint", "%s:%d" % (HOST, port), *args)
        checks.equal(done.returncode, 2, "%s is refused" % args[-1])
        checks.ok(words in done.stderr, "by name", done.stderr)


def main():
    checks.run_tests(globals())
    checks.done()


if __name__ == "__main__":
    main()
