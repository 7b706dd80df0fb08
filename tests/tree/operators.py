#!/usr/bin/python3
"""Whether what operators get is sound: the systemd unit, the alert rules, the dashboard, the scripts.

usage: operators.py MUSTER UNIT TREE [--self-test]

systemd reads the unit and says how exposed it leaves the service; promtool reads the alert rules and
runs their tests (prometheus_rules_test.yml); rules and dashboard name only metrics that the sources
write, and docs/operate.md names each of those; shellcheck reads every script. With --self-test each
fault is planted in a copy, and must be seen.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

EXPOSED_MAX = 1.5  # of 10, as systemd-analyze counts; it calls below 2 "OK"
# Metrics of Prometheus itself.
FOREIGN = {"up"}


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def ask(*command):
    """(exit code, what it said)"""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except FileNotFoundError:
        return 127, f"{command[0]} is not installed"
    return done.returncode, done.stdout


# --- the unit -------------------------------------------------------------------------------------

def check_unit(muster, unit):
    """The program need not be installed: the unit is read with the one that was built."""
    with tempfile.TemporaryDirectory() as work:
        copy = os.path.join(work, "muster.service")
        with open(copy, "w", encoding="utf-8") as file:
            file.write(re.sub(r"^ExecStart=\S+", "ExecStart=" + muster, read(unit), flags=re.M))
        code, said = ask("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", copy)
        for line in said.splitlines() or (["systemd-analyze verify failed"] if code else []):
            yield f"muster.service: {line}"
        code, said = ask("systemd-analyze", "security", "--no-pager", "--offline=true", copy)
        exposed = re.search(r"exposure level for muster\.service: ([\d.]+)", said)
        if not exposed:
            yield f"muster.service: systemd-analyze security says {said.strip()[-200:]!r}"
        elif float(exposed[1]) > EXPOSED_MAX:
            yield f"muster.service: its exposure is {exposed[1]}, above {EXPOSED_MAX}"


# --- metrics --------------------------------------------------------------------------------------

def list_metrics(tree):
    """Those that the sources write."""
    names = set()
    for folder, _, files in os.walk(os.path.join(tree, "src")):
        for name in files:
            if name.endswith(".c"):
                text = read(os.path.join(folder, name))
                names |= set(re.findall(r"# TYPE (muster_[a-z_]+) ",
                                        re.sub(r'"\s*\n\s*"', "", text)))
                names |= set(re.findall(r'"(muster_[a-z_]+)", "(?:gauge|counter)"',
                                        re.sub(r",\s+", ", ", text)))
                names |= {"muster_" + name for name in
                          re.findall(r'^ +FIGURE\("([a-z_]+)"', text, re.M)}
    return names


def check_names(path, expressions, metrics):
    for expression in expressions:
        plain = re.sub(r'"[^"]*"|\{[^}]*\}|\b(by|on|ignoring|without) \([^)]*\)', " ", expression)
        for name in re.findall(r"\bmuster_\w+|\bup\b", plain + " ".join(
                re.findall(r"\bmuster_\w+", expression))):
            if name not in metrics | FOREIGN:
                yield f"{path}: there is no metric {name}"


def check_rules(tree, metrics):
    path = os.path.join(tree, "data", "prometheus-rules.yml")
    code, said = ask("promtool", "check", "rules", path)
    if code != 0:
        yield f"data/prometheus-rules.yml: {said.strip()}"
        return
    text = read(path)
    yield from check_names("data/prometheus-rules.yml", [text], metrics)
    with tempfile.TemporaryDirectory() as work:
        shutil.copy(path, work)
        copy = shutil.copy(os.path.join(tree, "tests", "tree", "prometheus_rules_test.yml"), work)
        code, said = ask("promtool", "test", "rules", copy)
        if code != 0:
            yield f"data/prometheus-rules.yml: {said.strip()}"
        tested = set(re.findall(r'alertname(?:: |=")(\w+)', read(copy)))
    for alert in re.findall(r"alert: (\w+)", text):
        if alert not in tested:
            yield f"data/prometheus-rules.yml: {alert} has no test"


def check_dashboard(tree, metrics):
    path = "data/grafana-dashboard.json"
    try:
        board = json.loads(read(os.path.join(tree, path)))
    except ValueError as error:
        yield f"{path}: {error}"
        return
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    expressions += [variable["definition"] for variable in board["templating"]["list"]
                    if "definition" in variable]
    yield from check_names(path, expressions, metrics)
    ids = [panel["id"] for panel in board["panels"]]
    if len(set(ids)) != len(ids):
        yield f"{path}: two panels have the same id"
    variables = {variable["name"] for variable in board["templating"]["list"]}
    for name in re.findall(r"\$\{?(\w+)", json.dumps(board)):
        if name not in variables and not name.startswith("__"):
            yield f"{path}: there is no variable ${name}"
    rules = [f"      - record: r{i}\n        expr: {json.dumps(expand(expression))}\n"
             for i, expression in enumerate(expressions) if "label_values" not in expression]
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        file.write("groups:\n  - name: panels\n    rules:\n" + "".join(rules))
        file.flush()
        code, said = ask("promtool", "check", "rules", "--lint=none", file.name)
        if code != 0:
            yield f"{path}: {said.strip()}"


def expand(expression):
    """As Grafana asks it."""
    return re.sub(r"\$__(rate_interval|range)", "5m", expression).replace("$instance", ".*") \
        .replace("$run", ".*")


def check_page(tree, metrics):
    """docs/operate.md shortens the names that follow each other: `_keys`."""
    page = read(os.path.join(tree, "docs", "operate.md"))
    named = set(re.findall(r"`(?:muster)?(_\w+|muster_\w+)", page))
    for name in sorted(metrics):
        tails = {name} | {name[i:] for i in range(len(name)) if name[i] == "_"}
        if not tails & named:
            yield f"docs/operate.md: does not name {name}"


# --- scripts --------------------------------------------------------------------------------------

def list_scripts(tree):
    for folder, folders, files in os.walk(tree):
        folders[:] = [f for f in folders if f not in (".git", "node_modules", "vectors", "corpus")
                      and not f.startswith("build")]
        for name in files:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                first = file.readline(64)
            if re.match(rb"#! ?/bin/(sh|bash)\b|#! ?/usr/bin/env (sh|bash)\b", first):
                yield path


def check_scripts(tree):
    scripts = sorted(list_scripts(tree))
    code, said = ask("shellcheck", "--format=gcc", "--severity=warning", *scripts)
    lines = said.replace(tree + "/", "").splitlines()
    yield from lines or ([f"shellcheck ended with {code}"] if code else [])


# --- all ------------------------------------------------------------------------------------------

def check(muster, unit, tree, only=""):
    """The faults of all that is looked at, or only of what is named so."""
    metrics = list_metrics(tree)
    looks = {
        "muster.service": lambda: check_unit(muster, unit),
        "data/prometheus-rules.yml": lambda: check_rules(tree, metrics),
        "data/grafana-dashboard.json": lambda: check_dashboard(tree, metrics),
        "docs/operate.md": lambda: check_page(tree, metrics),
        "tools": lambda: check_scripts(tree),
    }
    return [fault for name, look in looks.items() if only.startswith(name) or not only
            for fault in look()], metrics


def plant(path, old, new):
    text = read(path)
    if old not in text:
        raise ValueError(f"{path} has no {old!r}")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace(old, new, 1))


def self_test(muster, unit, tree):
    """Each: the file, what is changed in it, and what must then be said."""
    faults = (
        ("muster.service", "StateDirectory=", "StateDir=", "Unknown key"),
        ("muster.service", "CapabilityBoundingSet=\n", "", "exposure"),
        ("data/prometheus-rules.yml", "muster_disk_full", "muster_disk_fool", "no metric"),
        ("data/prometheus-rules.yml", "for: 1m", "for: soon", "prometheus-rules.yml"),
        ("data/prometheus-rules.yml", "> 3\n", "> 300\n", "MusterNodesAreLost"),
        ("data/prometheus-rules.yml", "alert: MusterDiskIsFull", "alert: MusterDiskFull", "no test"),
        ("data/grafana-dashboard.json", "muster_keys", "muster_kees", "no metric muster_kees"),
        ("data/grafana-dashboard.json", "sum(muster_runs", "sum((muster_runs", "dashboard.json"),
        ("data/grafana-dashboard.json", '"title"', "title", "dashboard.json"),
        ("docs/operate.md", "`_losses_total`", "", "does not name muster_losses_total"),
        ("tools/deb", '"$(dirname "$0")/.."', "$(dirname $0)/..", "tools/deb"),
    )
    missed = 0
    with tempfile.TemporaryDirectory() as work:
        for name in ("data", "docs", "tools", "tests/tree", "src"):
            shutil.copytree(os.path.join(tree, name), os.path.join(work, "tree", name))
        for file, old, new, words in faults:
            path = os.path.join(work, "tree", file)
            if file == "muster.service":
                path = shutil.copy(unit, os.path.join(work, file))
            before = read(path)
            plant(path, old, new)
            found = check(muster, path if file == "muster.service" else unit,
                          os.path.join(work, "tree"), file)[0]
            if not any(words in fault for fault in found):
                print(f"not seen: {file}: {new!r} in the place of {old!r}; said: {found}")
                missed += 1
            with open(path, "w", encoding="utf-8") as out:
                out.write(before)
    print(f"{len(faults)} faults planted, {missed} not seen")
    return 1 if missed else 0


def main(muster, unit, tree, *mode):
    muster, tree = os.path.abspath(muster), os.path.abspath(tree)
    if mode:
        return self_test(muster, unit, tree)
    faults, metrics = check(muster, unit, tree)
    for fault in faults:
        print(fault)
    print(f"{len(metrics)} metrics, {len(list(list_scripts(tree)))} scripts: {len(faults)} faults")
    return 1 if faults else 0


sys.exit(main(*sys.argv[1:]))
