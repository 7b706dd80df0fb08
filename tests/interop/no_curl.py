#!/usr/bin/python3
"""Without a libcurl that can be used: what needs HTTP says so at once and names the remedy, and
nothing else needs it.

    no_curl.py [MUSTER] [--old=LIBRARY]

A damaged library, and one that is too old (old_curl.c), stand before the system's in the loader's
path. tools/try-wheel tries a system that has none.
"""
import json
import os
import re
import shutil
import subprocess
import tempfile

import lib
from lib import HOST, Checks, Muster, muster_path, option

checks = Checks()
PACKAGES = "libcurl4 (Debian, Ubuntu) or libcurl (RHEL, Fedora)"


def muster(folder, *words):
    """(exit code, standard error and output), with this folder first in the loader's path."""
    done = subprocess.run([muster_path()] + list(words), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=lib.PATIENCE,
                          env=dict(os.environ, LD_LIBRARY_PATH=folder))
    return done.returncode, done.stdout.decode(errors="replace")


def check_refused(folder, kind, reason):
    url = "etcd://127.0.0.1:1,127.0.0.1:2/place"
    for what, words in {
            "a store in etcd": ["kv", "--store", url, "--timeout", "10m", "get", "key"],
            "a store in etcd's API v2": ["kv", "--store", url + "?api=v2", "--timeout", "10m", "get",
                                         "key"],
            "a watch": ["kv", "--store", url, "watch", "key"],
            "a rendezvous in etcd": ["run", "--rdzv-backend", "etcd-v2", "--rdzv-endpoint",
                                     "127.0.0.1:1", "--rdzv-id", "job", "--no-python", "true"],
            "a page behind TLS": ["top", "--once", "https://127.0.0.1:1"],
            "a server with its keys in etcd": ["serve", "--listen", HOST + ":0", "--backing", url],
            "muster doctor etcd": ["doctor", "etcd", url]}.items():
        code, text = muster(folder, *words)
        checks.ok(code != 0 and PACKAGES in text and reason in text,
                  "%s: %s says what to install" % (kind, what), (code, text))


def check_not_needed(folder):
    code, text = muster(folder, "--version")
    checks.ok(code == 0, "--version does not need it", text)
    code, text = muster(folder, "run", "--standalone", "--nproc-per-node", "2", "--no-python",
                        "sh", "-c", "echo $RANK of $WORLD_SIZE")
    checks.ok(code == 0 and "0 of 2" in text and "1 of 2" in text, "a job does not need it", text)


def check_top(folder):
    with Muster("--http", HOST + ":0") as server:
        page = re.search(r"status at http://(\S+)/", server.output())[1]
        code, text = muster(folder, "top", "--once", "--json", page)
        checks.ok(code == 0 and json.loads(text)["kind"] == "server", "muster top does not need it",
                  (code, text))
    code, text = muster(folder, "top", "--once", page)
    checks.ok(code != 0 and "cannot connect to " + page in text and PACKAGES not in text,
              "and names a server that is gone", (code, text))


def main():
    with open(muster_path(), "rb") as file:
        checks.ok(b"libcurl.so.4" in file.read(), "the name of the library is in the program")
    needed = subprocess.run(["readelf", "-d", muster_path()], stdout=subprocess.PIPE, check=True)
    checks.ok(b"curl" not in needed.stdout, "but the program is not linked to it", needed.stdout)
    with tempfile.TemporaryDirectory(prefix="muster-curl-") as folder:
        path = os.path.join(folder, "libcurl.so.4")
        with open(path, "w", encoding="utf-8"):
            pass
        check_refused(folder, "a damaged library", "HTTP needs libcurl")
        check_not_needed(folder)
        check_top(folder)
        os.remove(path)
        shutil.copy(option("old", ""), path)
        check_refused(folder, "an old library", "libcurl 7.61.1 is too old, HTTP needs 7.74")
    checks.done()


main()
