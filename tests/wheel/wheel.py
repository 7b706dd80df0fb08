#!/usr/bin/python3
"""The wheel as its users have it: installed by pip in a venv and elsewhere, without a network.

    wheel.py [--wheel=FILE] [--tarball=FILE] [--bare] [--refused]

Without files, tools/wheel makes them. This program needs nothing but Python's standard library and
python3-venv, so that tools/try-wheel can run it on systems that have nothing else; --bare says that
this is one, where no libcurl is expected, --refused that its glibc is too old. Prints one line a
check; exits with 1 if one failed.
"""
import base64
import csv
import ctypes.util
import glob
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LIBRARY = "libmuster.so.0"
PATIENCE = 600  # s: the static build is the longest of all

WORKER = """import os, sys
print("worker", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "in", sys.prefix, flush=True)
"""


class Checks:
    def __init__(self):
        self.passed = 0
        self.failed = 0

    def ok(self, condition, what, detail=""):
        self.passed += bool(condition)
        self.failed += not condition
        print(("ok   " if condition else "FAIL ") + what +
              ("" if condition or detail == "" else ": %.2000s" % (detail,)), flush=True)
        return bool(condition)


checks = Checks()


def option(name):
    """The path that `--name=PATH` gives, or None."""
    return next((os.path.abspath(a.split("=", 1)[1]) for a in sys.argv
                 if a.startswith("--%s=" % name)), None)


def run(*command, cwd="/", **more):
    """(exit code, standard output and error) of a command whose environment is plain."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME", "/"),
                   "LC_ALL": "C.UTF-8", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
                   "PIP_NO_CACHE_DIR": "1"}
    environment.update(more)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, env=environment, cwd=cwd, timeout=PATIENCE)
    return done.returncode, done.stdout.decode(errors="replace")


def find_library(folder):
    return glob.glob(folder + "/**/muster/" + LIBRARY, recursive=True)


def list_needed(path):
    """The names of the libraries that the loader gets for this file."""
    _, text = run("ldd", path)
    return {os.path.basename(line.split()[0]) for line in text.splitlines() if line.strip()}


# --- what the wheel is --------------------------------------------------------------------------


def record_hash(data):
    """As RECORD has it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return "sha256=" + digest.rstrip(b"=").decode()


def check_file(wheel):
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        info = next(n for n in names if n.endswith("/RECORD")).rsplit("/", 1)[0]
        rows = list(csv.reader(file.read(info + "/RECORD").decode().splitlines()))
        right = [row[0] for row in rows if row[1] == record_hash(file.read(row[0]))]
        checks.ok({row[0] for row in rows} == names and len(right) == len(names) - 1,
                  "RECORD has every file and its hash", rows)
        notices = file.read(info + "/licenses/NOTICES").decode()
        checks.ok(all(word in notices for word in ("libuv", "OpenLDAP", "jansson", "OpenSSL",
                                                   "xxHash", "Apache License")),
                  "the notices of what is inside are there")
    checks.ok(os.path.getsize(wheel) <= 4 << 20, "it has %d bytes" % os.path.getsize(wheel))


def check_glibc(venv):
    system = {"linux-vdso.so.1", "libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"}
    for path in (venv + "/bin/muster", find_library(venv)[0]):
        needed = list_needed(path)
        checks.ok("libc.so.6" in needed and needed <= system,
                  "%s needs glibc alone" % os.path.basename(path), needed)


# --- the command --------------------------------------------------------------------------------


def check_command(muster, where):
    code, text = run(muster, "--version")
    checks.ok(code == 0 and text.startswith("muster "), "%s: muster --version" % where, text)


def check_run(venv, scratch):
    script = os.path.join(scratch, "worker.py")
    with open(script, "w") as file:
        file.write(WORKER)
    code, text = run("timeout", "60", venv + "/bin/muster", "run", "--standalone",
                     "--nproc-per-node", "2", script, cwd=scratch)
    checks.ok(code == 0 and all("worker %d of 2 in %s" % (rank, venv) in text for rank in (0, 1)),
              "a job of two workers, with the Python of the venv, which is not in PATH", text)


def check_links(venv, version, scratch):
    """Where the program is called through a link, from far away, or by its other name."""
    link = os.path.join(scratch, "links", "a muster")
    os.makedirs(os.path.dirname(link))
    os.symlink(venv + "/bin/muster", link)
    check_command(link, "through a link")
    moved = os.path.join(scratch, "moved [1]* $HOME's")
    shutil.copytree(venv, moved, symlinks=True)
    check_command(moved + "/bin/muster", "in a folder that was copied")
    code, text = run(venv + "/bin/p2pd", "-help")
    checks.ok(code == 0 and "Runs a p2p daemon" in text, "p2pd by its name", text)
    lost = os.path.join(scratch, "lost")
    os.makedirs(lost + "/bin")
    shutil.copy(venv + "/bin/muster", lost + "/bin/muster")
    code, text = run(lost + "/bin/muster", "--version")
    checks.ok(code == 1 and LIBRARY in text and "install" in text,
              "without its library it says what is missing", text)
    os.makedirs(lost + "/lib")
    shutil.copy(find_library(venv)[0], lost + "/lib/" + LIBRARY)
    with open(lost + "/lib/" + LIBRARY, "r+b") as file:
        data = file.read().replace(version.encode() + b"\0", b"9.9.9\0")
        file.seek(0)
        file.write(data)
    code, text = run(lost + "/bin/muster", "--version")
    checks.ok(code == 1 and LIBRARY in text, "the library of another version is passed over", text)


def check_p2pd(venv, scratch):
    folder = glob.glob(venv + "/lib/python*/site-packages")[0] + "/hivemind/hivemind_cli"
    os.makedirs(folder)
    for place in (folder, os.path.dirname(folder)):
        with open(place + "/__init__.py", "w"):
            pass
    code, text = run(venv + "/bin/muster", "p2pd", "--install")
    checks.ok(code == 0 and os.path.exists(folder + "/p2pd"), "p2pd --install", text)
    code, text = run(folder + "/p2pd", "-help", cwd=scratch)
    checks.ok(code == 0 and "Runs a p2p daemon" in text,
              "the daemon in hivemind's place runs", text)
    shutil.rmtree(os.path.dirname(folder))


def check_elsewhere(venv, wheel, scratch):
    """Other places that pip installs to. A venv that sees the system's packages may install for a
    user, as the system's own pip does where it is let."""
    pip = (venv + "/bin/python", "-m", "pip", "-q", "install", "--no-index", "--no-deps",
           "--ignore-installed")
    target = os.path.join(scratch, "target")
    code, text = run(*pip, "--target", target, wheel)
    checks.ok(code == 0, "pip install --target", text)
    check_command(target + "/bin/muster", "--target")
    prefix = os.path.join(scratch, "prefix")
    code, text = run(*pip, "--prefix", prefix, wheel)
    checks.ok(code == 0, "pip install --prefix", text)
    program = glob.glob(prefix + "/**/bin/muster", recursive=True)[0]
    check_command(program, "--prefix")
    top = os.path.dirname(os.path.dirname(program))
    os.rename(top + "/lib", top + "/lib64")
    check_command(program, "in lib64, where RHEL has it")
    seeing, home = os.path.join(scratch, "seeing"), os.path.join(scratch, "home")
    run(sys.executable, "-m", "venv", "--system-site-packages", seeing)
    code, text = run(seeing + "/bin/python", *pip[1:], "--user", wheel, HOME=home)
    checks.ok(code == 0, "pip install --user", text)
    check_command(home + "/.local/bin/muster", "--user")


# --- OpenSSL ------------------------------------------------------------------------------------


def check_openssl(venv, scratch):
    certs = os.path.join(scratch, "certs")
    code, text = run(venv + "/bin/muster", "keygen", "tls", certs, "--host", "127.0.0.1")
    checks.ok(code == 0, "muster keygen tls", text)
    for order in ("muster ssl", "ssl muster"):
        code, text = run(venv + "/bin/python", os.path.join(HERE, "two_openssl.py"),
                         certs, order, LD_DEBUG="bindings",
                         LD_DEBUG_OUTPUT=os.path.join(scratch, "bindings"))
        checks.ok(code == 0, "TLS between libmuster and Python's ssl in one process (%s)" % order,
                  text)
    mixed, seen = [], 0
    for path in glob.glob(os.path.join(scratch, "bindings.*")):
        with open(path, errors="replace") as file:
            for line in file:
                seen += LIBRARY in line
                ends = line.split(" to ")
                if len(ends) == 2 and (LIBRARY in ends[0]) != (LIBRARY in ends[1]) and any(
                        name in line for name in ("libssl", "libcrypto")) and LIBRARY in line:
                    mixed.append(line)
        os.remove(path)
    checks.ok(seen > 0 and not mixed, "no name of the one OpenSSL is bound to the other", mixed[:3])
    broken = os.path.join(scratch, "openssl.cnf")
    with open(broken, "w") as file:
        file.write("openssl_conf = x\nconfig_diagnostics = 1\n[x]\nproviders = y\n[y]\nabsent = z\n"
                   "[z]\nactivate = 1\nmodule = /no/such/module.so\n")
    code, text = run(venv + "/bin/muster", "keygen", "tls", os.path.join(scratch, "certs2"),
                     "--host", "127.0.0.1", OPENSSL_CONF=broken)
    checks.ok(code == 0, "an openssl.cnf with modules that are not there is not read", text)


def check_etcd(venv, bare):
    code, text = run(venv + "/bin/muster", "kv", "--store", "etcd://127.0.0.1:1/x",
                     "--timeout", "1", "get", "key")
    if bare:
        checks.ok(code != 0 and "libcurl4" in text, "etcd without libcurl says what to install",
                  text)
    elif ctypes.util.find_library("curl"):
        checks.ok(code != 0 and "127.0.0.1:1" in text and "libcurl" not in text,
                  "etcd is asked with the system's libcurl", text)


# --- the module ---------------------------------------------------------------------------------


def check_module(venv, scratch):
    code, text = run(venv + "/bin/python", "-c",
                     "from importlib.metadata import entry_points as e\n"
                     "found = e()\n"
                     "found = found.select(group='torchrun.handlers') if hasattr(found, 'select') "
                     "else found.get('torchrun.handlers', [])\n"
                     "print([(p.name, p.value) for p in found])")
    checks.ok("('muster', 'muster.torch:torchrun_handler')" in text,
              "the handler of torchrun is announced", text)
    for what in ("import muster", "import muster; muster.Store"):
        code, text = run(venv + "/bin/python", "-c",
                         "import time\nt = time.perf_counter()\n" + what +
                         "\nprint('%.1f ms' % ((time.perf_counter() - t) * 1e3))", cwd=scratch)
        checks.ok(code == 0, "%s: %s" % (what, text.strip()), text)
    code, text = run(venv + "/bin/python", "-c",
                     "import muster\n"
                     "with muster.Server() as server, muster.Store(server.url) as store:\n"
                     "    store.set('a', 'b')\n"
                     "    print(store.get('a'), muster._lib.path)", cwd=scratch)
    checks.ok(code == 0 and "b'b'" in text and venv in text,
              "the module uses a store, with the library beside it", text)


def check_tarball(path, scratch):
    folder = os.path.join(scratch, "unpacked here")
    os.mkdir(folder)
    code, text = run("tar", "xzf", path, "-C", folder)
    top = os.path.join(folder, os.listdir(folder)[0])
    check_command(top + "/bin/muster", "the archive")
    check_command(top + "/bin/../bin/muster", "the archive, by another path")
    if shutil.which("cc") and shutil.which("pkg-config"):
        source, program = os.path.join(scratch, "try.c"), os.path.join(scratch, "try")
        with open(source, "w") as file:
            file.write("#include <muster/muster.h>\n"
                       "int main(void) { return muster_version()[0] == 0; }\n")
        code, text = run("sh", "-c", 'eval cc "$1" -o "$2" '
                         '$(pkg-config --cflags --libs muster) && "$2"', "sh", source, program,
                         PKG_CONFIG_PATH=top + "/lib/pkgconfig",
                         LD_LIBRARY_PATH=top + "/lib")
        checks.ok(code == 0, "a program is built with its pkg-config file", text)


def check_page(wheel, tarball, scratch):
    """The commands of docs/install.md, as they stand; the files are made already."""
    sys.path.insert(0, os.path.join(ROOT, "tests", "tree"))
    import pages
    home, tree = os.path.join(scratch, "reader"), os.path.join(scratch, "tree")
    for folder in (home, tree + "/bin", tree + "/build-wheel"):
        os.makedirs(folder)
    for path in (wheel, tarball):
        shutil.copy(path, tree + "/build-wheel")
    with open(tree + "/bin/make", "w") as file:
        file.write("#!/bin/sh\n[ \"$*\" = wheel ] || [ \"$*\" = tarball ]\n")
    os.chmod(tree + "/bin/make", 0o755)
    page = next(page for page in pages.read_pages(ROOT) if page.path == "docs/install.md")
    blocks = [block for block in page.blocks if block.mark.startswith("wheel ")]
    checks.ok(len(blocks) == 2, "docs/install.md has two blocks on it")
    for block in blocks:
        for number, line in block.commands():
            code, text = run("sh", "-ec", line, cwd=tree, HOME=home,
                             PATH=tree + "/bin:/usr/bin:/bin")
            checks.ok(code == 0, "docs/install.md:%d: %s" % (number, line), text)


def make_files():
    """Makes them twice: the same tree must give the same bytes."""
    digests = []
    for _ in range(2):
        started = time.monotonic()
        code, text = run("nice", os.path.join(ROOT, "tools", "wheel"), "wheel", "tarball",
                         **{k: v for k, v in os.environ.items() if k.startswith("CCACHE")})
        checks.ok(code == 0, "tools/wheel, in %.0f s" % (time.monotonic() - started), text)
        paths = [os.path.join(ROOT, line.split()[0]) for line in text.splitlines()
                 if line.startswith("build-wheel")]
        digests.append([hashlib.sha256(open(p, "rb").read()).hexdigest() for p in paths])
    checks.ok(digests[0] == digests[1] and len(paths) == 2, "the same tree gives the same bytes")
    return paths


def main():
    wheel, tarball = option("wheel"), option("tarball")
    made = wheel is None
    if made:
        wheel, tarball = make_files()
    bare = "--bare" in sys.argv
    with tempfile.TemporaryDirectory(prefix="muster-wheel-") as scratch:
        venv = os.path.join(scratch, "venv")
        check_file(wheel)
        code, text = run(sys.executable, "-m", "venv", venv)
        checks.ok(code == 0, "a venv of Python %d.%d" % sys.version_info[:2], text)
        before = set(os.listdir(venv + "/bin"))
        code, text = run(venv + "/bin/pip", "install", "--no-index", wheel)
        if "--refused" in sys.argv:
            checks.ok(code != 0 and "not a supported wheel" in text,
                      "pip refuses a wheel for a newer glibc", text)
            tarball = None
        elif checks.ok(code == 0, "pip install --no-index", text):
            check_command(venv + "/bin/muster", "in the venv")
            check_glibc(venv)
            check_run(venv, scratch)
            check_links(venv, os.path.basename(wheel).split("-")[1], scratch)
            check_p2pd(venv, scratch)
            check_elsewhere(venv, wheel, scratch)
            check_openssl(venv, scratch)
            check_etcd(venv, bare)
            check_module(venv, scratch)
            run(venv + "/bin/pip", "uninstall", "-y", "muster")
            checks.ok(set(os.listdir(venv + "/bin")) == before and not find_library(venv),
                      "pip uninstall leaves nothing")
        if tarball is not None:
            check_tarball(tarball, scratch)
        if made:
            check_page(wheel, tarball, scratch)
    print("%d passed, %d failed" % (checks.passed, checks.failed))
    sys.exit(1 if checks.failed else 0)


main()
