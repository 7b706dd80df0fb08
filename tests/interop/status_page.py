"""The status page and what is beside it, asked as programs do and seen in a real browser.

usage: status_page.py [path of muster] [--shots=DIRECTORY] [--only=NAME]
"""
import base64
import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import termios
import time
import urllib.error
import urllib.request

from browser import Browser
from lib import (HOST, Checks, Muster, Scratch, die_with_parent, free_port, muster_path, option,
                 wait_until)
from rdzv_nodes import Fleet, endpoint_of

TOKEN = "correct-horse-battery-staple"
checks = Checks()


def page_of(server):
    return re.search(r"status at (http://\S+/)", wait_until(
        lambda: server.output() if "status at" in server.output() else None, "the page"))[1]


def get(url, **headers):
    """(status, type, text)"""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as a:
            return a.status, a.headers["Content-Type"], a.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def test_programs_are_told_how_it_stands():
    with Muster("--http", HOST + ":0") as server, \
            Fleet(endpoint_of(server), 'na"me', "1:2") as fleet:
        page = page_of(server)
        fleet.add("node\\1")
        fleet.assigned()
        subprocess.run([muster_path(), "kv", "--store", "tcp://" + endpoint_of(server), "set",
                        "key", "value"], check=True, timeout=30)
        code, kind, text = get(page + "status.json")
        status = json.loads(text)
        checks.equal((code, kind, status["store"]["keys"]), (200, "application/json", 1),
                     "the status is JSON, and counts the key")
        checks.equal([(r["id"], r["state"], r["round"]) for r in status["runs"]],
                     [('na"me', "running", 0)], "it has the run, whatever it is called")
        checks.equal([(m["name"], m["rank"], m["state"]) for m in status["runs"][0]["members"]],
                     [("node\\1", 0, "running")], "and its member")
        checks.ok(any("has begun with 1 nodes" in e["text"] for e in status["events"]),
                  "and what happened", status["events"])
        code, kind, text = get(page + "metrics")
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        checks.ok(code == 200 and kind.startswith("text/plain; version=0.0.4") and
                  all(re.fullmatch(r'[a-z_]+(\{(?:[a-z]+="(?:[^"\\]|\\.)*",?)+\})? \d+', line)
                      for line in lines), "the metrics are as Prometheus reads them", text)
        checks.ok("muster_keys 1" in lines and
                  'muster_rdzv_members{run="na\\"me",state="running"} 1' in lines,
                  "and count keys and members", text)
        named = re.findall(r"^# TYPE (\S+) ", text, re.M)
        checks.equal(sorted(set(named)), sorted(named), "each metric is declared once")
        checks.equal(get(page + "healthz")[:1] + get(page + "readyz")[:1], (200, 200),
                     "it is healthy and ready")
        checks.equal(get(page + "nothing")[0], 404, "what is not there is not found")
        checks.equal(get(page, Host="evil.example")[0], 421,
                     "a page of somebody else's learns nothing through a browser here")


def raw(url, text):
    """What a socket gets for these bytes."""
    done = subprocess.run(["timeout", "20", "/usr/bin/python3", "-c", """
import socket, sys
host, port = sys.argv[1].split("/")[2].rsplit(":", 1)
with socket.create_connection((host, int(port))) as s:
    s.sendall(bytes.fromhex(sys.argv[2]))
    s.shutdown(socket.SHUT_WR)
    out = b""
    while True:
        piece = s.recv(65536)
        if not piece:
            break
        out += piece
sys.stdout.buffer.write(out)
""", url, text.hex()], stdout=subprocess.PIPE, check=True)
    return done.stdout.decode(errors="replace")


def test_bad_requests_cost_their_sender_only():
    with Muster("--http", HOST + ":0") as server:
        page = page_of(server)
        for text, code in ((b"hello\r\n\r\n", 400), (b"GET / HTTP/3.0\r\n\r\n", 505),
                           (b"GET / HTTP/1.1\r\nx: " + b"a" * 9000 + b"\r\n\r\n", 431),
                           (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx",
                            405), (b"\x16\x03\x01\x02\x00", 400)):
            answer = raw(page, text)
            checks.ok(answer.startswith("HTTP/1.1 %d " % code), "%r... is answered with %d" %
                      (text[:16], code), answer[:80])
        both = raw(page, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
                         b"HEAD /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        checks.equal((both.count("HTTP/1.1 200"), both.count("ok\n"), both.count("ready\n")),
                     (2, 1, 0), "requests behind each other are answered in turn, HEAD without a "
                     "body")
        checks.equal(get(page + "healthz")[0], 200, "others are served as before")


def test_who_says_nothing_does_not_keep_others_out():
    with Muster("--http", HOST + ":0") as server:
        page = page_of(server)
        port = int(page.rstrip("/").rsplit(":", 1)[1])
        listener = socket.create_connection((HOST, port), 20)
        listener.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        checks.ok(listener.recv(12) == b"HTTP/1.1 200", "somebody looks at the page")
        silent = []
        for i in range(80):
            silent.append(socket.create_connection((HOST, port), 20))
            silent[i].sendall(b"GET /healthz HT"[:15 * (i % 2)])  # and no more
        checks.equal([get(page + "healthz")[0] for _ in range(3)], [200] * 3,
                     "it is healthy beside 80 connections that say nothing")
        began = time.monotonic()
        silent[-1].settimeout(20)
        try:
            end = silent[-1].recv(100)
        except ConnectionResetError:
            end = b""
        checks.ok(end == b"" and time.monotonic() - began < 20, "which are not waited for long")
        listener.settimeout(20)
        checks.ok(b"data: " in listener.recv(65536) + listener.recv(65536),
                  "who looks is still told")


def test_beyond_loopback_a_token_is_wanted():
    with Scratch() as scratch:
        path = os.path.join(scratch, "token")
        with open(path, "w", opener=lambda p, f: os.open(p, f, 0o600)) as file:
            file.write(TOKEN + "\n")
        done = subprocess.run([muster_path(), "serve", "--listen", HOST + ":0", "--http",
                               "0.0.0.0:0"], capture_output=True, text=True, timeout=30)
        checks.ok(done.returncode != 0 and "needs a token" in done.stderr,
                  "without a token it does not start, and says why", done.stderr)
        with Muster("--http", "0.0.0.0:0", "--token-file", path) as server:
            page = page_of(server).replace("0.0.0.0", HOST)
            basic = base64.b64encode(("me:" + TOKEN).encode()).decode()
            wrong = base64.b64encode(b"me:wrong-horse-battery-staple").decode()
            for name, headers, code in (
                    ("nothing", {}, 401),
                    ("another token", {"Authorization": "Bearer " + TOKEN[:-1] + "x"}, 401),
                    ("half of the token", {"Authorization": "Bearer " + TOKEN[:-1]}, 401),
                    ("another password", {"Authorization": "Basic " + wrong}, 401),
                    ("no base64", {"Authorization": "Basic !!!"}, 401),
                    ("the token", {"Authorization": "Bearer " + TOKEN}, 200),
                    ("the token as a password", {"Authorization": "Basic " + basic}, 200)):
                for what in ("", "status.json", "metrics", "events"):
                    if code != 200 or what != "events":
                        checks.equal(get(page + what, **headers)[0], code,
                                     "/%s with %s" % (what, name))
                for what in ("healthz", "readyz"):
                    checks.equal(get(page + what, **headers)[0], 200, "/%s with %s" % (what, name))
            checks.ok(TOKEN not in server.output(), "the token is not in the log")


TEXT = "document.getElementById(%r).innerText"
NARROW = "document.documentElement.scrollWidth <= innerWidth"


def shoot(name, **browsers):
    """Keeps pictures where --shots says, or beside the program that is tested."""
    folder = option("shots", "") or os.path.join(os.path.dirname(muster_path()), "status-shots")
    os.makedirs(folder, exist_ok=True)
    for kind, browser in browsers.items():
        path = os.path.join(folder, "%s-%s.png" % (name, kind))
        browser.shoot(path)
        checks.ok(os.path.getsize(path) > 5000, "a picture is kept: %s" % os.path.basename(path))


def test_a_browser_sees_a_member_die_without_a_reload():
    with Muster("--http", HOST + ":0") as server, \
            Fleet(endpoint_of(server), "train-17", "2:4", args=("--rejoin",)) as fleet:
        page = page_of(server)
        for name in ("alpha", "beta", "gamma"):
            fleet.add(name)
        fleet.world()
        with Browser(1200, 800) as wide, Browser(390, 844, mobile=True) as narrow:
            for browser in (wide, narrow):
                browser.open(page)
                wait_until(lambda: browser.evaluate(TEXT % "link") == "live", "the page is live")
                browser.evaluate("window.notReloaded = true")
            seen = wait_until(lambda: "gamma" in wide.evaluate(TEXT % "runs") and
                              wide.evaluate(TEXT % "runs"), "the members are seen")
            checks.ok(all(word in seen for word in ("train-17", "alpha", "beta", "running")),
                      "run, members and state are on the page", seen)
            checks.equal(narrow.evaluate(NARROW), True,
                         "on a phone nothing is wider than the screen")
            shoot("status", wide=wide, narrow=narrow)
            fleet.nodes["gamma"].process.kill()
            wait_until(lambda: "gamma" not in wide.evaluate(TEXT % "runs"),
                       "the dead member leaves the page")
            events = wait_until(lambda: "gamma" in wide.evaluate(TEXT % "events") and
                                wide.evaluate(TEXT % "events"), "its end is among the events")
            checks.ok("lost gamma, node 2" in events, "the page says who was lost", events)
            checks.ok(wide.evaluate("window.notReloaded") is True, "the page was not loaded again")
            server.process.terminate()
            wait_until(lambda: "not answering" in narrow.evaluate(TEXT % "link"),
                       "a page whose server is gone says so")
            checks.ok(True, "a page whose server is gone says so")


class Terminal:
    """A program in a terminal of 80 columns and 24 lines, and what is on it."""

    def __init__(self, *command):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave,
                                        preexec_fn=die_with_parent)
        os.close(slave)
        self.read = ""

    def screen(self):
        """The lines of the last picture that is whole."""
        while select.select([self.master], [], [], 0)[0]:
            try:
                self.read += os.read(self.master, 65536).decode(errors="replace")
            except OSError:
                break
        pictures = self.read.split("\033[H")
        if len(pictures) < 3:
            return []
        return [re.sub(r"\033\[[0-9;]*m|\033\[[KJ]|\r", "", line)
                for line in pictures[-2].split("\n")[:-1]]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.master)


class Job:
    """`muster run` of three workers with a page, each of which waits for a file named after it: in
    that stands what it ends with."""

    WORKER = """
echo "worker $RANK is here" >&2
while [ ! -e "$0.$RANK" ]; do sleep 0.05; done
code=$(cat "$0.$RANK")
rm "$0.$RANK"
exit "$code"
"""

    def __init__(self, scratch, *args, http=HOST + ":0", restarts=1):
        self.script = os.path.join(scratch, "worker.sh")
        with open(self.script, "w") as file:
            file.write(self.WORKER)
        self.errors = os.path.join(scratch, "errors")
        with open(self.errors, "wb") as errors:
            self.process = subprocess.Popen(
                [muster_path(), "run", "--rdzv-backend", "muster", "--rdzv-endpoint",
                 "%s:%d" % (HOST, free_port()), "--rdzv-id", "train-18", "--nproc-per-node", "3", "--max-restarts", str(restarts), "--no-python", "--http", http, *args, "sh",
                 self.script], stdout=subprocess.DEVNULL, stderr=errors,
                preexec_fn=die_with_parent, env=dict(os.environ, LOGLEVEL="INFO"))

    def output(self):
        with open(self.errors, errors="replace") as file:
            return file.read()

    def page(self):
        return re.search(r"status at (http://[0-9.:]+/)", wait_until(
            lambda: self.output() if "status at" in self.output() else None, "the page"))[1]

    def end(self, rank, code):
        with open("%s.%d.new" % (self.script, rank), "w") as file:
            file.write(str(code))
        os.rename("%s.%d.new" % (self.script, rank), "%s.%d" % (self.script, rank))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()


def state_of(page):
    return json.loads(get(page + "status.json")[2])


def test_an_agent_says_how_it_stands():
    with Scratch() as scratch, Job(scratch) as job:
        page = job.page()
        status = wait_until(lambda: state_of(page)["agent"]["state"] == "running" and
                            state_of(page), "the workers run")
        checks.equal((status["kind"], status["agent"]["run"], status["agent"]["round"],
                      status["agent"]["rank"], status["agent"]["nodes"], status["agent"]["world"]),
                     ("agent", "train-18", 0, 0, 1, 3), "run, round and rank are there")
        checks.ok([w["rank"] for w in status["workers"]] == [0, 1, 2] and
                  all(w["state"] == "running" and os.path.exists("/proc/%d" % w["pid"])
                      for w in status["workers"]), "and the workers, by process", status["workers"])
        checks.equal((get(page + "healthz")[0], get(page + "readyz")[0]), (200, 200),
                     "while workers run it is ready")
        code, kind, text = get(page + "metrics")
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        checks.ok(code == 200 and
                  all(re.fullmatch(r'[a-z_]+(\{(?:[a-z]+="(?:[^"\\]|\\.)*",?)+\})? \d+', line)
                      for line in lines) and
                  'muster_agent_workers{run="train-18",state="running"} 3' in lines and
                  'muster_agent_round{run="train-18"} 0' in lines, "for Prometheus, too", text)
        checks.equal(get(page, Host="evil.example")[0], 421, "others' pages learn nothing")
        job.end(1, 3)
        status = wait_until(lambda: state_of(page)["agent"].get("round") == 1 and
                            state_of(page)["agent"]["failures"] == 1 and state_of(page),
                            "a round later")
        checks.equal((status["agent"]["restarts"], status["agent"]["restarts_max"]), (1, 1),
                     "a restart is counted")
        checks.ok(any("rank 1 ended with 3" in e["text"] for e in status["events"]),
                  "and why is told", status["events"])
    with Scratch() as scratch, Job(scratch, http="0.0.0.0:0") as job:
        checks.ok(job.process.wait(20) != 0 and "needs a token" in job.output(),
                  "beyond loopback a token is needed", job.output())
    with Scratch() as scratch:
        path = os.path.join(scratch, "token")
        with open(path, "w", opener=lambda p, f: os.open(p, f, 0o600)) as file:
            file.write(TOKEN + "\n")
        with Job(scratch, "--token-file", path, http="0.0.0.0:0") as job:
            page = job.page().replace("0.0.0.0", HOST)
            checks.equal((get(page)[0], get(page + "status.json", Authorization="Bearer " + TOKEN)[0]),
                         (401, 200), "and asked for")
            wait_until(lambda: "worker 2 is here" in job.output(), "the workers run")
            for entry in os.listdir("/proc"):
                if entry.isdigit():
                    try:
                        with open("/proc/%s/environ" % entry, "rb") as file:
                            environment = file.read()
                        with open("/proc/%s/cmdline" % entry, "rb") as file:
                            command = file.read()
                    except OSError:
                        continue
                    if job.script.encode() in command and (TOKEN.encode() in environment or
                                                           TOKEN.encode() in command):
                        checks.ok(False, "the token is in process " + entry)
            checks.ok(TOKEN not in job.output(), "the token is in no log")


def test_a_browser_sees_a_worker_die_without_a_reload():
    with Scratch() as scratch, Job(scratch, restarts=0) as job:
        page = job.page()
        with Browser(1200, 800) as wide, Browser(390, 844, mobile=True) as narrow:
            for browser in (wide, narrow):
                browser.open(page)
                wait_until(lambda: browser.evaluate(TEXT % "link") == "live", "the page is live")
                browser.evaluate("window.notReloaded = true")
            seen = wait_until(lambda: wide.evaluate(TEXT % "agent").count("running") >= 4 and
                              wide.evaluate(TEXT % "agent"), "the workers are seen")
            checks.ok("train-18" in seen and "3 workers in all" in seen, "run and workers", seen)
            checks.equal(narrow.evaluate(NARROW), True,
                         "on a phone nothing is wider than the screen")
            shoot("agent", wide=wide, narrow=narrow)
            os.kill(next(w["pid"] for w in state_of(page)["workers"] if w["rank"] == 2),
                    signal.SIGKILL)
            seen = wait_until(lambda: "failed" in wide.evaluate(TEXT % "agent") and
                              wide.evaluate(TEXT % "agent"), "the death is on the page")
            checks.ok("-9" in seen, "and how it died", seen)
            seen = wait_until(lambda: wide.evaluate(TEXT % "link") == "ended" and
                              wide.evaluate(TEXT % "agent"), "the end is on the page")
            checks.ok("rank 2" in seen and "failed" in seen, "with the verdict", seen)
            events = wide.evaluate(TEXT % "events")
            checks.ok("rank 2 was ended by SIGKILL" in events, "the events say it", events)
            checks.ok(wide.evaluate("window.notReloaded") is True and
                      narrow.evaluate("window.notReloaded") is True, "nothing was loaded again")
            wait_until(lambda: narrow.evaluate(TEXT % "link") == "ended", "nor on the phone")
            checks.equal(narrow.evaluate(NARROW), True, "it still fits a phone")
            shoot("agent-failed", wide=wide, narrow=narrow)
        checks.equal(job.process.wait(20), 1, "the page does not keep the agent")


def test_a_browser_sees_why_a_run_ended():
    """On the server's page, which is not the agent's own."""
    with Scratch() as scratch, Muster("--http", HOST + ":0") as server, \
            Job(scratch, "--rdzv-endpoint", endpoint_of(server), restarts=1) as job, \
            Browser(1200, 800) as wide, Browser(390, 844, mobile=True) as narrow:
        page = page_of(server)
        for browser in (wide, narrow):
            browser.open(page)
            wait_until(lambda: browser.evaluate(TEXT % "link") == "live", "the page is live")
        for rank, code in ((1, 3), (2, 4)):
            wait_until(lambda: job.output().count("worker %d is here" % rank) == rank,
                       "the workers run")
            job.end(rank, code)
        seen = wait_until(lambda: "Why it ended" in wide.evaluate(TEXT % "runs") and
                          wide.evaluate(TEXT % "runs"), "the end is on the page")
        checks.ok("Why it ended: rank 2 (local rank 2) on %s, exit code 4" % socket.gethostname() in seen,
                  "the page says who ended the run", seen)
        checks.ok("worker 2 is here" in seen, "with its last lines", seen)
        checks.ok("exit code 3" not in seen, "not who was recovered from", seen)
        checks.equal([p["what"] for p in run_of(page)["history"]],
                     ["joined", "round", "failed", "ended", "round", "failed", "over"],
                     "the time line has both failures, and the end")
        events = wide.evaluate(TEXT % "events")
        checks.ok("the run is the run" not in events and "used up its 1 restarts" in events,
                  "the events say it in a sentence", events)
        wait_until(lambda: "Why it ended" in narrow.evaluate(TEXT % "runs"), "it is on the phone")
        checks.equal(narrow.evaluate(NARROW), True, "it fits a phone")
        shoot("run-failed", wide=wide, narrow=narrow)


TITLE = "document.title"


class Cluster:
    """A server with a page, and agents with pages, each of which runs one worker that reports its
    steps. A worker ends with the code in the file that is named after its node, once that is there."""

    WORKER = """
node="$0.$NODE"
exec 3<&"$MUSTER_NOTIFY_FD"
step=0
while [ ! -e "$node" ]; do
    step=$((step + 1))
    echo "step $step" >&3
    sleep 0.1
done
code=$(cat "$node")
rm "$node"
exit "$code"
"""

    def __init__(self, scratch, server, run="train-19", nnodes="2:4", restarts=3):
        self.script = os.path.join(scratch, "worker.sh")
        with open(self.script, "w") as file:
            file.write(self.WORKER)
        self.scratch, self.server, self.run = scratch, server, run
        self.args = ["--nnodes", nnodes, "--max-restarts", str(restarts)]
        self.agents = {}

    def add(self, name):
        errors = open(os.path.join(self.scratch, name), "ab")
        self.agents[name] = subprocess.Popen(
            [muster_path(), "run", "--rdzv-backend", "muster", "--rdzv-endpoint",
             endpoint_of(self.server), "--rdzv-id", self.run, *self.args, "--rdzv-conf",
             "name=" + name + ",is_host=0,last_call_timeout=1,upscale_delay=0", "--no-python",
             "--http", HOST + ":0", "sh", self.script], stdout=subprocess.DEVNULL, stderr=errors,
            preexec_fn=die_with_parent, env=dict(os.environ, NODE=name, LOGLEVEL="INFO"))
        errors.close()

    def end(self, name, code):
        with open("%s.%s.new" % (self.script, name), "w") as file:
            file.write(str(code))
        os.rename("%s.%s.new" % (self.script, name), "%s.%s" % (self.script, name))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.agents.values():
            process.terminate()
        for process in self.agents.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def run_of(page):
    return state_of(page)["runs"][0]


def running(page, count):
    run = state_of(page)["runs"]
    return run and run[0]["state"] == "running" and len(run[0]["members"]) == count and run[0]


# Of each kind of event how many there are on the time line, by the drawings themselves.
MARKS = "Object.fromEntries(['joined', 'lost', 'left', 'failed'].map(k => " \
    "[k, document.querySelectorAll('svg.timeline path.' + k).length]))"
# What is drawn lies inside of its picture, and no row covers another.
INSIDE = """[...document.querySelectorAll('svg')].every(svg => {
  const box = svg.getBoundingClientRect();
  return [...svg.querySelectorAll('path, text')].every(p => {
    const b = p.getBoundingClientRect();
    return b.left >= box.left - 6 && b.right <= box.right + 6 && b.top >= box.top - 1 && b.bottom <= box.bottom + 1;
  });
})"""


def dark(browser):
    browser.call("Emulation.setEmulatedMedia",
                 features=[{"name": "prefers-color-scheme", "value": "dark"}])


def test_the_page_of_a_run_with_a_loss_and_a_failure():
    with Scratch() as scratch, Muster("--http", HOST + ":0") as server, \
            Cluster(scratch, server) as cluster, Browser(1200, 900) as wide, \
            Browser(1200, 900) as night, Browser(390, 844, mobile=True) as narrow:
        page = page_of(server)
        dark(night)
        for browser in (wide, night, narrow):
            browser.open(page)
        for name in ("alpha", "beta", "gamma"):
            cluster.add(name)
        wait_until(lambda: running(page, 3), "three nodes run")
        cluster.agents["gamma"].kill()
        wait_until(lambda: running(page, 2), "two go on")
        cluster.end("beta", 3)
        wait_until(lambda: run_of(page)["restarts_left"] == 2 and running(page, 2),
                   "the workers were started again")
        cluster.add("delta")
        run = wait_until(lambda: running(page, 3), "a node joined")
        kinds = [p["what"] for p in run["history"]]
        checks.ok([k for k in kinds if k in ("lost", "failed", "round")] ==
                  ["round", "lost", "round", "failed", "round", "round"],
                  "the time line has the loss, the failure and the rounds in their order", kinds)
        lost = next(p for p in run["history"] if p["what"] == "lost")
        failed = next(p for p in run["history"] if p["what"] == "failed")
        checks.equal((lost["who"], failed["who"], [p["nodes"] for p in run["history"]
                                                   if p["what"] == "round"]),
                     ("gamma", "beta", [3, 2, 2, 3]), "and says who, and with how many nodes")
        metrics = get(page + "metrics")[2].splitlines()
        checks.ok("muster_losses_total 1" in metrics and "muster_restarts_total 1" in metrics,
                  "Prometheus is told of both", metrics)
        for browser, name in ((wide, "wide"), (night, "dark"), (narrow, "narrow")):
            wait_until(lambda: "delta" in browser.evaluate(TEXT % "runs"), "the new node is seen")
            marks = browser.evaluate(MARKS)
            checks.ok(marks["lost"] == 1 and marks["failed"] == 1 and marks["left"] == 0 and
                      marks["joined"] >= 2, "%s: the time line shows each" % name, marks)
            wait_until(lambda: "running" in browser.evaluate(TITLE), "the page shows that it runs")
            checks.equal((browser.evaluate(NARROW), browser.evaluate(INSIDE)), (True, True),
                         "%s: nothing is wider than the screen or outside of its drawing" % name)
            checks.equal(browser.evaluate(TITLE), "train-19: running – muster",
                         "%s: the title says which job it is" % name)
        tips = wide.evaluate("[...document.querySelectorAll('svg.timeline title')]"
                             ".map(t => t.textContent).join('\\n')")
        checks.ok("gamma was lost, round 0" in tips and "beta failed, round 1" in tips,
                  "what is pointed at is named", tips)
        colors = [b.evaluate("getComputedStyle(document.querySelector('path.lost')).fill + "
                             "getComputedStyle(document.body).backgroundColor")
                  for b in (wide, night)]
        checks.ok(colors[0] != colors[1], "the dark page has colors of its own", colors)
        shoot("run", wide=wide, dark=night, narrow=narrow)
        seen = wait_until(lambda: (wide.evaluate(TEXT % "runs").count("ms") >= 3 or
                                   wide.evaluate(TEXT % "runs").count(" s\n") >= 3) and
                          wide.evaluate(TEXT % "runs"), "every node's step is seen")
        checks.ok("step time" in seen and all(m["step"] > 1 and m["step_us"] > 1000
                                              for m in run_of(page)["members"]),
                  "and how long it takes, node by node", seen)
        shoot("run-steps", wide=wide, dark=night, narrow=narrow)
        check_foreign_steps(server, page)
        wait_until(lambda: all("step" in m for m in run_of(page)["members"]) and
                   "step time" in wide.evaluate(TEXT % "runs"), "the agents write theirs again")
        links = wide.evaluate("[...document.links].map(a => [a.textContent, a.href])")
        checks.equal(sorted(name for name, _ in links), ["alpha", "beta", "delta"],
                     "each node's name leads to its agent")
        # As a person does: a click, while the page changes four times a second.
        wide.evaluate("[...document.links].find(a => a.textContent === 'beta').scrollIntoView()")
        click(wide, "beta")
        wait_until(lambda: wide.evaluate("location.href") == dict(links)["beta"],
                   "the agent's page is opened")
        seen = wait_until(lambda: "step time" in (wide.evaluate(TEXT % "agent") or "") and
                          wide.evaluate("document.querySelector('svg.steps') !== null") and
                          wide.evaluate(TEXT % "agent"), "the agent's page shows steps")
        checks.ok("train-19" in seen and re.search(r"last \d+ steps: median \d", seen),
                  "with how long they take", seen)
        checks.equal(wide.evaluate(TITLE), "train-19: running, node 1 of 3 – muster",
                     "its title says which node it is")
        status = state_of(dict(links)["beta"])
        step = status["workers"][0]
        checks.ok(step["step"] > 1 and 1000 < step["step_us"] < 60000000,
                  "the status has step and time", step)
        metrics = get(dict(links)["beta"] + "metrics")[2]
        checks.ok(re.search(r'^muster_agent_step\{run="train-19"\} \d+$', metrics, re.M) and
                  re.search(r'^muster_agent_step_seconds\{run="train-19"\} \d+\.\d{6}$', metrics,
                            re.M), "and so have the metrics", metrics)
        night.open(dict(links)["beta"])
        narrow.open(dict(links)["beta"])
        for browser in (night, narrow):
            wait_until(lambda: browser.evaluate("document.querySelector('svg.steps') !== null"),
                       "steps are drawn")
            checks.equal((browser.evaluate(NARROW), browser.evaluate(INSIDE)), (True, True),
                         "they fit the screen")
        shoot("agent-steps", wide=wide, dark=night, narrow=narrow)
        check_metrics("a server", get(page + "metrics")[2])
        check_metrics("an agent", metrics)


def check_foreign_steps(server, page):
    """Any client can write where agents leave their steps."""
    run = run_of(page)
    key = "/rdzv/%s/%d.%d/muster/step/7" % (run["id"], run["incarnation"], run["round"])
    for value in ("", "x", "1", "1 ", "1 x", "1 2 3", "9" * 30 + " 1", "1 2\"", "+1 +1"):
        for rank in (0, 1, 2):
            subprocess.run([muster_path(), "kv", "--store", "tcp://" + endpoint_of(server), "set",
                            key[:-1] + str(rank), value], check=True, timeout=30)
        steps = [(m.get("step"), m.get("step_us")) for m in run_of(page)["members"]]
        checks.ok(all(step is None or step < 100000 for step, _ in steps),
                  "a step of %r is not believed" % value, steps)


def click(browser, text):
    """Presses and releases the mouse on a link, half a second apart."""
    for kind in ("mousePressed", "mouseReleased"):
        if kind == "mousePressed":
            x, y = wait_until(lambda: browser.evaluate(
                "(a => a && [a.getBoundingClientRect().x + 5, a.getBoundingClientRect().y + 5])"
                "([...document.links].find(a => a.textContent === %r))" % text), "a link")
        browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        time.sleep(0.5 if kind == "mousePressed" else 0)


def check_metrics(whose, text):
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True,
                          text=True, timeout=60)
    checks.equal((done.returncode, done.stdout + done.stderr), (0, ""),
                 "promtool has nothing to say of %s's metrics" % whose)


class State:
    """`muster state ...` with a page."""

    def __init__(self, scratch, name, *args):
        self.errors = os.path.join(scratch, name)
        with open(self.errors, "wb") as errors:
            self.process = subprocess.Popen([muster_path(), "state", *args], stdout=errors,
                                            stderr=errors, preexec_fn=die_with_parent)

    def output(self):
        with open(self.errors, errors="replace") as file:
            return file.read()

    def find(self, pattern):
        return wait_until(lambda: re.search(pattern, self.output()), pattern)[1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def test_downloads_are_seen_as_they_go():
    with Scratch() as scratch:
        size = 512 << 20  # far more than can come while we look
        path = os.path.join(scratch, "model.safetensors")
        head = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(head)) + head)
            file.truncate(8 + len(head) + size)
        with State(scratch, "donor", "serve", "--listen", HOST + ":0", "--rate", "8M", "--http",
                   HOST + ":0", path) as donor:
            page = donor.find(r"status at (http://\S+/)")
            address = donor.find(r"serving at (\S+)")
            checks.equal((state_of(page)["kind"], state_of(page)["state"]["prefix"],
                          state_of(page)["transfers"]), ("state", "model", []),
                         "a donor says what it shares")
            checks.equal(get(page + "readyz")[0], 200, "and is ready")
            with State(scratch, "puller", "pull", "--http", HOST + ":0", "--no-serve", "-o",
                       os.path.join(scratch, "copy"), address) as puller, \
                    Browser(1200, 800) as wide, Browser(390, 844, mobile=True) as narrow:
                own = puller.find(r"status at (http://\S+/)")
                for browser in (wide, narrow):
                    browser.open(page)
                given = wait_until(lambda: next((t for t in state_of(page)["transfers"]
                                                 if 4 << 20 < t["bytes"] < t["total"] and
                                                 t["age_ms"] > 500), None), "a download goes on")
                checks.ok(given["peer"].startswith(HOST) and given["what"] == "model" and
                          given["total"] == size and 1 << 20 < given["bytes_per_s"] < 64 << 20,
                          "the donor says to whom, how far, how fast", given)
                got = state_of(own)
                checks.ok(got["state"]["what"] == "loading" and got["state"]["donors"] == 1 and
                          0 < got["transfers"][0]["bytes"] < size and
                          got["transfers"][0]["total"] == size, "so does the one who pulls", got)
                text = get(page + "metrics")[2] + get(own + "metrics")[2]
                checks.ok("muster_state_downloads 1\n" in text and
                          "muster_state_total_bytes %d\n" % size in text and
                          re.search(r"muster_state_given_bytes_total [1-9]", text),
                          "for Prometheus, too", text)
                check_metrics("a donor", get(page + "metrics")[2])
                check_metrics("a newcomer", get(own + "metrics")[2])
                first = wait_until(lambda: wide.evaluate("(document.querySelector('.bar i') || "
                                                         "{style: {}}).style.width"), "a bar")
                later = wait_until(lambda: wide.evaluate(
                    "document.querySelector('.bar i').style.width") != first, "it grows")
                checks.ok(later, "the bar grows without a reload")
                checks.equal(narrow.evaluate(NARROW), True, "a phone shows it as well")
                shoot("downloads", wide=wide, narrow=narrow)
                top = subprocess.run([muster_path(), "top", "--once", page[len("http://"):]],
                                     capture_output=True, text=True, timeout=30)
                checks.ok(re.search(r"%s\S+ +model +\d+%%" % HOST, top.stdout),
                          "muster top shows it", top.stdout)
                puller.process.send_signal(signal.SIGINT)
                checks.equal(puller.process.wait(20), 130, "the page does not keep the command")
            wait_until(lambda: state_of(page)["transfers"] == [], "nobody loads any more")
            checks.equal(state_of(page)["state"]["downloads"], 1, "one download was counted")
            donor.process.send_signal(signal.SIGTERM)
            checks.equal(donor.process.wait(20), 0, "and the donor ends well")


def test_top_shows_an_agent():
    with Scratch() as scratch, Job(scratch) as job:
        page = job.page()[len("http://"):]
        with Terminal(muster_path(), "top", "--interval", "0.2", page) as terminal:
            seen = wait_until(lambda: sum("running" in line for line in terminal.screen()) >= 4 and
                              terminal.screen(), "the workers are on the screen")
            checks.ok(len(seen) <= 23 and all(len(line) <= 80 for line in seen),
                      "it fits 80 columns and 24 lines", seen)
            checks.ok(any(line.startswith("train-18  running, round 0, node 0 of 1") for line in seen),
                      "run, state, round and rank are there", seen)
            job.end(0, 5)
            seen = wait_until(lambda: any("rank 0 ended with 5" in line
                                          for line in terminal.screen()) and terminal.screen(),
                              "a failure is on the screen")
            checks.ok(True, "a failure is on the screen")


def test_top_shows_the_same_in_a_terminal():
    with Muster("--http", HOST + ":0") as server, \
            Fleet(endpoint_of(server), "train-17", "2:40", args=("--rejoin",)) as fleet:
        names = ["a-node-with-quite-a-long-name-%02d.example" % i for i in range(3)]
        for name in names:
            fleet.add(name)
        fleet.world()
        page = page_of(server)[len("http://"):]
        with Terminal(muster_path(), "top", "--interval", "0.2", page) as terminal:
            seen = wait_until(lambda: any("ame-02.example" in line for line in terminal.screen()) and
                              terminal.screen(), "the members are on the screen")
            checks.ok(len(seen) <= 23 and all(len(line) <= 80 for line in seen),
                      "it fits 80 columns and 24 lines", seen)
            checks.ok(any(line.startswith("train-17  running") for line in seen),
                      "the run and its state are there", seen)
            fleet.nodes[names[2]].process.kill()
            seen = wait_until(lambda: terminal.screen() and
                              any("is over: lost" in line for line in terminal.screen()) and
                              terminal.screen(), "the loss is on the screen")
            checks.ok(not any("ame-02.example" in line and "ago" in line for line in seen),
                      "who is lost is not listed", seen)
            terminal.process.send_signal(signal.SIGINT)
            checks.equal(terminal.process.wait(20), 0, "Ctrl-C ends it well")
            terminal.screen()
            checks.ok(terminal.read.endswith("\033[?25h\033[?1049l"),
                      "and gives the terminal back as it was", terminal.read[-40:])
    done = subprocess.run([muster_path(), "top", "--once", page], capture_output=True, text=True,
                          timeout=30)
    checks.ok(done.returncode == 4 and "muster serve --http" in done.stderr,
              "a server that is not there is named, with a remedy", done.stderr)


only = option("only", "")
for name, test in list(globals().items()):
    if name.startswith("test_") and only in name:
        print("-- " + name[5:].replace("_", " "), flush=True)
        test()
checks.done()
