#!/usr/bin/python3
"""Whether what a command says of itself, its man page and the completions agree.

usage: agree.py MUSTER MAN_DIRECTORY COMPLETIONS
"""
import importlib.machinery
import importlib.util
import os
import re
import subprocess
import sys


def load_words(completions, muster):
    """What may follow a verb: serve, call, bench."""
    loader = importlib.machinery.SourceFileLoader("completions", completions)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("completions", loader))
    loader.exec_module(module)
    return {verb.name: verb.words for verb in module.read_verbs(muster)}


def main(muster, pages, completions):
    lines = subprocess.run([completions, "list", muster], stdout=subprocess.PIPE, check=True,
                           universal_newlines=True).stdout.splitlines()
    bash = subprocess.run([completions, "bash", muster], stdout=subprocess.PIPE, check=True,
                          universal_newlines=True).stdout
    zsh = subprocess.run([completions, "zsh", muster], stdout=subprocess.PIPE, check=True,
                         universal_newlines=True).stdout
    taken = {}
    for line in lines:
        words = line.split()
        long = [word for word in words if word.startswith("--")] or \
            [word for word in words if word.startswith("-")]
        taken.setdefault(words[0], set()).add(long[0])
    faults = []
    words_of = load_words(completions, muster)
    with open(os.path.join(pages, "muster.1"), encoding="utf-8") as file:
        overview = file.read()
    for verb, options in sorted(taken.items()):
        path = os.path.join(pages, f"muster-{verb}.1")
        if not os.path.exists(path):
            faults.append(f"{verb}: there is no man page")
            continue
        if not re.search(rf"muster-{verb} 1", overview):
            faults.append(f"{verb}: muster(1) does not name its man page")
        with open(path, encoding="utf-8") as file:
            page = file.read()
        named = {"-" + name for name in re.findall(r"Fl (-[a-z][a-z0-9-]*)", page)}
        named |= {"-" + name for name in re.findall(r"Fl ([a-zA-Z]\w*)", page)}
        named |= {"-" + name for name in re.findall(r"^\.Op Fl .*?\| (-[a-z][a-z0-9-]*)", page,
                                                    re.M)}
        flags = r"Fl ([a-zA-Z]\w*)" if verb == "p2pd" else r"Fl (-[a-z][a-z0-9-]*)"
        described = {"-" + name for line in re.findall(r"^\.It .*$", page, re.M)
                     for name in re.findall(flags, line)}
        for option in sorted(options - named - {"--help"}):
            faults.append(f"{verb}: its man page does not name {option}")
        for option in sorted(described - options):
            faults.append(f"{verb}: its man page has {option}, the command does not")
        synopsis = re.search(r"^\.Sh SYNOPSIS$(.*?)^\.Sh DESC", page, re.M | re.S)[1]
        for word in sorted(words_of[verb]):
            if not re.search(rf"(Cm (.* )?|Nm muster {verb} ){word}\b",
                             page if verb == "kv" else synopsis):
                faults.append(f"{verb}: its man page does not name the word {word}")
        for shell, text in (("bash", bash), ("zsh", zsh)):
            part = re.search(rf"^ +{verb}\)$(.*?)^ +;;$\n(?: +\w+\)$| +esac)", text, re.M | re.S)
            shape = r"(?<=[ '])-[a-zA-Z]\w*(?=[ '=])" if verb == "p2pd" else r"--[a-z][a-z0-9-]*"
            offered = set(re.findall(shape, part[1])) - {"-ne"} if part else set()
            for option in sorted(options ^ offered):
                faults.append(f"{verb}: {shell} does not complete {option}, or wrongly does")
    for fault in faults:
        print(fault)
    print(f"{len(taken)} commands, {sum(map(len, taken.values()))} options: "
          f"{len(faults)} disagree")
    return 1 if faults or not taken else 0


sys.exit(main(*sys.argv[1:4]))
