#!/usr/bin/python3
"""A job on three hosts as somebody sees it who has the pages: locked with a token, at real addresses.
The server's page leads to the pages of the agents that others can open, and to no other; it shows
the steps of every node, and its time line when a host is lost.

    watched.py [MUSTER] [--only=TEXT]
"""
import json
import subprocess

from drill import make_token
from rig import Checks, Rig, muster_path, wait_until

MUSTER = muster_path()
checks = Checks()

WORKER = """
step=0
while :; do
    step=$((step + 1))
    echo "step $step" >&"$MUSTER_NOTIFY_FD"
    sleep 0.1
done
"""

FETCH = """
import sys, urllib.request
request = urllib.request.Request("http://%s/%s" % (sys.argv[1], sys.argv[2]))
if len(sys.argv) > 3:
    request.add_header("Authorization", "Bearer " + sys.argv[3])
try:
    print(urllib.request.urlopen(request, timeout=20).read().decode())
except urllib.error.HTTPError as error:
    print(error.code)
"""


def fetch(host, address, path, *key):
    return host.run("/usr/bin/python3", "-c", FETCH, address, path, *key)[1]


def start_agent(host, credential, http):
    return host.start(MUSTER, "run", "--nnodes", "2:3", "--rdzv-endpoint", "node0:29400",
                      "--rdzv-id", "job7", "--http", http, "--rdzv-conf", "is_host=0", *credential,
                      "--no-python", "sh", "-c", WORKER)


def test_the_pages_of_a_job():
    with Rig(4) as rig:
        credential = make_token(rig)
        first, far = rig.hosts[0], rig.hosts[3]
        key = first.must_run(MUSTER, "keygen", "page", credential["node0"][1]).strip()
        server = first.start(MUSTER, "serve", "--listen", "0.0.0.0:29400", "--http",
                             "0.0.0.0:29401", *credential["node0"])
        server.says("status at")
        agents = {1: start_agent(rig.hosts[1], credential["node1"], "0.0.0.0:29402"),
                  2: start_agent(rig.hosts[2], credential["node2"], "127.0.0.1:29402"),
                  3: start_agent(far, credential["node3"], "node3:29402")}

        def status():
            return json.loads(fetch(far, "node0:29401", "status.json", key))

        def stepping(count):
            runs = status()["runs"]
            return runs and runs[0]["state"] == "running" and \
                [m.get("step", 0) > 1 for m in runs[0]["members"]] == [True] * count and runs[0]

        run = wait_until(lambda: stepping(3), "three nodes run and report their steps", 60)
        pages = {m["name"].split("_")[0]: m.get("page") for m in run["members"]}
        checks.equal(pages, {"node1": "node1:29402", "node2": None, "node3": "node3:29402"},
                     "a page that others can open is known, and no other")
        for node in ("node1", "node3"):
            seen = json.loads(fetch(first, pages[node], "status.json", key))
            checks.ok(seen["agent"]["run"] == "job7" and seen["workers"][0]["step"] > 1 and
                      seen["workers"][0]["step_us"] > 1000,
                      "the page of %s opens with the job's key, and shows its steps" % node, seen)
        checks.equal(fetch(far, pages["node1"], "status.json").strip(), "401",
                     "and not without it")
        metrics = fetch(far, pages["node1"], "metrics", key)
        done = subprocess.run(["promtool", "check", "metrics"], input=metrics, text=True,
                              capture_output=True)
        checks.equal((done.returncode, done.stderr), (0, ""), "promtool takes its metrics")
        rig.hosts[2].link.cut()
        run = wait_until(lambda: stepping(2), "two nodes go on", 60)
        lost = [p for p in run["history"] if p["what"] == "lost"]
        checks.ok(len(lost) == 1 and lost[0]["who"].startswith("node2_"),
                  "the time line says who was lost", run["history"])
        checks.ok("\nmuster_losses_total 1\n" in fetch(far, "node0:29401", "metrics", key),
                  "so do the metrics")
        top = far.run(MUSTER, "top", "--once", *credential["node3"], pages["node1"])
        checks.ok(top[0] == 0 and "step time" in top[1], "muster top shows the steps", top)
        rig.hosts[2].link.heal()
        for agent in agents.values():
            agent.stop()


checks.run_tests(globals())
checks.done()
