#!/usr/bin/python3
"""Whether docs/troubleshooting.md and what muster says agree.

usage: trouble.py ROOT [--self-test]

- A heading in backticks is a message. Words in capitals stand for a name or a number; what is
  between them must stand in a text of src/ or include/, so that a message cannot change alone.
- Each error code of include/muster/error.h has a row with its text.
- Each mistake of tests/hosts/mistakes.py is named by a section (<!-- mistakes: a; b -->), and each
  that is named is there: a new mistake needs a section, or a place in one.
"""
import ast
import glob
import os
import re
import sys

PAGE = "docs/troubleshooting.md"
SHORTEST = 6  # bytes of a message between two names; what is shorter says nothing


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def texts_of(root):
    """Every string of the sources, with those that follow each other as one, and formats as a mark."""
    found = []
    for folder in ("src", "include"):
        for path in glob.glob(os.path.join(root, folder, "**", "*.[ch]"), recursive=True):
            source = read(root, path)
            source = re.sub(r"\\\n", " ", source)
            for run in re.findall(r'"(?:[^"\\\n]|\\.)*"(?:\s*(?:PRI\w+\s*)?"(?:[^"\\\n]|\\.)*")*', source):
                text = "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', run))
                found.append(text.replace('\\"', '"').replace("\\n", "\n"))
    # What the system says is not ours.
    return found + ["Connection refused", "Network is unreachable", "Address already in use",
                    "No such file or directory", "No space left on device"]


def pieces_of(message):
    """What stands between the names and numbers."""
    # "MUSTER_TOKEN_FILE" and "TLS" are words of the message itself.
    parts = re.split(r"(?<!\w)(?!MUSTER_|STORE-|RDZV-|LOCK-|SIGKILL|FILE, or)[A-Z][A-Z-]{2,}(?!\w)",
                     message)
    return [part.strip(" :;,'\"=") for part in parts if len(part.strip(" :;,'\"=")) >= SHORTEST]


def is_said(piece, texts):
    """In one text, or in several with a format between them."""
    if any(piece in text for text in texts):
        return True
    for cut in range(SHORTEST, len(piece) - SHORTEST + 1):
        if any(piece[:cut].rstrip(" :") in text for text in texts) and \
                any(piece[cut:].lstrip(" :") in text for text in texts):
            return True
    return False


def mistakes_of(root):
    names = set()
    for node in ast.walk(ast.parse(read(root, "tests/hosts/mistakes.py"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Mistake":
            name = node.args[0]
            if isinstance(name, ast.BinOp):
                name = name.left
            names.add(name.value.rstrip(", "))
    return names


def faults_of(page, texts, codes, mistakes):
    faults = []
    for heading in re.findall(r"^### (.*`.*)$", page, re.M):
        for message in re.findall(r"`([^`]+)`", heading):
            for piece in pieces_of(message):
                if not is_said(piece, texts):
                    faults.append("nothing says %r (of %r)" % (piece, message))
    for name, text in codes:
        if "| `MUSTER_%s` | %s |" % (name, text) not in page:
            faults.append("MUSTER_%s has no row with its text %r" % (name, text))
    named = [name.strip() for line in re.findall(r"<!-- mistakes: (.*?) -->", page, re.S)
             for name in line.split(";")]
    faults += ["the mistake %r has no section" % name for name in sorted(mistakes - set(named))]
    faults += ["there is no mistake %r" % name for name in sorted(set(named) - mistakes)]
    return faults


def main(root, self_test):
    page = read(root, PAGE)
    texts = texts_of(root)
    codes = re.findall(r'X\((\w+), -\d+, "([^"]*)"\)', read(root, "include/muster/error.h"))
    mistakes = mistakes_of(root)
    faults = faults_of(page, texts, codes, mistakes)
    if self_test:
        planted = (
            (page.replace("it takes the connection", "it took the connection"), mistakes),
            (page.replace("| timed out |", "| late |"), mistakes),
            (page, mistakes | {"another mistake"}),
            (page, mistakes - {"wrong port"}),
        )
        blind = [i for i, (other, those) in enumerate(planted)
                 if len(faults_of(other, texts, codes, those)) <= len(faults)]
        print("%d faults planted, %d not seen: %s" % (len(planted), len(blind), blind))
        return 1 if blind else 0
    for fault in faults:
        print("%s: %s" % (PAGE, fault))
    print("%d codes, %d mistakes: %d faults" % (len(codes), len(mistakes), len(faults)))
    return 1 if faults or not codes or not mistakes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], "--self-test" in sys.argv))
