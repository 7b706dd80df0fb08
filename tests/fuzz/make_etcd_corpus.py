#!/usr/bin/python3
"""Writes the seeds of fuzz_etcd_reply and fuzz_json_split: replies as etcd 3.4 writes them."""
import os

HEADER = '"header":{"cluster_id":"1","member_id":"2","revision":"12","raft_term":"2"}'
KV = '{"key":"YQ==","create_revision":"2","mod_revision":"3","version":"2","value":"Yg==","lease":"7"}'
REPLIES = {
    "range": '{%s,"kvs":[%s,%s],"count":"2"}' % (HEADER, KV, KV),
    "empty": "{%s}" % HEADER,
    "txn": '{%s,"succeeded":true,"responses":[{"response_put":{"header":{"revision":"4"}}},'
           '{"response_range":{"kvs":[%s],"count":"1"}},{"response_delete_range":{"deleted":"1",'
           '"prev_kvs":[%s]}}]}' % (HEADER, KV, KV),
    "grant": '{%s,"ID":"2161342848765400418","TTL":"3"}' % HEADER,
    "kept": '{"result":{%s,"ID":"7","TTL":"3"}}' % HEADER,
    "ttl": '{%s,"ID":"7","TTL":"2","grantedTTL":"3","keys":["YQ=="]}' % HEADER,
    "error": '{"error":"etcdserver: requested lease not found","message":"m\\u003c","code":5}',
    "stream-error": '{"error":{"grpc_code":14,"http_code":503,"message":"no leader",'
                    '"http_status":"Service Unavailable"}}',
    "watch": '{"result":{%s,"events":[{"kv":%s},{"type":"DELETE","kv":{"key":"YQ==",'
             '"mod_revision":"9"},"prev_kv":%s}]}}' % (HEADER, KV, KV),
    "compacted": '{"result":{%s,"canceled":true,"compact_revision":"3"}}' % HEADER,
    "auth": '{%s,"token":"abc.7"}' % HEADER,
    "v2-get": '{"action":"get","node":{"key":"/a","value":"Yg==","modifiedIndex":7,'
              '"createdIndex":7,"expiration":"2030-01-01T00:00:00Z","ttl":5}}',
    "v2-list": '{"action":"get","node":{"key":"/d","dir":true,"nodes":[{"key":"/d/x","dir":true,'
               '"nodes":[{"key":"/d/x/y","value":"\\ud83d\\ude00"}]}]}}',
    "v2-error": '{"errorCode":105,"message":"Key already exists","cause":"/a","index":5}',
}


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    for target, lead in (("etcd_reply", ""), ("json_split", "\x04")):
        folder = os.path.join(here, "corpus", target)
        os.makedirs(folder, exist_ok=True)
        for name, text in REPLIES.items():
            with open(os.path.join(folder, name), "w") as out:
                out.write(lead + text)
    with open(os.path.join(here, "corpus", "json_split", "stream"), "w") as out:
        out.write("\x02" + REPLIES["watch"] + "\n" + REPLIES["compacted"] + REPLIES["empty"] + "\n")


main()
