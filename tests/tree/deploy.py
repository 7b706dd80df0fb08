#!/usr/bin/python3
"""Whether what deploy/ says of muster is so, and its parts agree with each other.

usage: deploy.py MUSTER TREE [--self-test]

Every command line of muster in a manifest, in the chart, in the Dockerfile and in their comments
is one that the command takes. Ports, names, labels, Secrets and users are the same wherever they
stand; probes ask for paths that a status page has; nothing runs as root. tools/check-deploy does
what needs the schemas of Kubernetes, tests/hosts/deploy.py runs the pods.

With --self-test each fault is planted in a copy, and must be seen.
"""
import functools
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Any, Dict, Iterator, List, Tuple

import docs
import pages
import yaml

Document = Dict[str, Any]
KUBERNETES = os.path.join("deploy", "kubernetes")
CHART = os.path.join("deploy", "helm", "muster")
DOCKERFILE = os.path.join("deploy", "Dockerfile")
TRAINERS = ("job.yaml", "jobset.yaml", "trainer-runtime.yaml")


def read(root: str, *path: str) -> str:
    with open(os.path.join(root, *path), encoding="utf-8") as file:
        return file.read()


@functools.lru_cache(maxsize=None)
def parse(text: str) -> List[Document]:
    """What nobody changes; the test of the test parses most files many times."""
    return list(yaml.safe_load_all(text))


def read_manifests(root: str) -> Dict[str, Dict[str, Document]]:
    """{name of the file: {kind: document}}"""
    return {os.path.basename(path): {one["kind"]: one for one in parse(read(path))}
            for path in sorted(glob.glob(os.path.join(root, KUBERNETES, "*.yaml")))}


def find(value: Any, key: str) -> Iterator[Any]:
    """Every value of that key, however deep."""
    if isinstance(value, dict):
        for name, part in value.items():
            if name == key:
                yield part
            yield from find(part, key)
    elif isinstance(value, list):
        for part in value:
            yield from find(part, key)


def pods(documents: Dict[str, Document]) -> Iterator[Tuple[Document, Document]]:
    """(template, container) of each pod."""
    for template in find(documents, "template"):
        if "containers" in template.get("spec", {}):
            for container in template["spec"]["containers"]:
                yield template, container


def words_of(container: Document) -> List[str]:
    return [str(word) for word in container["command"] + container.get("args", [])]


def value_of(words: List[str], option: str) -> str:
    return words[words.index(option) + 1] if option in words else ""


# --- command lines ----------------------------------------------------------------------------


def remarks(text: str) -> Iterator[str]:
    """The commands in comments, indented there."""
    return (found[1] for found in re.finditer(r"^#  +(\S.*)$", text, re.M))


def lists_of_dockerfile(text: str) -> Dict[str, List[str]]:
    """{instruction: its words}, of those that are lists."""
    text = re.sub(r"\\\n", " ", text)
    return {name: json.loads(words) for name, words in
            re.findall(r"^(ENTRYPOINT|CMD|HEALTHCHECK)\b.*?(\[.*\])$", text, re.M)}


def command_lines(root: str, manifests: Dict[str, Dict[str, Document]]
                  ) -> Iterator[Tuple[str, List[str]]]:
    """(where it stands, words after `muster`) of each."""
    for name, documents in manifests.items():
        for _, container in pods(documents):
            yield name, words_of(container)[1:]
    dockerfile = lists_of_dockerfile(read(root, DOCKERFILE))
    yield "Dockerfile", dockerfile["ENTRYPOINT"][1:] + dockerfile["CMD"]
    yield "Dockerfile", dockerfile["HEALTHCHECK"][1:]
    texts = {name: read(root, KUBERNETES, name) for name in manifests}
    texts["NOTES.txt"] = re.sub(r"^    ", "#     ", re.sub(r"\{\{.*?\}\}", "x", read(
        root, CHART, "templates", "NOTES.txt")), flags=re.M)
    for name, text in texts.items():
        for line in [part for line in remarks(text)
                     for part in [line] + re.findall(r"\$\((.*?)\)", line)]:
            for words in pages.muster_words(pages.split_command(line) or []):
                yield name, docs.cut_remark(words)


def check_commands(root: str, manifests: Dict[str, Dict[str, Document]],
                   commands: docs.Commands) -> Iterator[str]:
    count = 0
    for name, words in command_lines(root, manifests):
        count += 1
        for fault in commands.check(words):
            yield f"{name}: {fault}"
    if count < 10:
        yield f"only {count} command lines were found"


# --- pods -------------------------------------------------------------------------------------


def check_pod(name: str, template: Document, container: Document, paths: List[str]
              ) -> Iterator[str]:
    words, spec = words_of(container), template["spec"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    http = value_of(words, "--http").rpartition(":")[2]
    listen = (value_of(words, "--listen") or value_of(words, "--rdzv-endpoint")).rpartition(":")[2]
    if str(ports.get("metrics")) != http:
        yield f"{name}: --http has the port {http}, the port `metrics` is {ports.get('metrics')}"
    if str(ports.get("rdzv")) != listen:
        yield f"{name}: the command has the port {listen}, the port `rdzv` is {ports.get('rdzv')}"
    for kind in ("readinessProbe", "livenessProbe"):
        get = container.get(kind, {}).get("httpGet", {})
        if get.get("path") not in paths or ports.get(get.get("port")) != ports["metrics"]:
            yield f"{name}: the {kind} asks for {get}, which no status page has"
    annotations = template["metadata"].get("annotations", {})
    if annotations.get("prometheus.io/port", http) != http:
        yield f"{name}: prometheus.io/port is not {http}"
    grace = float(value_of(words, "--grace") or 5)
    if spec["terminationGracePeriodSeconds"] <= grace:
        yield f"{name}: terminationGracePeriodSeconds must be longer than the {grace:g} s of muster"
    token = value_of(words, "--token-file")
    mounted = {volume["name"]: volume["secret"] for volume in spec["volumes"] if "secret" in volume}
    found = [mounted[mount["name"]] for mount in container["volumeMounts"]
             if mount["name"] in mounted and os.path.dirname(token) == mount["mountPath"]]
    if not found or os.path.basename(token) not in [item["path"] for item in found[0]["items"]]:
        yield f"{name}: no Secret is mounted at {token}"
    elif found[0]["defaultMode"] != 0o440:
        yield f"{name}: muster refuses a token with the mode {found[0]['defaultMode']:o}"


def check_user(name: str, template: Document, container: Document, user: int) -> Iterator[str]:
    of_pod = template["spec"].get("securityContext", {})
    mine = container.get("securityContext", {})
    if not of_pod.get("runAsNonRoot") or of_pod.get("runAsUser") != user:
        yield f"{name}: does not run as {user}, the user of the image"
    if "fsGroup" not in of_pod:
        yield f"{name}: has no fsGroup, so the user cannot read the token"
    if mine.get("capabilities") != {"drop": ["ALL"]} or mine.get("allowPrivilegeEscalation") or \
            not mine.get("readOnlyRootFilesystem"):
        yield f"{name}: has rights that it does not need"
    if of_pod.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield f"{name}: has no seccomp profile"


def check_pods(root: str, manifests: Dict[str, Dict[str, Document]]) -> Iterator[str]:
    paths = re.findall(r'is\(head, "(/\w*)"\)', read(root, "src", "service", "page",
                                                     "status_page.c"))
    image_user = re.search(r"^USER (\d+):(\d+)$", read(root, DOCKERFILE), re.M)
    user = int(image_user[1]) if image_user else 0
    if not user:
        yield "Dockerfile: the last USER is not a number other than 0"
    for name in TRAINERS + ("server.yaml",):
        count = 0
        for template, container in pods(manifests[name]):
            count += 1
            yield from check_pod(name, template, container, paths)
            yield from check_user(name, template, container, user)
        if count != 1:
            yield f"{name}: has {count} containers"


# --- how the parts agree ----------------------------------------------------------------------


def check_jobs(manifests: Dict[str, Dict[str, Document]]) -> Iterator[str]:
    """The first pod's name is the endpoint; what the Job makes is what the run wants."""
    service, job = manifests["job.yaml"]["Service"], manifests["job.yaml"]["Job"]
    pod, = [container for _, container in pods(manifests["job.yaml"])]
    words, name, spec = words_of(pod), job["metadata"]["name"], job["spec"]
    domain = spec["template"]["spec"].get("subdomain")
    tail = ".$(POD_NAMESPACE).svc.cluster.local:29400"
    if value_of(words, "--rdzv-endpoint") != f"{name}-0.{domain}{tail}":
        yield "job.yaml: the endpoint is not the pod with index 0"
    if service["metadata"]["name"] != domain or service["spec"]["clusterIP"] != "None" or \
            not service["spec"]["publishNotReadyAddresses"]:
        yield "job.yaml: the Service does not name the pods"
    labels = spec["template"]["metadata"]["labels"]
    if not service["spec"]["selector"].items() <= labels.items():
        yield "job.yaml: the Service does not find the pods"
    numbers = {spec["completions"], spec["parallelism"], spec["backoffLimit"] + 1}
    if {str(number) for number in numbers} != {value_of(words, "--nnodes").rpartition(":")[2]}:
        yield "job.yaml: completions, parallelism, backoffLimit and --nnodes do not agree"
    jobset = manifests["jobset.yaml"]["JobSet"]
    pod, = [container for _, container in pods(manifests["jobset.yaml"])]
    name, inner = jobset["metadata"]["name"], jobset["spec"]["replicatedJobs"][0]["name"]
    if value_of(words_of(pod), "--rdzv-endpoint") != f"{name}-{inner}-0-0.{name}{tail}":
        yield "jobset.yaml: the endpoint is not the first pod"
    for file in TRAINERS:
        for policy in find(manifests[file], "podFailurePolicy"):
            for code in find(policy, "containerName"):
                if code not in [container["name"] for _, container in pods(manifests[file])]:
                    yield f"{file}: there is no container {code}"
        if list(find(manifests[file], "podReplacementPolicy")) != ["Failed"]:
            yield f"{file}: podFailurePolicy needs podReplacementPolicy: Failed"


def check_names(manifests: Dict[str, Dict[str, Document]]) -> Iterator[str]:
    """Labels and Secrets, from one file to the other."""
    labels = [template["metadata"]["labels"] for file in TRAINERS
              for template, _ in pods(manifests[file])]
    monitor = manifests["podmonitor.yaml"]["PodMonitor"]["spec"]
    policy = manifests["networkpolicy.yaml"]["NetworkPolicy"]["spec"]
    for file, wanted in (("podmonitor.yaml", monitor["selector"]["matchLabels"]),
                         ("networkpolicy.yaml", policy["podSelector"]["matchLabels"])):
        if not all(wanted.items() <= one.items() for one in labels):
            yield f"{file}: does not select the pods of all jobs"
    if monitor["podMetricsEndpoints"][0]["port"] != "metrics":
        yield "podmonitor.yaml: the pods have no such port"
    if [port for rule in policy["ingress"] for port in find(rule, "port")] != [29501]:
        yield "networkpolicy.yaml: does not let Prometheus in"
    secrets = {name for name in find(manifests, "secretName")} | {
        credentials["name"] for credentials in find(manifests, "credentials")}
    if len(secrets) != 1:
        yield "the Secret has several names: " + ", ".join(sorted(secrets))
    runtime = manifests["trainer-runtime.yaml"]["ClusterTrainingRuntime"]
    if manifests["trainjob.yaml"]["TrainJob"]["spec"]["runtimeRef"]["name"] != \
            runtime["metadata"]["name"]:
        yield "trainjob.yaml: there is no such runtime"


def check_chart(root: str, manifests: Dict[str, Dict[str, Document]]) -> Iterator[str]:
    chart = yaml.safe_load(read(root, CHART, "Chart.yaml"))
    values = yaml.safe_load(read(root, CHART, "values.yaml"))
    schema = json.loads(read(root, CHART, "values.schema.json"))
    version = re.search(r"version: '([^']+)'", read(root, "meson.build"))[1]
    if not chart["appVersion"] == chart["version"] == version:
        yield f"Chart.yaml: the version is not {version}"
    page = read(root, CHART, "README.md")
    for name, value in values.items():
        known = schema["properties"].get(name)
        inner = known.get("properties", {}) if known else {}
        for part in value if isinstance(value, dict) and inner else [None]:
            full = name if part is None else f"{name}.{part}"
            if known is None or (part is not None and part not in inner):
                yield f"values.schema.json: does not know {full}"
            if f"`{full}`" not in page:
                yield f"{CHART}/README.md: does not explain `{full}`"
    server = manifests["server.yaml"]
    (template, container), = pods(server)
    text = read(root, CHART, "templates", "statefulset.yaml")
    args = re.findall(r"- (\S+)", re.search(r"args:\n(.*?)\{\{- range", text, re.S)[1])
    if args != container["args"] or container["resources"] != values["resources"]:
        yield "server.yaml: is not the chart; run tools/check-deploy --write"
    ports = {port["name"]: port["port"] for port in server["Service"]["spec"]["ports"]}
    if ports != {"rdzv": values["service"]["port"], "metrics": values["service"]["httpPort"]}:
        yield "server.yaml: the Service has other ports than values.yaml"
    if values["token"]["existingSecret"] not in list(find(manifests["job.yaml"], "secretName")):
        yield "values.yaml: the server and the job have different Secrets"


def library_of(root: str, path: str) -> str:
    """The name of the library that this source opens."""
    return re.search(r'^#define LIBRARY +"(.*)"$', read(root, path), re.M)[1]


def check_image(root: str) -> Iterator[str]:
    """Ports and files as the manifests have them; the files that muster needs."""
    text = read(root, DOCKERFILE)
    lists = lists_of_dockerfile(text)
    exposed = set(re.search(r"^EXPOSE (.*)$", text, re.M)[1].split())
    used = {word.rpartition(":")[2] for word in lists["CMD"] + lists["HEALTHCHECK"]
            if re.search(r":\d+$", word)}
    if exposed != used:
        yield "Dockerfile: EXPOSE, CMD and HEALTHCHECK have different ports"
    if "ENV MUSTER_TOKEN_FILE=/etc/muster/token\n" not in text:
        yield "Dockerfile: the token is not where the manifests mount it"
    *_, build, last = re.split(r"^FROM ", text, flags=re.M)
    if "tools/make tarball" not in build:
        yield "Dockerfile: it is not the archive that is built; all but glibc is missing in the image"
    for name in ("bin/muster", "lib/" + library_of(root, os.path.join("src", "cli", "launcher.c"))):
        if f"/out/usr/{os.path.dirname(name)} /archive/{name} " not in build:
            yield f"Dockerfile: does not install {name} of the archive"
    if "COPY --from=build /out/ /\n" not in last:
        yield "Dockerfile: the last stage does not copy what was built"
    name, _, number = library_of(root, os.path.join("src", "transport", "uv_curl.c")).partition(".so.")
    installed = re.search(r"apt-get install (.*?)&&", last, re.S)[1].replace("\\\n", " ").split()
    if name + number not in installed:
        yield f"Dockerfile: does not install {name + number} for those who use etcd"


def check_versions(root: str) -> Iterator[str]:
    """The page says against which versions the manifests were checked."""
    page = read(root, "docs", "kubernetes.md")
    for line in read(root, "deploy", "versions.txt").splitlines():
        words = line.split()
        if words[1:2] in (["schema"], ["module"]) and words[2].lstrip("v") not in page:
            yield f"docs/kubernetes.md: does not say {words[0]} {words[2]}"


def check_tree(root: str, muster: str, commands: docs.Commands) -> List[str]:
    try:
        manifests = read_manifests(root)
    except yaml.YAMLError as error:
        return [f"a manifest is not YAML: {error}"]
    return list(check_commands(root, manifests, commands)) + list(check_pods(root, manifests)) + \
        list(check_jobs(manifests)) + list(check_names(manifests)) + \
        list(check_chart(root, manifests)) + list(check_image(root)) + \
        list(check_versions(root))


# --- the test of the test ---------------------------------------------------------------------

JOB, JOBSET, RUNTIME = (os.path.join(KUBERNETES, name) for name in TRAINERS)
SERVER = os.path.join(KUBERNETES, "server.yaml")
VALUES = os.path.join(CHART, "values.yaml")
# (file, what is there, what is put there, words of the fault)
PLANTED = [
    (JOB, "kind: Service", "kind: [Service", "not YAML"),
    (JOB, "- --nnodes", "- --nodes", "has no --nodes"),
    (JOB, "#     muster keygen token token", "#     muster keygen tokn token", "no `muster keygen"),
    (JOB, "port: metrics}", "port: page}", "no status page has"),
    (JOB, "path: /readyz", "path: /ready", "no status page has"),
    (JOB, "0.0.0.0:29501", "0.0.0.0:29502", "--http has the port"),
    (JOB, 'prometheus.io/port: "29501"', 'prometheus.io/port: "9090"', "prometheus.io/port"),
    (JOB, "Seconds: 120", "Seconds: 60", "must be longer"),
    (JOB, "runAsUser: 10001", "runAsUser: 0", "does not run as"),
    (JOB, "fsGroup: 10001", "supplementalGroups: [10001]", "has no fsGroup"),
    (JOB, "drop: [ALL]", "drop: [NET_RAW]", "rights that it does not need"),
    (JOB, "RuntimeDefault", "Unconfined", "no seccomp"),
    (JOB, "defaultMode: 0440", "defaultMode: 0444", "refuses a token"),
    (JOB, "mountPath: /etc/muster", "mountPath: /etc/mustard", "no Secret is mounted"),
    (JOB, "train-0.train", "train-1.train", "not the pod with index 0"),
    (JOB, "clusterIP: None", "clusterIP: ''", "does not name the pods"),
    (JOB, "selector: {app: train}", "selector: {app: brain}", "does not find the pods"),
    (JOB, "parallelism: 4", "parallelism: 3", "do not agree"),
    (JOB, "containerName: node", "containerName: worker", "no container worker"),
    (JOB, "Policy: Failed", "Policy: TerminatingOrFailed", "podReplacementPolicy"),
    (JOBSET, "trainset-node-0-0", "trainset-0-0", "not the first pod"),
    (RUNTIME, "labels: {app: train}", "labels: {app: brain}", "does not select"),
    (RUNTIME, "- --max-restarts", "- --max-restart", "has no --max-restart"),
    (RUNTIME, "muster-token", "other-token", "several names"),
    (os.path.join(KUBERNETES, "trainjob.yaml"), "name: muster", "name: torch", "no such runtime"),
    (os.path.join(KUBERNETES, "podmonitor.yaml"), "port: metrics", "port: http", "no such port"),
    (os.path.join(KUBERNETES, "networkpolicy.yaml"), "29501", "29500", "let Prometheus in"),
    (SERVER, "/var/lib/muster/data", "/data", "is not the chart"),
    (SERVER, "port: 29501", "port: 29502", "other ports than"),
    (VALUES, "nodeSelector: {}", "nodeSelektor: {}", "does not know nodeSelektor"),
    (VALUES, "httpPort: 29501", "httpPort: 29502", "other ports than"),
    (VALUES, "existingSecret: muster-token", "existingSecret: other", "different Secrets"),
    (os.path.join(CHART, "README.md"), "`service.httpPort`", "`service.http`", "does not explain"),
    (os.path.join(CHART, "Chart.yaml"), 'appVersion: "', 'appVersion: "1', "the version is not"),
    (os.path.join(CHART, "templates", "NOTES.txt"), "muster run --rdzv-endpoint",
     "muster run --rdzv-endpiont", "has no --rdzv-endpiont"),
    (DOCKERFILE, "USER 10001:10001", "USER muster", "the last USER"),
    (DOCKERFILE, "USER 10001:10001", "USER 0:0", "the last USER"),
    (DOCKERFILE, '"--once"', '"--onse"', "has no --onse"),
    (DOCKERFILE, "EXPOSE 29400 29501", "EXPOSE 29400", "different ports"),
    (DOCKERFILE, "make tarball", "make install", "it is not the archive"),
    (DOCKERFILE, "/archive/bin/muster ", "/archive/bin/p2pd ", "does not install bin/muster"),
    (DOCKERFILE, "/archive/lib/libmuster.so.0", "/archive/lib/libmuster.so",
     "does not install lib/libmuster.so.0"),
    (DOCKERFILE, "COPY --from=build /out/ /", "COPY --from=build /out /usr", "does not copy"),
    (DOCKERFILE, "certificates libcurl4", "certificates", "does not install libcurl4"),
    (DOCKERFILE, "=/etc/muster/token", "=/etc/token", "the token is not where"),
    (os.path.join("deploy", "versions.txt"), "module  v0.12.0", "module  v0.99.0", "does not say"),
]


def self_test(root: str, muster: str, commands: docs.Commands) -> int:
    missed = 0
    with tempfile.TemporaryDirectory() as work:
        for name in ("src", "docs", "meson.build"):
            os.symlink(os.path.join(root, name), os.path.join(work, name))
        shutil.copytree(os.path.join(root, "deploy"), os.path.join(work, "deploy"))
        for path, old, new, words in PLANTED:
            text = read(work, path)
            with open(os.path.join(work, path), "w", encoding="utf-8") as file:
                file.write(text.replace(old, new))
            found = check_tree(work, muster, commands)
            if old not in text or not any(words in fault for fault in found):
                print(f"not seen: {new!r} in {path}: {found}")
                missed += 1
            with open(os.path.join(work, path), "w", encoding="utf-8") as file:
                file.write(text)
    print(f"{len(PLANTED)} faults planted, {missed} not seen")
    return 1 if missed else 0


def main(muster: str, root: str, *mode: str) -> int:
    muster, root = os.path.abspath(muster), os.path.abspath(root)
    commands = docs.Commands(root, muster)
    if mode:
        return self_test(root, muster, commands)
    faults = check_tree(root, muster, commands)
    for fault in faults:
        print(fault)
    print(f"{len(read_manifests(root))} manifests: {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
