"""What etcd 3.5 and 3.6 share: every test of etcd in this tree with one version of it.

etcd 3.6 has no API v2: what is about that is skipped there, and instead it is checked that whoever
asks for it is told so, with the remedy."""
import os
import subprocess

from peers_lib import Checks, SHORT, program
from programs import chosen, run_program
import etcd_lib
from lib import muster_path, run_muster

INTEROP = ["etcd_kv", "doctor_etcd", "etcd_backed", "rdzv_etcd", "etcd_store", "rdzv_etcd_v2",
           "rdzv_etcd_old"]
NO_V2 = ("v2 API", "3.6", "etcd-v3")


def check_words(checks):
    """What a user of 3.6 is told who asks for API v2."""
    with etcd_lib.Etcd(v2=False) as etcd:
        store = "etcd://%s/job?api=v2" % etcd.authority()
        asked = {"muster kv": ("kv", "--store", store, "get", "a")}
        for backend in "etcd", "etcd-v2":
            common = ("--rdzv-backend", backend, "--rdzv-endpoint", etcd.authority(), "--rdzv-id", "x")
            asked["rdzv join, " + backend] = ("rdzv", "join", *common, "--nnodes", "1")
            asked["rdzv status, " + backend] = ("rdzv", "status", *common)
            asked["run, " + backend] = ("run", *common, "--nnodes", "1", "--no-python", "true")
        for what, args in asked.items():
            code, _, err = run_muster(*args)
            checks.ok(code != 0 and all(words in err for words in NO_V2),
                      "%s says that there is no v2 API, and what to use" % what, (code, err[-400:]))


def main(peer):
    checks = Checks()
    own = os.path.dirname(program(peer, "etcd"))
    environment = {"PATH": own + ":" + os.environ["PATH"]}
    os.environ.update(environment)
    version = subprocess.run(["etcd", "--version"], stdout=subprocess.PIPE, text=True, check=False).stdout
    if not checks.ok("etcd Version: " + peer.split("-")[1] in version, "the etcd that is found is " + peer, version):
        checks.done()
    for name in chosen(INTEROP):
        run_program(checks, "%s, %s" % (peer, name), "tests/interop/%s.py" % name, muster_path(),
                    environment=environment)
    if not SHORT:
        run_program(checks, peer + ", gen2_client_backed", "tests/interop/gen2_client.py",
                    muster_path(), "--backed", environment=environment)
        run_program(checks, peer + ", docs_etcd on hosts", "tests/hosts/docs_etcd.py", muster_path(),
                    environment=environment)
    if not etcd_lib.has_v2():
        check_words(checks)
    checks.done()
