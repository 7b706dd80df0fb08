"""A real etcd cluster on loopback for tests that kill its members. On top of etcd_lib.

    cluster = Cluster(members=3)
    cluster.endpoints            "127.0.0.1:PORT,127.0.0.1:PORT,..." as an etcd:// URL has them
    leader = cluster.leader()    its number; waits until there is one
    cluster.kill(leader)         SIGKILL
    cluster.restart(leader)      from its data, and waits until it answers
    cluster.close()              or `with Cluster() as cluster:`
"""
import base64
import json
import urllib.request

import etcd_lib
import lib


def b64(text):
    return base64.b64encode(text if isinstance(text, bytes) else text.encode()).decode()


class Cluster:
    """`tls`: an etcd_lib.Certificates with a certificate "server". `auth`: (user, password) of the
    one who may do everything; without it nobody may do anything."""

    def __init__(self, members=3, v2=False, tls=None, auth=None):
        self.etcd = etcd_lib.Etcd(members, v2=v2, tls=tls)
        self.endpoints = self.etcd.authority()
        self.count = members
        self.auth = auth
        self.etcd.__enter__()
        if auth:
            self.set_auth(*auth)

    def port(self, i=0):
        """Of member i, for clients."""
        return self.etcd.ports[2 * i]

    def alive(self):
        return [i for i in range(self.count) if self.etcd.members[i].poll() is None]

    def call(self, path, request, member=None, token=None):
        """A request of v3 to a member (default: the first that lives), as JSON both ways."""
        member = self.alive()[0] if member is None else member
        headers = {"Authorization": token} if token else {}
        query = urllib.request.Request(self.etcd.url(member) + path, json.dumps(request).encode(),
                                       headers)
        with urllib.request.urlopen(query, timeout=10) as reply:
            return json.load(reply)

    def get_prefix(self, prefix):
        """What is under a prefix, as {key: value} of bytes."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        reply = self.call("/v3/kv/range", {"key": b64(prefix), "range_end": b64(end)})
        return {base64.b64decode(kv["key"]): base64.b64decode(kv.get("value", ""))
                for kv in reply.get("kvs", [])}

    def set_auth(self, user, password):
        self.call("/v3/auth/user/add", {"name": "root", "password": password})
        if user != "root":
            self.call("/v3/auth/user/add", {"name": user, "password": password})
        self.call("/v3/auth/role/add", {"name": "root"})
        for name in {"root", user}:
            self.call("/v3/auth/user/grant", {"user": name, "role": "root"})
        self.call("/v3/auth/enable", {})

    def find_leader(self):
        for i in self.alive():
            try:
                status = self.call("/v3/maintenance/status", {}, i)
            except OSError:
                continue
            if status.get("leader", "0") != "0" and \
                    status["leader"] == status["header"]["member_id"]:
                return i
        return None

    def leader(self):
        """The number of the member that leads; waits for one. Not with TLS."""
        found = []

        def look():
            i = self.find_leader()
            found[:] = [] if i is None else [i]
            return found

        lib.wait_until(look, "a leader of the cluster")
        return found[0]

    def kill(self, i):
        self.etcd.kill(i)

    def restart(self, i):
        """Starts member i again with what is on its disk."""
        self.etcd.start(i)
        lib.wait_until(lambda: self.etcd.listens(i), "etcd %d to be back" % i)

    def close(self):
        self.etcd.__exit__()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
