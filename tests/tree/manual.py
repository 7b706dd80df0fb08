#!/usr/bin/python3
"""Whether the manual is whole: a page for all that the library exports, and pages without a fault.

usage: manual.py LIBMUSTER MAN3 MAN [--self-test]

LIBMUSTER is the shared library, MAN3 the directory of the pages that tools/man3 made, MAN that of
the pages that are written by hand. With --self-test each fault is planted in a copy, and must be
seen.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

# Pages of others.
FOREIGN = {("torchrun", "1"), ("systemd", "1"), ("openssl", "1"), ("etcd", "1")}


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def list_exports(library):
    lines = subprocess.run(["nm", "-D", "--defined-only", library], stdout=subprocess.PIPE,
                           check=True, universal_newlines=True).stdout.splitlines()
    return {line.split()[-1].split("@")[0] for line in lines if " muster_" in line}


def list_defaults(exports):
    """The inline functions that make a struct, beside those that the library exports for them."""
    return {name[:-len("init")] + "defaults" for name in exports if name.endswith("_init")}


def check_exports(exports, man3):
    for name in sorted(exports | list_defaults(exports)):
        path = os.path.join(man3, name + ".3")
        if not os.path.exists(path):
            yield f"{name}() has no page"
            continue
        text = read(path)
        alias = re.fullmatch(r"\.so man3/(\w+)\.3\n", text)
        if alias:
            path = os.path.join(man3, alias[1] + ".3")
            text = read(path) if os.path.exists(path) else ""
        for macro in ("Nm", "Fo", "It Fn"):
            if not re.search(rf"^\.{macro} {name}( ,)?$", text, re.M):
                yield f"{os.path.basename(path)}: has no .{macro} {name}"


def check_pages(man3, exports):
    for name in sorted(os.listdir(man3)):
        text = read(os.path.join(man3, name))
        alias = re.fullmatch(r"\.so man3/(\w+\.3)\n", text)
        if alias:
            if not os.path.exists(os.path.join(man3, alias[1])):
                yield f"{name}: leads to {alias[1]}, which is not there"
            continue
        # Several functions may share a text, but the last of them must have one.
        for found in re.findall(r"^\.It Fn (\w+)\n(?=\.El|\.Sh|\.Ed)", text, re.M):
            yield f"{name}: the header says nothing about {found}()"
        inline = {"muster_str", "muster_rpc_async"} | list_defaults(exports)
        for found in re.findall(r"^\.Fo (\w+)$", text, re.M):
            if found not in exports | inline:
                yield f"{name}: {found}() is not exported"


def check_references(pages):
    there = {tuple(os.path.basename(path).rsplit(".", 1)) for path in pages}
    for path in pages:
        for name, section in re.findall(r"^\.Xr (\S+) (\d)", read(path), re.M):
            if (name, section) not in there | FOREIGN:
                yield f"{os.path.basename(path)}: {name}({section}) is not there"


def check_format(pages):
    if shutil.which("groff") is None:
        yield "groff is not installed, so nobody has read the pages"
        return
    for path in pages:
        if read(path).startswith(".so "):
            continue
        said = subprocess.run(["groff", "-mandoc", "-ww", "-Kutf8", "-Tutf8", "-rLL=80n", "-z",
                               path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              universal_newlines=True).stdout
        for line in said.splitlines():
            yield line


def check_names(pages):
    """Whether whatis and apropos will find each page: under its own name, as mandb reads it."""
    if shutil.which("lexgrog") is None:
        yield "man-db is not installed, so nobody knows what whatis will find"
        return
    for path in pages:
        if read(path).startswith(".so "):
            continue
        said = subprocess.run(["lexgrog", path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              universal_newlines=True).stdout
        names = re.findall(r': "(\S+) - .+"$', said, re.M)
        name = os.path.basename(path).rsplit(".", 1)[0]
        if name not in names:
            yield f"{os.path.basename(path)}: whatis {name} will not find it: {said.strip()}"


def check_lint(pages):
    """Whether mandoc, which reads the pages on other systems, can read them as well."""
    if shutil.which("mandoc") is None:
        yield "mandoc is not installed, so it has not read the pages"
        return
    whole = [path for path in pages if not read(path).startswith(".so ")]
    said = subprocess.run(["mandoc", "-Tlint", "-Wwarning", *whole], stdout=subprocess.PIPE,
                          universal_newlines=True).stdout
    yield from said.splitlines()


def check(library, man3, man, only=""):
    exports = list_exports(library)
    pages = [os.path.join(man3, name) for name in sorted(os.listdir(man3))]
    pages += [os.path.join(man, name) for name in sorted(os.listdir(man)) if name[-1] in "178"]
    faults = list(check_exports(exports, man3)) + list(check_pages(man3, exports)) + \
        list(check_references(pages)) + \
        list(check_format(page for page in pages if page.endswith(only))) + \
        list(check_names(page for page in pages if page.endswith(only))) + \
        list(check_lint([page for page in pages if page.endswith(only)]))
    return faults, len(exports), len(pages)


def plant(man3, name, old, new):
    path = os.path.join(man3, name)
    text = read(path)
    if old not in text:
        raise ValueError(f"{name} has no {old!r}")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace(old, new, 1))


def self_test(library, man3, man):
    """Each: what is done to a copy of the pages, and what must then be said."""
    faults = {
        "a page is missing": (lambda d: os.remove(os.path.join(d, "muster_store_get.3")),
                              "muster_store_get() has no page"),
        "an alias leads nowhere": (lambda d: plant(d, "muster_store_get.3", "store.3", "gone.3"),
                                   "which is not there"),
        "a function is not described": (lambda d: plant(d, "muster_store.3",
                                                        ".It Fn muster_store_get\n", ""),
                                        "has no .It Fn muster_store_get"),
        "it exports less": (lambda d: plant(d, "muster_store.3", ".Fo muster_store_get",
                                            ".Fo muster_store_got"), "is not exported"),
        "a reference leads nowhere": (lambda d: plant(d, "muster_store.3", ".Xr muster 7",
                                                      ".Xr muster 6"), "muster(6) is not there"),
        "a macro that is none": (lambda d: plant(d, "muster_store.3", ".Sh LIBRARY", ".Qx LIBRARY"),
                                 "macro"),
        "a name that whatis cannot find": (lambda d: plant(d, "muster_store.3", ".Nm muster_store ,",
                                                           ".Nm muster store ,"), "whatis"),
    }
    missed = 0
    for what, (spoil, words) in faults.items():
        with tempfile.TemporaryDirectory() as work:
            copy = os.path.join(work, "man3")
            shutil.copytree(man3, copy)
            spoil(copy)
            if not any(words in fault for fault in check(library, copy, man, "muster_store.3")[0]):
                print(f"not seen: {what}")
                missed += 1
    print(f"{len(faults)} faults planted, {missed} not seen")
    return 1 if missed else 0


def main(library, man3, man, *mode):
    if mode:
        return self_test(library, man3, man)
    faults, exports, pages = check(library, man3, man)
    for fault in faults:
        print(fault)
    print(f"{exports} functions, {pages} pages: {len(faults)} faults")
    return 1 if faults or not exports else 0


sys.exit(main(*sys.argv[1:]))
