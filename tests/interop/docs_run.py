#!/usr/bin/python3
"""Runs what the pages tell their readers to run: marked blocks of README.md, recipes and tours.

usage: docs_run.py MUSTER

A block behind <!-- test: run --> is run as it stands, in order with the others of its page; a
command that serves goes on beside them, and what a comment "# prints X" says must be printed. The
recipes have marks of their own, and a function here each. Ports and names of hosts are replaced.
Where this may have a network namespace, the two machines of a recipe are two namespaces with a
cable between them, so that the lock is on; else they are both on loopback.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import etcd_lib
import lib

ROOT = os.path.dirname(os.path.dirname(lib.HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "tree"))
import pages  # noqa: E402

PYTHON = "/usr/bin/python3"
PATIENCE = 90  # seconds; PyTorch takes its time to be imported
INSIDE = "MUSTER_DOCS_NAMESPACE"
NODE0, NODE1 = "10.99.0.1", "10.99.0.2"

# A worker that needs no PyTorch.
WORKER = """
import os, time
print(f"worker {os.environ['RANK']} of {os.environ['WORLD_SIZE']}", flush=True)
time.sleep(0.3)
"""

# One that saves when the members change; the recipe's own function is put before it.
SAVER = """
import os, sys, time
rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
print(f"worker {rank} of {world}", flush=True)
when_members_change(lambda: print(f"worker {rank} saves", flush=True))
for _ in range(600):
    if world == "1":
        sys.exit(0)
    time.sleep(0.1)
"""

SRUN = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift; done
for task in $(seq "$SLURM_JOB_NUM_NODES"); do "$@" & done
status=0
for task in $(seq "$SLURM_JOB_NUM_NODES"); do wait || status=1; done
exit $status
"""


def enter_namespace():
    """Begins again in a namespace of its own, if that can be had."""
    if os.environ.get(INSIDE):
        return os.environ[INSIDE] == "yes"
    way = ["unshare", "--net"] if os.getuid() == 0 else ["unshare", "--map-root-user", "--net"]
    probe = way + ["sh", "-c", "ip link set lo up && ip link add veth0 type veth peer name veth1"]
    can = shutil.which("ip") and subprocess.run(probe, stderr=subprocess.DEVNULL).returncode == 0
    os.environ[INSIDE] = "yes" if can else "no"
    if can:
        os.execvp(way[0], way + [PYTHON] + sys.argv)
    return False


class Rig:
    """A directory for each machine, and the processes that run on them."""

    def __init__(self, muster, work, apart):
        self.work = work
        self.apart = apart  # two namespaces
        self.build = os.path.dirname(os.path.realpath(muster))
        self.running = []
        self.ports = {}
        self.bin = os.path.join(work, "bin")
        os.mkdir(self.bin)
        os.symlink(muster, os.path.join(self.bin, "muster"))
        self.env = dict(os.environ, PATH=self.bin + ":" + os.environ["PATH"], PYTHON_EXEC=PYTHON)
        self.env.pop("MUSTER_TOKEN_FILE", None)
        self.hosts = {"node0": NODE0, "node1": NODE1} if apart else \
            {"node0": "127.0.0.1", "node1": "127.0.0.1"}
        self.inside = {"node0": [], "node1": []}
        for name in self.hosts:
            os.mkdir(os.path.join(work, name))
        if apart:
            self.lay_cable()
        self.kept = len(self.running)  # that are there for as long as the rig is

    def lay_cable(self):
        other = subprocess.Popen(["unshare", "--net", "sleep", "1000"],
                                 preexec_fn=lib.die_with_parent)
        self.running.append(other)
        enter = ["nsenter", "--target", str(other.pid), "--net"]
        lib.wait_until(lambda: os.readlink(f"/proc/{other.pid}/ns/net") !=
                       os.readlink("/proc/self/ns/net"), "a second namespace")
        for command in (
                ["ip", "link", "set", "lo", "up"],
                ["ip", "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns",
                 str(other.pid)],
                ["ip", "addr", "add", NODE0 + "/24", "dev", "cable"],
                ["ip", "link", "set", "cable", "up"],
                enter + ["ip", "link", "set", "lo", "up"],
                enter + ["ip", "addr", "add", NODE1 + "/24", "dev", "cable"],
                enter + ["ip", "link", "set", "cable", "up"]):
            subprocess.run(command, check=True)
        self.inside["node1"] = enter
        self.env["GLOO_SOCKET_IFNAME"] = "cable"

    def adapt(self, text):
        """Its hosts and ports in the place of the page's."""
        for name in ("node0", "node1"):
            text = re.sub(rf"\b{name}\b(?=:\d)", self.hosts[name], text)
        for port in ("29400", "29500", "29501", "29701", "4001"):
            if port not in self.ports:
                self.ports[port] = str(lib.free_port())
            text = re.sub(rf"\b{port}\b", self.ports[port], text)
        return text

    def start(self, text, node="node0", shell="sh", **env):
        """Runs a script on a machine, beside this; its output goes to a file."""
        folder = os.path.join(self.work, node)
        output = tempfile.NamedTemporaryFile(dir=self.work, delete=False)
        process = subprocess.Popen(
            self.inside[node] + [shell, "-c", self.adapt(text)],
            cwd=folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            preexec_fn=lib.die_with_parent, env=dict(self.env, LOCAL_ADDR=self.hosts[node], **env))
        process.output = output.name
        self.running.append(process)
        return process

    def said(self, process):
        with open(process.output, encoding="utf-8", errors="replace") as file:
            return file.read()

    def finish(self, process):
        """(its exit code, what it said)"""
        try:
            code = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            code = "none"
        return code, self.said(process)

    def wait_for(self, process, words):
        """Until it has said something, a regular expression."""
        deadline = time.monotonic() + PATIENCE
        while not re.search(words, self.said(process)):
            if process.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def write(self, node, name, text):
        with open(os.path.join(self.work, node, name), "w", encoding="utf-8") as file:
            file.write(text)

    def stop(self, process):
        if process.poll() is None:
            try:
                os.killpg(process.pid, signal.SIGTERM)
            except (ProcessLookupError, PermissionError):
                process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.running.remove(process)

    def stop_all(self, which=None):
        for process in list(reversed(self.running if which is None else which)):
            self.stop(process)


def marked(page, mark):
    """The text of the block with that mark."""
    return next(block.text() for block in page.blocks if block.mark == mark)


# --- README.md ------------------------------------------------------------------------------------

def run_c(rig, source):
    """Compiles and runs it with the library as it was built."""
    rig.write("node0", "hello.c", rig.adapt(source))
    return rig.finish(rig.start(
        f"gcc -std=gnu17 -Wall -Werror -I {ROOT}/include hello.c -L {rig.build} -lmuster "
        f"-Wl,-rpath,{rig.build} -o hello && ./hello"))


def run_readme(page, rig, checks):
    os.symlink(os.path.join(ROOT, "examples"), os.path.join(rig.work, "node0", "examples"))
    exports = ""
    for block in page.blocks:
        if block.mark != "run":
            continue
        if block.language == "python":
            code, said = rig.finish(rig.start(block.text(), shell=PYTHON))
            checks.equal((code, said), (0, ""), f"README.md:{block.number}: python")
            continue
        if block.language == "c":
            code, said = run_c(rig, block.text())
            checks.equal((code, said), (0, "hello\n"), f"README.md:{block.number}: C")
            continue
        for number, line in block.commands():
            if line.startswith("export "):
                exports += line + "\n"
                continue
            if re.match(r"muster serve\b", line):
                server = rig.start(line)
                checks.ok(rig.wait_for(server, "serving on"), f"README.md:{number}: {line}",
                          rig.said(server))
                continue
            code, said = rig.finish(rig.start(exports + line))
            checks.ok(code == 0, f"README.md:{number}: {line}", f"ended with {code}: {said}")
            wanted = re.search(r"# prints (.*)$", line)
            if wanted:
                checks.equal(said.strip(), wanted[1], f"README.md:{number}: prints")
    code, said = rig.finish(rig.start(exports + "muster kv get from_torch"))
    checks.equal(said.strip(), "hello", "README.md: what PyTorch has set")
    rig.stop_all(rig.running[rig.kept:])


# --- the recipes ----------------------------------------------------------------------------------

def run_two(page, rig, checks):
    code, said = rig.finish(rig.start(marked(page, "two node0")))
    checks.ok(code == 0, "recipes: two: the token", said)
    shutil.copy2(os.path.join(rig.work, "node0", "job.token"), os.path.join(rig.work, "node1"))
    for node in rig.hosts:
        shutil.copy(os.path.join(ROOT, "examples", "ddp.py"),
                    os.path.join(rig.work, node, "train.py"))
    command = marked(page, "two both")
    if rig.apart:
        command = command.replace("muster run ", "muster run --local-addr $LOCAL_ADDR ")
    run_both(rig, checks, "two", command, "4 workers")
    # The same with a server that is on neither.
    for node in rig.hosts:
        rig.write(node, "train.py", WORKER)
    server = rig.start(marked(page, "two server"))
    checks.ok(rig.wait_for(server, "serving on"), "recipes: two: the server", rig.said(server))
    run_both(rig, checks, "two, with a server", command.replace("job7", "job8"), "of 4")
    rig.stop(server)


def run_both(rig, checks, what, command, words):
    nodes = [rig.start(command, node) for node in rig.hosts]
    ends = [rig.finish(node) for node in nodes]
    checks.equal([code for code, _ in ends], [0, 0], f"recipes: {what}: both end well")
    checks.ok(any(words in said for _, said in ends), f"recipes: {what}: {words}", ends)
    for node in rig.hosts:
        path = os.path.join(rig.work, node, "verdict.json")
        if checks.ok(os.path.exists(path), f"recipes: {what}: the verdict of {node}", ends):
            with open(path, encoding="utf-8") as file:
                json.load(file)
            os.remove(path)


def run_slurm(page, rig, checks):
    for name, text in (("scontrol", f"#!/bin/sh\necho {rig.hosts['node0']}\n"), ("srun", SRUN)):
        path = os.path.join(rig.bin, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)
    rig.write("node0", "train.py", WORKER)
    rig.write("node0", "job.sbatch", marked(page, "slurm"))
    # The machine's own name need not be one that can be looked up here.
    job = rig.start("sh job.sbatch", SLURM_JOB_ID=str(lib.free_port()), SLURM_JOB_NUM_NODES="2",
                    SLURM_JOB_NODELIST="node[0-1]", PET_LOCAL_ADDR=rig.hosts["node0"],
                    SLURM_SUBMIT_DIR=os.path.join(rig.work, "node0"))
    code, said = rig.finish(job)
    checks.ok(code == 0, "recipes: Slurm: the job ends well", f"{code}: {said}")
    checks.ok("worker 0 of 2" in said and "worker 1 of 2" in said, "recipes: Slurm: both workers",
              said)
    left = [name for name in os.listdir(os.path.join(rig.work, "node0")) if "token-" in name]
    checks.equal(left, [], "recipes: Slurm: the token is gone with the job")


def run_kubernetes(page, rig, checks):
    import yaml
    documents = {one["kind"]: one for one in yaml.safe_load_all(marked(page, "kubernetes"))}
    checks.equal(sorted(documents), ["Deployment", "Job", "Service"], "recipes: Kubernetes: kinds")
    labels = documents["Deployment"]["spec"]["template"]["metadata"]["labels"]
    checks.equal(documents["Service"]["spec"]["selector"], labels,
                 "recipes: Kubernetes: the service finds the server")
    commands = {}
    for kind in ("Deployment", "Job"):
        spec = documents[kind]["spec"]["template"]["spec"]
        container = spec["containers"][0]
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for mount in container["volumeMounts"]:
            checks.equal(volumes[mount["name"]]["secret"]["defaultMode"], 0o400,
                         f"recipes: Kubernetes: {kind}: the token's mode")
        commands[kind] = container["command"] + container["args"]
    grace = int(commands["Job"][commands["Job"].index("--grace") + 1])
    until_killed = documents["Job"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    checks.ok(until_killed > grace, "recipes: Kubernetes: grace")
    probe = documents["Deployment"]["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]

    # The same without a cluster.
    places = {"/etc/muster/token": os.path.join(rig.work, "node0", "job.token"), "gpu": "1",
              "train-rdzv:29400": "node0:29400", "$(POD_IP)": "$LOCAL_ADDR", "2:4": "2:2"}
    commands["probe"] = probe["exec"]["command"]
    lines = {kind: " ".join(places.get(word, word) for word in words)
             for kind, words in commands.items()}
    rig.write("node0", "train.py", WORKER)
    server = rig.start(lines["Deployment"])
    checks.ok(rig.wait_for(server, "serving on"), "recipes: Kubernetes: the server",
              rig.said(server))
    code, said = rig.finish(rig.start(lines["probe"]))
    checks.ok(code == 0, "recipes: Kubernetes: it is ready", said)
    pods = [rig.start(lines["Job"]) for _ in range(2)]
    ends = [rig.finish(pod) for pod in pods]
    checks.equal([code for code, _ in ends], [0, 0], "recipes: Kubernetes: the pods end well")
    rig.stop(server)


def run_taken(page, rig, checks):
    for node in rig.hosts:
        rig.write(node, "train.py", marked(page, "notify") + SAVER)
    command = marked(page, "taken").replace("muster run ",
                                            "exec muster run --local-addr $LOCAL_ADDR ")
    stays = rig.start(command, "node0")
    goes = rig.start(command, "node1")
    # Its rank follows from its name, so either may be the first.
    together = all(rig.wait_for(node, r"worker \d of 2") for node in (goes, stays))
    checks.ok(together, "recipes: taken: two nodes", rig.said(stays) + rig.said(goes))
    goes.send_signal(signal.SIGUSR1)
    code, said = rig.finish(goes)
    checks.equal(code, 1, "recipes: taken: the one that goes says so")
    code, said = rig.finish(stays)
    checks.ok("saves" in said, "recipes: taken: the other saves", said)
    checks.ok(code == 0 and "worker 0 of 1" in said, "recipes: taken: and goes on alone", said)


def write_model(rig):
    head = json.dumps({"weight": {"dtype": "F32", "shape": [256], "data_offsets": [0, 1024]}})
    model = len(head).to_bytes(8, "little") + head.encode() + bytes(range(256)) * 4
    with open(os.path.join(rig.work, "node0", "model.safetensors"), "wb") as file:
        file.write(model)
    return model


def run_swarm(page, rig, checks):
    def here(mark):
        return re.sub(r"/ip4/(0\.0\.0\.0|203\.0\.113\.7)", "/ip4/127.0.0.1", marked(page, mark))

    model = write_model(rig)
    boot = rig.start(here("swarm boot"))
    checks.ok(rig.wait_for(boot, "joined"), "recipes: swarm: the first peer", rig.said(boot))
    found = re.search(r"/ip4/127\.0\.0\.1/tcp/\d+/p2p/\w+", rig.said(boot))
    donor = rig.start(here("swarm serve"), BOOT=found[0])
    checks.ok(rig.wait_for(donor, "found in the DHT"), "recipes: swarm: a donor", rig.said(donor))
    os.mkdir(os.path.join(rig.work, "newcomer"))
    code, said = rig.finish(rig.start("cd ../newcomer\n" + here("swarm pull"), BOOT=found[0]))
    checks.ok(code == 0 and "12.0" in said, "recipes: swarm: a newcomer has it", said)
    with open(os.path.join(rig.work, "newcomer", "model.safetensors"), "rb") as file:
        checks.equal(file.read(), model, "recipes: swarm: byte for byte")
    rig.stop(donor)
    rig.stop(boot)


# --- the tours ------------------------------------------------------------------------------------

def lines_of(page, mark):
    """The commands of a block that are muster's."""
    block = next(block for block in page.blocks if block.mark == mark)
    return [line for _, line in block.commands() if line.startswith("muster ")]


def run_from_torchrun(page, rig, checks):
    rig.write("node0", "train.py", WORKER)
    code, said = rig.finish(rig.start(lines_of(page, "standalone")[0]))
    checks.ok(code == 0 and "worker 3 of 4" in said, "from-torchrun: standalone", said)


def run_from_hivemind(page, rig, checks):
    def here(lines):
        return "\n".join(lines).replace("/ip4/0.0.0.0", "/ip4/127.0.0.1")

    write_model(rig)
    os.remove(os.path.join(rig.work, "node0", "boot.key"))
    boot = rig.start(here(lines_of(page, "hivemind dht")))
    checks.ok(rig.wait_for(boot, "joined"), "from-hivemind: the first peer", rig.said(boot))
    address = re.search(r"/ip4/\S+/p2p/\w+", rig.said(boot))[0]
    relay = here(lines_of(page, "hivemind relay")).replace("4002", "0")
    relay = rig.start("muster peer id --new --identity relay.key\n" + relay)
    checks.ok(rig.wait_for(relay, "/p2p/"), "from-hivemind: the relay", rig.said(relay))
    serve, pull = lines_of(page, "hivemind state")
    donor = rig.start(serve.replace(" serve ", " serve --listen /ip4/127.0.0.1/tcp/0 "),
                      BOOT=address)
    checks.ok(rig.wait_for(donor, "found in the DHT"), "from-hivemind: a donor", rig.said(donor))
    code, said = rig.finish(rig.start(pull.replace("-o model", "-o pulled"), BOOT=address))
    checks.ok(code == 0, "from-hivemind: a newcomer has it", said)
    for process in (donor, relay, boot):
        rig.stop(process)


def run_from_etcd(page, rig, checks):
    rig.write("node0", "train.py", WORKER)
    with etcd_lib.Etcd(1) as etcd:
        def run(what, lines, words=""):
            text = "\n".join(lines).replace("e0,e1,e2", "e0").replace("e0:2379", "e0")
            text = re.sub(r"\be0\b", etcd.authority(), text).replace("1:4", "1")
            # Nobody else is to be reached: the store of a round may be on loopback.
            code, said = rig.finish(rig.start(text, PET_LOCAL_ADDR="127.0.0.1"))
            checks.ok(code == 0 and words in said, f"from-etcd: {what}", f"{code}: {said}")

        run("PyTorch's own rendezvous", lines_of(page, "etcd old"), "worker 0 of 1")
        run("etcd-v3", lines_of(page, "etcd v3"), "worker 0 of 1")
        run("a store in etcd", [line.replace("job7", "job8")
                                for line in lines_of(page, "etcd backing")], "worker 0 of 1")
        run("a store from the shell", lines_of(page, "etcd kv")[:2])
        code, said = rig.finish(rig.start(lines_of(page, "etcd doctor")[0]
                                          .replace("e0,e1,e2", etcd.authority())))
        checks.ok("healthy" in said, "from-etcd: the doctor", said)


def main():
    muster = lib.muster_path()
    apart = enter_namespace()
    checks = lib.Checks()
    all_pages = {page.path: page for page in pages.read_pages(ROOT)}
    recipes = all_pages["docs/recipes.md"]
    with tempfile.TemporaryDirectory(prefix="muster-docs-") as work:
        rig = Rig(muster, work, apart)
        try:
            run_readme(all_pages["README.md"], rig, checks)
            for run in (run_two, run_slurm, run_kubernetes, run_taken, run_swarm):
                run(recipes, rig, checks)
            for name, run in (("torchrun", run_from_torchrun), ("hivemind", run_from_hivemind),
                              ("etcd", run_from_etcd)):
                run(all_pages[f"docs/from-{name}.md"], rig, checks)
        finally:
            rig.stop_all()
    print("two machines: " + ("namespaces with a cable between them" if apart else "both loopback"))
    checks.done()


main()
