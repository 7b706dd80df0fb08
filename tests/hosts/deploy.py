#!/usr/bin/python3
"""Runs the pods of deploy/kubernetes without Kubernetes: the command lines, users, volumes and
mounts of the manifests, each pod on a host of its own.

    deploy.py [MUSTER] [--only=TEXT] [--archive=FILE]

container.py does what a container's runtime does: a root that cannot be written, the user of the
manifest, no capabilities, a token as a Secret is mounted (root's, 0440, behind links), the memory
of the server's limit. What a cluster's controllers do is done here: names of pods, $(VARIABLES), a
new pod at a new address for one that has gone. The server's root has nothing but glibc and muster;
with --archive, a file of `make tarball`, it has the files that the Dockerfile takes from that. The
root of the trainers, which have an image of their own, has this system's Python.
"""
import atexit
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile

import yaml

from rig import HERE, Checks, Rig, muster_path, option, skip, wait_until

ROOT = os.path.dirname(os.path.dirname(HERE))
FOLDER = os.path.join(ROOT, "deploy", "kubernetes")
PYTHON = "/usr/bin/python3"
MUSTER = muster_path()
PATIENCE = 60
NAMESPACE = "default"
DOMAIN = ".%s.svc.cluster.local" % NAMESPACE
GPUS = 2  # device files in a pod; the manifests ask for more, which would be as many processes here
SECRET = "a-secret-that-nobody-guesses-4711-0815"
checks = Checks()

# Trains until it is told to end; then the worker of rank 1 takes longer than the others.
WORKER = """
import os, sys, tempfile, time
rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
print(f"worker {rank} of {world}: {sys.argv[1:]}", flush=True)
open(os.path.join(tempfile.gettempdir(), "scratch"), "w").close()
open("/dev/shm/scratch" + rank, "w").close()
while not os.path.exists("end"):
    time.sleep(0.05)
if rank == "1":
    time.sleep(1)
    open("last", "w").close()
"""


GET = """
import sys, urllib.error, urllib.request
headers = {"Authorization": "Bearer " + sys.argv[2]} if sys.argv[2] else {}
try:
    answer = urllib.request.urlopen(urllib.request.Request(sys.argv[1], headers=headers), timeout=5)
except urllib.error.HTTPError as error:
    answer = error
print(answer.code, answer.read().decode(), sep="\\n")
"""


def read_manifest(name):
    """{kind: document} of a file."""
    with open(os.path.join(FOLDER, name)) as file:
        return {one["kind"]: one for one in yaml.safe_load_all(file)}


def size_of(text):
    number, unit = re.fullmatch(r"(\d+)([MG]i)", text).groups()
    return int(number) << {"Mi": 20, "Gi": 30}[unit]


def expand(text, env):
    """$(NAME) as Kubernetes replaces it; what is not there stays."""
    return re.sub(r"\$\(([A-Za-z_]\w*)\)", lambda found: env.get(found[1], found[0]), text)


# --- images -----------------------------------------------------------------------------------


def read_dockerfile():
    with open(os.path.join(ROOT, "deploy", "Dockerfile"), encoding="utf-8") as file:
        return file.read()


def health_check():
    return json.loads(re.search(r"^HEALTHCHECK .*\\\n *CMD (\[.*\])$", read_dockerfile(), re.M)[1])


def environment_of_image():
    return dict(re.findall(r"^ENV (\w+)=(\S+)$", read_dockerfile(), re.M))


def files_of_archive(archive):
    """{path in the image: path here}: what the Dockerfile takes from the archive, unpacked."""
    taken = re.findall(r"install -D .*?-t /out(/usr/(?:bin|lib)) /archive/(\S+)", read_dockerfile())
    folder = tempfile.mkdtemp(prefix="muster-archive-")
    atexit.register(shutil.rmtree, folder)
    subprocess.run(["tar", "xzf", archive, "-C", folder, "--strip-components=1"], check=True)
    return {os.path.join(place, os.path.basename(name)): os.path.join(folder, name)
            for place, name in taken}


def linked_with(program):
    """The libraries that the loader gets for a program."""
    said = subprocess.run(["ldd", program], stdout=subprocess.PIPE, text=True, check=True).stdout
    return re.findall(r"=> (/\S+)", said)


@functools.lru_cache(maxsize=None)
def server_image():
    """glibc, and muster: the files of the archive. Without one, a muster that is linked with other
    libraries, which the archive would have inside, and those."""
    names = [line for line in subprocess.run(
        ["dpkg-query", "-L", "libc6"], stdout=subprocess.PIPE, text=True).stdout.split("\n")
        if re.search(r"/lib/.*\.so(\.[\d.]+)?$|/lib64/ld-linux", line) and os.path.exists(line)]
    archive = option("archive", "")
    if not archive:
        names += linked_with(MUSTER)
    image = {"/usr" + re.sub("^/usr", "", name): name for name in names}
    image.update(files_of_archive(archive) if archive else {"/usr/bin/muster": MUSTER})
    return {"image": image, "links": {"/lib": "usr/lib", "/lib64": "usr/lib64", "/bin": "usr/bin"}}


def trainer_image():
    image = {"/usr": "/usr", "/opt/muster/bin/muster": MUSTER}
    return {"image": image, "links": {"/lib": "usr/lib", "/lib64": "usr/lib64", "/bin": "usr/bin"}}


# --- pods -------------------------------------------------------------------------------------


class Cluster:
    """The hosts, what they call each other, and the pods on them."""

    def __init__(self, rig):
        self.rig = rig
        self.shared = os.path.join(rig.path, "workspace")
        os.makedirs(self.shared)
        os.chmod(self.shared, 0o777)
        with open(os.path.join(self.shared, "train.py"), "w") as file:
            file.write(WORKER)
        token = os.path.join(rig.path, "token")
        with open(token, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(SECRET + "\n")
        self.key = rig.hosts[0].must_run(MUSTER, "keygen", "page", token).strip()
        self.count = 0
        self.names = {}  # what the name server knows
        self.files = {}  # the /etc/hosts of each pod: what its kubelet wrote

    def publish(self, name, address):
        """What a headless Service does for a pod, or a Service for a server: all others know its
        name from now on."""
        self.names[name] = address
        for path in self.files:
            self.write_hosts(path)

    def hosts_file(self, path, name, address):
        self.files[path] = "127.0.0.1 localhost\n%s %s %s\n" % (address, name, name.split(".")[0])
        open(path, "w").close()
        self.write_hosts(path)
        return path

    def write_hosts(self, path):
        """A pod's own lines, and then, as the name server would answer, what that knows."""
        with open(path, "r+") as file:  # it is mounted, and must stay the same file
            file.write(self.files[path] + "".join(
                "%s %s %s\n" % (address, name, name[:-len(DOMAIN)])
                for name, address in self.names.items()))
            file.truncate()

    def volumes(self, pod, container):
        """What the container mounts, as container.py wants it."""
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        made = {"secrets": {}, "empty": {}, "shared": {"/workspace": self.shared}, "mode": 0}
        for mount in container["volumeMounts"]:
            volume = volumes.get(mount["name"], {"claim": True})
            if "secret" in volume:
                made["mode"] = volume["secret"]["defaultMode"]
                values = {"token": SECRET + "\n", "page": self.key + "\n"}
                made["secrets"][mount["mountPath"]] = {
                    item["path"]: values[item["key"]] for item in volume["secret"]["items"]}
            elif "emptyDir" in volume:
                made["empty"][mount["mountPath"]] = size_of(
                    volume["emptyDir"].get("sizeLimit", "64Mi"))
            else:
                made["shared"][mount["mountPath"]] = os.path.join(self.rig.path, "claim")
        return made

    def start(self, host, name, pod, image, address=None, env=None, argv=None, memory=None,
              words=None):
        """Starts the only container of a pod, and tells the others its name when it runs."""
        address, name = address or host.address, name + DOMAIN
        container, = pod["containers"]
        gpus = GPUS if "nvidia.com/gpu" in container["resources"]["limits"] else 0
        user, mine = pod["securityContext"], container["securityContext"]
        checks.ok(user["runAsNonRoot"] and user["runAsUser"] > 0 and
                  mine["capabilities"] == {"drop": ["ALL"]} and
                  not mine["allowPrivilegeEscalation"], "a pod is nobody in particular", pod)
        given = {"PATH": "/opt/muster/bin:/usr/bin:/bin", "PYTHON_EXEC": PYTHON}
        given.update({one["name"]: one["value"] for one in container.get("env", ())
                      if "value" in one})
        fields = {"status.podIP": address, "metadata.namespace": NAMESPACE}
        given.update({one["name"]: fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
                      for one in container.get("env", ())
                      if one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath") in fields})
        given.update(env or {})
        self.count += 1
        folder = os.path.join(self.rig.path, "pod%d" % self.count)
        os.makedirs(folder)
        with open("/etc/nsswitch.conf") as file:
            files = {"/etc/nsswitch.conf": file.read()}
        spec = dict(image, root=folder, files=files, env=given, cwd="/workspace",
                    hosts=self.hosts_file(folder + ".hosts", name, address), user=user["runAsUser"],
                    gid=user["runAsGroup"], group=user["fsGroup"], keep_privileges=False,
                    read_only=mine["readOnlyRootFilesystem"],
                    devices=["nvidia%d" % i for i in range(gpus)],
                    argv=[expand(word, given) for word in
                          argv or container["command"] + container["args"]],
                    **self.volumes(pod, container))
        with open(folder + ".json", "w") as file:
            json.dump(spec, file)
        process = host.start(PYTHON, os.path.join(HERE, "container.py"), folder + ".json",
                             pid1=True, memory=memory)
        process.says(words or ("meet at" if "run" in spec["argv"] else "serving on"), PATIENCE)
        self.publish(name, address)
        return process

    def probe(self, asker, container, kind, address):
        """The HTTP code that a kubelet gets, which has no password."""
        get = container[kind]["httpGet"]
        port = next(port["containerPort"] for port in container["ports"]
                    if port["name"] == get["port"])
        return self.get(asker, address, port, get["path"])[0]

    def get(self, asker, address, port, path, key=None):
        url = "http://%s:%d%s" % (address, port, path)
        _, out, _ = asker.run(PYTHON, "-c", GET, url, key or "")
        code, _, body = out.partition("\n")
        return int(code or 0), body


def wait_for_world(pods, size, what):
    """Until each of them has said that it is in a world of so many workers, newest line last."""
    def there():
        for pod in pods:
            seen = re.findall(r"worker \d+ of (\d+)", pod.output())
            if not seen or int(seen[-1]) != size:
                return not pod.alive() and "ended"
        return True

    try:
        got = wait_until(there, what, PATIENCE, 0.05)
    except AssertionError as error:
        got = error
    return checks.ok(got is True, what, "%s: %s" % (got, "".join(pod.output() for pod in pods)))


def end_well(cluster, pods, what):
    """Tells the workers to end; no pod may have ended before the last worker."""
    open(os.path.join(cluster.shared, "end"), "w").close()
    first = wait_until(lambda: next((pod for pod in pods if not pod.alive()), None), "a pod ends",
                       PATIENCE)
    checks.ok(os.path.exists(os.path.join(cluster.shared, "last")),
              what + ": a pod succeeds only when the run has", first.output())
    checks.equal([pod.wait(PATIENCE) for pod in pods], [0] * len(pods), what + ": all end well")


def test_job():
    """A drained pod, and one that hosts the rendezvous, are replaced at other addresses."""
    documents = read_manifest("job.yaml")
    job = documents["Job"]["spec"]
    pod = job["template"]["spec"]
    container = pod["containers"][0]
    name, domain = documents["Job"]["metadata"]["name"], documents["Service"]["metadata"]["name"]
    checks.equal(pod["subdomain"], domain, "job: the Service gives the pods their names")
    with Rig(4) as rig:
        cluster = Cluster(rig)

        def start(index, host, address=None):
            return cluster.start(host, "%s-%d.%s" % (name, index, domain), pod, trainer_image(),
                                 address)

        first, second, third, kubelet = rig.hosts
        pods = [start(i, host) for i, host in enumerate((first, second, third))]
        wait_for_world(pods, 3 * GPUS, "job: three nodes with %d GPUs each" % GPUS)
        for kind in ("livenessProbe", "readinessProbe"):
            checks.equal(cluster.probe(kubelet, container, kind, second.address), 200,
                         "job: the kubelet's %s" % kind)
        code, metrics = cluster.get(kubelet, second.address, 29501, "/metrics", cluster.key)
        checks.ok(code == 200 and "muster_agent_workers" in metrics, "job: Prometheus scrapes it",
                  (code, metrics))
        checks.equal(cluster.get(kubelet, second.address, 29501, "/metrics")[0], 401,
                     "job: but nobody without the password")
        drain(pods, 1, "job")
        wait_for_world([pods[0], pods[2]], 2 * GPUS, "job: the others go on without it")
        pods[1] = start(1, second, second.more_addresses(1)[0])
        wait_for_world(pods, 3 * GPUS, "job: a new pod of the same index is let in")
        drain(pods, 0, "job: the host")
        pods[0] = start(0, kubelet)
        wait_for_world(pods, 3 * GPUS, "job: all begin again where the new one hosts")
        end_well(cluster, pods, "job")


def drain(pods, index, what):
    """As a kubelet does: SIGTERM to the first process of the container."""
    pods[index].signal(signal.SIGTERM)
    checks.equal(pods[index].wait(PATIENCE), 1, what + ": a drained pod ends before it is killed")


def run_two(what, pod, names, env=None, argv=None):
    with Rig(2) as rig:
        cluster = Cluster(rig)
        pods = [cluster.start(host, names[i], pod, trainer_image(), argv=argv,
                              env=dict(env, PET_NODE_RANK=str(i)) if env else None)
                for i, host in enumerate(rig.hosts)]
        wait_for_world(pods, 2 * GPUS, what + ": two nodes")
        end_well(cluster, pods, what)
        return pods[0].output()


def test_jobset():
    jobset = read_manifest("jobset.yaml")["JobSet"]
    one, = jobset["spec"]["replicatedJobs"]
    name = jobset["metadata"]["name"]
    run_two("jobset", one["template"]["spec"]["template"]["spec"],
            ["%s-%s-0-%d.%s" % (name, one["name"], i, name) for i in range(2)])


def test_trainjob():
    """What Trainer makes of a TrainJob: it sets PET_ variables, and replaces arguments."""
    job = read_manifest("trainjob.yaml")["TrainJob"]
    runtime = read_manifest("trainer-runtime.yaml")["ClusterTrainingRuntime"]
    checks.equal(job["spec"]["runtimeRef"]["name"], runtime["metadata"]["name"],
                 "trainjob: names the runtime")
    one, = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    pod = one["template"]["spec"]["template"]["spec"]
    container, = pod["containers"]
    checks.equal((one["name"], container["name"]), ("node", "node"),
                 "trainjob: Trainer finds its container by this name")
    trainer, name = job["spec"]["trainer"], job["metadata"]["name"]
    names = ["%s-node-0-%d.%s" % (name, i, name) for i in range(2)]
    env = {"PET_NNODES": str(trainer["numNodes"]), "PET_NPROC_PER_NODE": "auto",
           "PET_MASTER_ADDR": names[0], "PET_MASTER_PORT": "29500", "TRAINJOB": name}
    env.update({one["name"]: one["value"] for one in trainer["env"]})
    pod["containers"][0]["resources"] = trainer["resourcesPerNode"]
    said = run_two("trainjob", pod, names, env, container["command"] + trainer["args"])
    checks.ok(str(trainer["args"][1:]) in said, "trainjob: its arguments reach the program", said)


def test_server():
    """The server in its own image, with the memory of its limit and a volume that outlives it."""
    documents = read_manifest("server.yaml")
    service = documents["Service"]["metadata"]["name"]
    pod = documents["StatefulSet"]["spec"]["template"]["spec"]
    container, = pod["containers"]
    job = read_manifest("job.yaml")["Job"]["spec"]["template"]["spec"]
    endpoint = "%s:%d" % (service, documents["Service"]["spec"]["ports"][0]["port"])
    argv = [re.sub(r"^train-0\.train\..*:29400$", endpoint, word)
            for word in job["containers"][0]["command"] + job["containers"][0]["args"]]
    checks.ok(endpoint in argv, "server: the job's endpoint can be exchanged", argv)
    with Rig(3) as rig:
        cluster = Cluster(rig)
        home, *hosts = rig.hosts
        claim = os.path.join(rig.path, "claim")
        os.makedirs(claim)
        os.chown(claim, 0, pod["securityContext"]["fsGroup"])
        os.chmod(claim, 0o2770)
        memory = size_of(container["resources"]["limits"]["memory"])
        server = cluster.start(home, service, pod, server_image(), memory=memory)
        server.says("serving on", PATIENCE)
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            checks.equal(cluster.probe(hosts[0], container, kind, home.address), 200,
                         "server: the kubelet's %s" % kind)
        health = cluster.start(home, service, pod, server_image(), words="no runs yet",
                               argv=health_check(), env=environment_of_image())
        checks.equal(health.wait(PATIENCE), 0, "server: Docker's health check")
        pods = [cluster.start(host, "train-%d.train" % i, job, trainer_image(), argv=argv)
                for i, host in enumerate(hosts)]
        wait_for_world(pods, 2 * GPUS, "server: two nodes meet there")
        server.signal(signal.SIGTERM)
        checks.equal(server.wait(PATIENCE), 0, "server: it ends when told")
        server = cluster.start(home, service, pod, server_image(), memory=memory)
        server.says("serving on", PATIENCE)
        running = 'muster_rdzv_members{run="train",state="running"} 2'
        wait_until(lambda: running in cluster.get(home, home.address, 29501, "/metrics",
                                                  cluster.key)[1], "the run goes on", PATIENCE, 0.1)
        checks.ok(True, "server: the run goes on after its restart")
        end_well(cluster, pods, "server")
        checks.equal(server.stop(), 0, "server: it ends when told")


if __name__ == "__main__":
    if os.geteuid() != 0:
        skip("only root can become another user, as a container does")
    checks.run_tests(globals())
    checks.done()
