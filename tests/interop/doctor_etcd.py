#!/usr/bin/python3
"""`muster doctor etcd` on real servers: a whole cluster, one that has lost a member, no v2, passwords,
permissions, certificates, and endpoints that are none.

    doctor_etcd.py [MUSTER]
"""
import json
import os
import tempfile

import etcd_lib
import lib
from etcd_cluster import Cluster

OK, FAULTY, USAGE, UNUSABLE = 0, 1, 2, 4


def doctor(url, *args):
    return lib.run_muster("doctor", "etcd", url, *args)


def examine(url):
    """(exit code, the JSON, the findings that are bad, as one text)"""
    code, out, err = doctor(url, "--json", "--timeout", "3")
    report = json.loads(out)
    bad = [f for f in report["findings"] if f["level"] == "bad"]
    return code, report, "\n".join(f["text"] + " -> " + f.get("remedy", "") for f in bad)


def check_cluster(checks):
    with Cluster(members=3, v2=True) as cluster:
        code, report, bad = examine("etcd://%s/place" % cluster.endpoints)
        checks.equal((code, bad), (OK, ""), "a whole cluster is well")
        checks.equal([e["reached"] for e in report["endpoints"]], [True] * 3, "all answer")
        checks.equal(len({e["leader"] for e in report["endpoints"]}), 1, "of one leader")
        checks.equal(len(report["members"]), 3, "three members")
        v2 = (True, "yes") if cluster.etcd.v2 else (False, "unknown")
        checks.ok(all(e["v3"] == "/v3" and (e["v2"], e["write_v2"]) == v2 and
                      e["write_v3"] == "yes" and e["put_ms"] > 0 and e["get_ms"] > 0 and abs(e["clock_ms"]) < 3000
                      for e in report["endpoints"]), "both APIs, times, clocks", report)
        checks.equal(report["use"], "v3", "muster would use v3")
        checks.equal(cluster.get_prefix("/place"), {}, "nothing is left in v3")
        if cluster.etcd.v2:
            _, listing, _ = etcd_lib.kv("etcd://%s/place?api=v2" % cluster.endpoints, "keys")
            checks.ok(b"doctor" not in listing, "nor in v2", listing)
        code, out, _ = doctor("etcd://" + cluster.endpoints)
        text = out.decode()
        checks.ok(code == OK and "3 members" in text and "would use v3" in text and
                  "its leader" in text, "the same for people", text)
        cluster.kill(0 if cluster.leader() != 0 else 1)
        code, report, bad = examine("etcd://" + cluster.endpoints)
        checks.equal(code, FAULTY, "a dead endpoint among living ones is a fault")
        checks.ok("start that member" in bad and report["use"] == "v3", "but it can be used", bad)
        cluster.kill(cluster.alive()[0])
        code, report, bad = examine("etcd://" + cluster.endpoints)
        checks.equal(code, UNUSABLE, "without a majority it cannot be used")
        checks.ok("majority" in bad, "which is said", bad)


def check_plain(checks):
    with etcd_lib.Etcd(v2=False) as server:
        code, report, bad = examine("etcd://" + server.authority())
        checks.equal((code, bad), (OK, ""), "one server without v2 is well")
        texts = [f["text"] for f in report["findings"]]
        missed = [f["remedy"] for f in report["findings"] if "does not offer the v2 API" in f["text"]]
        checks.ok(len(missed) == 1 and "3.6 has no v2" in missed[0] and "etcd-v3" in missed[0],
                  "and v2 is missed", report["findings"])
        checks.ok(any(f["level"] == "warn" and "1 member," in f["text"]
                      for f in report["findings"]), "one member is few", texts)
        other = lib.free_port()
        code, _, bad = examine("etcd://%s,127.0.0.1:%d" % (server.authority(), other))
        checks.ok(code == FAULTY and "remove it from the URL" in bad, "nobody listens there", bad)
        code, _, bad = examine("etcd://%s?tls=true" % server.authority())
        checks.ok(code == UNUSABLE and "-> cacert" in bad, "TLS to a server that has none", bad)
        with etcd_lib.Etcd(v2=False) as second:
            code, _, bad = examine("etcd://%s,%s" % (server.authority(), second.authority()))
            checks.ok(code == FAULTY and "two different clusters" in bad, "two clusters", bad)
    with lib.Muster() as store:
        code, _, bad = examine("etcd://%s:%d" % (lib.HOST, store.port))
        checks.equal(code, UNUSABLE, "a server that is not etcd: " + bad)
    code, _, bad = examine("etcd://no-such-host.invalid")
    checks.ok(code == UNUSABLE and "no host has that name" in bad, "no such host", bad)
    for url in ("tcp://x", "etcd://h?nonsense=1", "etcd://h?user=a&password_file=/none"):
        checks.equal(doctor(url)[0], USAGE, "usage: " + url)
    checks.equal(lib.run_muster("doctor", "etcd")[0], USAGE, "usage: nothing")


def check_password(checks, path):
    def write(name, text):
        with open(os.path.join(path, name), "w") as out:
            out.write(text + "\n")
        return os.path.join(path, name)
    right, wrong = write("right", "secret"), write("wrong", "guess")
    with Cluster(members=1, auth=("root", "secret")) as cluster:
        token = cluster.call("/v3/auth/authenticate", {"name": "root", "password": "secret"})["token"]
        cluster.call("/v3/auth/user/add", {"name": "poor", "password": "secret"}, token=token)
        url = "etcd://" + cluster.endpoints
        code, report, bad = examine("%s?user=root&password_file=%s" % (url, right))
        checks.equal((code, bad), (OK, ""), "the right password")
        checks.ok(any("user root" in f["text"] for f in report["findings"]), "and who we are")
        code, _, bad = examine("%s?user=root&password_file=%s" % (url, wrong))
        checks.ok(code == UNUSABLE and "does not accept the password of user root" in bad,
                  "a wrong password", bad)
        code, _, bad = examine(url)
        checks.ok(code == UNUSABLE and "requires a user and a password" in bad, "no password", bad)
        code, _, bad = examine("%s?user=poor&password_file=%s" % (url, right))
        checks.ok(code == UNUSABLE and "may not write below /muster" in bad and
                  "role grant-permission" in bad, "no permission", bad)


def check_tls(checks, path):
    tls = etcd_lib.Certificates(path)
    tls.issue("server")
    tls.issue("client")
    tls.authority("stranger")
    with etcd_lib.Etcd(v2=False, tls=tls) as server:
        url = "etcd://%s?cacert=" % server.authority()
        own = "&cert=%s&key=%s" % (tls.file("client.pem"), tls.file("client.key"))
        code, report, bad = examine(url + tls.file("ca.pem") + own)
        checks.equal((code, bad), (OK, ""), "TLS with a certificate of ours")
        checks.ok(any(f["subject"] == "TLS" and "client.pem" in f["text"]
                      for f in report["findings"]), "and what it stands on")
        code, _, bad = examine(url + tls.file("stranger.pem") + own)
        checks.ok(code == UNUSABLE and "must have signed" in bad, "a wrong authority", bad)
        code, _, bad = examine(url + tls.file("ca.pem"))
        checks.ok(code == UNUSABLE and "--client-cert-auth" in bad, "no certificate", bad)
        code, _, bad = examine("etcd://" + server.authority())
        checks.ok(code == UNUSABLE and "add tls=true" in bad, "no TLS", bad)


def main():
    checks = lib.Checks()
    check_cluster(checks)
    check_plain(checks)
    with tempfile.TemporaryDirectory(prefix="muster-doctor-") as path:
        check_password(checks, path)
        check_tls(checks, path)
    checks.done()


if __name__ == "__main__":
    main()
