#!/usr/bin/python3
"""Whether each limit is named by a test or a scenario.

usage: limits.py ROOT [--self-test]

A limit is
- a member of a struct of settings (config, limits, settings, terms) in a header whose name ends in
  _max, _min or grace_ms;
- a constant of a header in src/ whose name ends in _MAX or _MIN;
- such a constant of a source in codec, crypto, proto or service, which read what outsiders send.
src/api and src/cli are left out, as they bound what the program itself or its user says.

A test names a member if it sees the header, by its own includes or those of what it includes, and
has the word; for a constant of a header the word is enough. A constant of a source cannot be used in
a test, so there a comment names it: "Meets SILENT_MAX of service/peer/circuit.c."

WAIVED lists those that need no test, by the reason why.
"""
import collections
import os
import re
import sys
import tempfile

FOLDERS = ("codec", "crypto", "proto", "service")
# {reason: limits}; a constant of a source is written file:NAME, without its folder.
WAIVED = {
    "what it is passed on to has a test that meets it":
        "mu_rpc_server_config.eof_grace_ms "
        "mu_store_server_config.connections_max mu_store_server_config.sessions_max "
        "mu_store_server_config.buffer_bytes_max mu_store_server_config.eof_grace_ms "
        "auth.c:NONCES_MAX leased.c:TEXT_LEN_MAX",
    "the largest or smallest number of a format or an enum, not a limit of ours":
        "MU_HM_HALF_MAX MU_HM_STD_MIN MU_TORCH_OPCODE_MAX MU_PRINTABLE_MAX "
        "msg.c:KIND_MAX msg.c:PLACE_MAX msg.c:REASON_MAX msg.c:STATE_MAX params.c:PORT_DIGITS_MAX "
        "progress.c:SPEED_MIN etcd_join.c:COUNTER_MAX",
    "the size of a buffer that holds what other limits bound, or what we write ourselves":
        "MU_STATE_ENTRY_MAX MU_STATE_OFFER_BYTES_MAX MU_STATUS_EVENT_MAX MU_RDZV_WHY_MAX "
        "MU_RDZV_REGISTER_KEY_MAX MU_OUTPUT_PATH_MAX MU_EXEC_SUBJECT_MAX MU_PROC_MARK_MAX "
        "MU_AGENT_PENDING_MAX MU_AGENT_LINE_MAX p2pd_msg.c:MESSAGE_MAX state_encode.c:OPCODE_MAX "
        "hm_state_chunk.c:HEAD_LEN_MAX auth.c:MESSAGE_MAX node.c:KEY_TEXT_MAX relay.c:IP_MAX "
        "etcd.c:KEY_MAX greet.c:GREETING_MAX backing.c:BODY_MAX backing_text.c:SUCCESS_MAX "
        "env.c:ENV_BYTES_MAX env.c:OWN_MAX output.c:PREFIX_MAX output_console.c:AROUND_MAX "
        "output_console.c:NOTE_MAX etcd.c:URL_MAX watch.c:REQUEST_MAX status_page.c:PAGE_MAX "
        "bootstrap.c:ROUND_DIGITS_MAX etcd.c:BODY_MAX etcd_extra.c:BODY_MAX rdzv.c:HOST_PART_MAX "
        "register_store.c:TEXT_BYTES_MAX register_v2.c:TEXT_BYTES_MAX gateway_serve.c:NAMES_MAX "
        "torch_dialect.c:TEXT_BYTES_MAX "
        "rdzv_hub.c:MEMBERS_BYTES_MAX etcd_op.c:NUMBER_MAX etcd_v2.c:NUMBER_MAX etcd_wait.c:KEY_MAX "
        "http_server.c:IN_MAX http_server.c:OUT_MAX tls.c:OUTPUT_MAX validate.c:VALUE_MAX "
        "backing.c:HELD_MAX doctor.c:TEXT_MAX relay.c:ADDRS_MAX relay_hop.c:ADDRS_MAX "
        "autonat.c:ADDRS_MAX autonat.c:REASON_MAX "
        "group.c:KEY_BYTES_MAX group.c:SCHEMA_BYTES_MAX schema.c:SEED_BYTES_MAX schema.c:POOL_MAX matchmaker.c:MESSAGE_BYTES_MAX averager_serve.c:WAITING_BYTES_MAX request.c:ADDRS_MAX agent_call.c:TEXT_MAX etcd_v2.c:TEXT_MAX",
    "another limit, which a test meets, is reached first":
        "state_decode.c:MEMORY_MAX flight.c:TEXTS_MAX tensor.c:NAMES_BYTES_MAX tensor.c:TENSORS_MAX "
        "native_client.c:PARTS_MAX loader.c:WAITING_MAX",
    "beyond it a value is asked for by itself, and nothing is refused":
        "MU_HOLD_VALUE_MAX MU_FOUND_BYTES_MAX",
    "an array of that size in which the newest takes the place of the oldest":
        "MU_RREF_LIVES_MAX MU_HOST_SEEN_MAX guard.c:GUARDS_MAX",
    "how much is done at a time; beyond it there is another turn, and nothing is refused":
        "DHT_SOURCES_MAX MU_DHT_BATCH_MAX MU_TORCH_HINT_MAX MU_UV_READ_MAX MU_UV_CONN_READ_MAX "
        "MU_UV_BEHIND_MAX MU_UV_REST_MAX node.c:SPREAD_MAX node.c:FAILURES_MAX node_join.c:GAPS_MAX "
        "fetch_pick.c:SCAN_MAX backing_local.c:GAP_READS_MAX backing_read.c:RANGES_MAX "
        "node_op.c:TURN_LOSSES_MAX ask.c:HOPS_MAX hear.c:COME_MAX agent_coming.c:SWEEP_MAX node_say.c:NAMES_MAX "
        "loader_place.c:AHEAD_MAX",
    "where one way of doing a thing becomes better than another":
        "MU_RPC_LAND_MIN MU_RPC_LEND_MIN MU_TORCH_LEND_MIN lent.c:LEND_MIN keyspace_entry.c:ROOM_MIN "
        "keyspace_entry.c:ROOM_MAX",
    "how long we wait or rest, or how fast we go":
        "node_time.c:ANSWER_NS_MIN node_time.c:SLEEP_NS_MIN retry.c:GAP_MS_MAX gate.c:RETRY_MS_MAX "
        "gate.c:BURST_BYTES_MIN gate.c:RATE_MAX c10d_etcd.c:LEASE_TTL_S_MAX c10d_etcd.c:TRY_MS_MAX "
        "register_v3_leader.c:WATCH_MS_MAX register_v3_leader.c:GATHER_MS_MAX server.c:STILL_MS_MAX "
        "rdzv_hub.c:DISTANCE_MAX request.c:TIMEOUT_S_MAX MU_AGENT_STACKS_FLIGHT_MS_MAX",
    "how often we try before we say that it failed: our own work, not what others send":
        "MU_RDZV_BOOTSTRAP_ROUNDS_MAX rref_user.c:UNKNOWN_MAX failure.c:TRIES_MAX route.c:AUTHS_MAX "
        "etcd.c:SESSIONS_MAX etcd_op.c:CONFLICTS_MAX loader.c:RESTARTS_MAX relay.c:FAILURES_MAX "
        "kept_plan.c:TRIES_MAX",
    "what the program itself or its operator says":
        "MU_AGENT_SIGNAL_MAX MU_PROGRESS_WITNESSES_MAX MU_ETCD_ENDPOINTS_MAX MU_TLS_NAME_MAX "
        "MU_RDZV_BOOTSTRAP_PREFIX_MAX node_get.c:KEYS_MAX "
        "node_get.c:REFRESHES_MAX node_join.c:PEERS_MAX node_store.c:ITEMS_MAX kad.c:NEAREST_MAX "
        "kad_find.c:SEARCHES_MAX relay.c:PLACES_MAX http_server.c:TOKEN_MAX",
}

STRUCT = re.compile(r"^struct (\w+) \{\n(.*?)^\}", re.M | re.S)
SETTINGS = re.compile(r"(_config|_limits|_settings|_terms)$")
MEMBER = re.compile(r"\b([a-z]\w*(?:_max|_min)|(?:\w+_)?grace_ms)\s*;")
CONSTANT = re.compile(r"^\s*#define (\w+_(?:MAX|MIN))\b", re.M)
MEETS = re.compile(r"\b(\w+_(?:MAX|MIN)) of ([\w/]+\.c)\b")
COMMENT = re.compile(r"/\*.*?\*/", re.S)
INCLUDE = re.compile(r'^\s*#include [<"]([^>"]+)[>"]', re.M)


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def walk(root, folders, endings):
    for folder in folders:
        for where, _, names in os.walk(os.path.join(root, folder)):
            for name in names:
                if name.endswith(endings):
                    yield os.path.relpath(os.path.join(where, name), root)


def key_of(path, struct, name):
    if struct:
        return f"{struct}.{name}"
    return name if path.endswith(".h") else f"{os.path.basename(path)}:{name}"


def find_limits(root):
    """(file, struct, name) of each limit; the struct of a constant is None."""
    limits = []
    for path in sorted(walk(root, ("src", "include"), (".h", ".c"))):
        text = COMMENT.sub(" ", read(os.path.join(root, path)))
        parts = path.split(os.sep)
        if path.endswith(".h"):
            for struct, body in STRUCT.findall(text):
                if SETTINGS.search(struct):
                    limits += [(path, struct, name) for name in MEMBER.findall(body)]
        if parts[0] == "src" and parts[1] not in ("api", "cli") and \
                (path.endswith(".h") or parts[1] in FOLDERS):
            limits += [(path, None, name) for name in CONSTANT.findall(text)]
    return limits


class Tests:
    """The files of tests and scenarios: which words are in them, and which headers they see."""

    def __init__(self, root):
        self.root = root
        self.includes = {}
        self.words = collections.defaultdict(list)
        self.met = set()
        for path in walk(root, ("tests", "sim"), (".c", ".h", ".py")):
            if path.startswith(os.path.join("tests", "tree", "")):
                continue
            text = read(os.path.join(root, path))
            for word in set(re.findall(r"\w+", COMMENT.sub(" ", text))):
                self.words[word].append(path)
            self.met |= {(name, "src/" + source) for name, source in
                         MEETS.findall(re.sub(r"\s*\n \*\s*", " ", text))}

    def resolve(self, path, name):
        for folder in (os.path.dirname(path), "src", "include", "sim", "tests/lib"):
            found = os.path.normpath(os.path.join(folder, name))
            if os.path.exists(os.path.join(self.root, found)):
                return found
        return None

    def seen_by(self, path):
        """All that a file includes, and what these do."""
        seen = set()
        left = [path]
        while left:
            one = left.pop()
            if one not in self.includes:
                names = INCLUDE.findall(read(os.path.join(self.root, one)))
                self.includes[one] = [self.resolve(one, name) for name in names]
            for found in self.includes[one]:
                if found is not None and found not in seen:
                    seen.add(found)
                    left.append(found)
        return seen

    def name(self, path, struct, word):
        if path.endswith(".c"):
            return (word, path.replace(os.sep, "/")) in self.met
        return any(struct is None or path in self.seen_by(test) for test in self.words[word])


def check(root, waived):
    """What is wrong, as sentences."""
    tests = Tests(root)
    limits = find_limits(root)
    faults = []
    for path, struct, name in limits:
        key = key_of(path, struct, name)
        if tests.name(path, struct, name):
            if key in waived and path.endswith(".h"):
                faults.append(f"{path}: a test names {key}; take it off the list of the waived")
        elif key not in waived:
            faults.append(f"{path}: no test names {key}; write one that meets this limit")
    known = {key_of(*limit) for limit in limits}
    faults += [f"{key} is waived, and is no limit" for key in sorted(set(waived) - known)]
    return faults, len(limits)


def self_test():
    with tempfile.TemporaryDirectory() as root:
        def write(path, text):
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(text)

        write("src/cli/b.h", "#define NOT_LOOKED_AT_MAX 1\n")
        write("src/proto/x/b.c", "#define MET_MAX 1\n#define UNMET_MAX 1\n")
        write("src/transport/b.c", "#define NOT_LOOKED_AT_MAX 1\n")
        write("src/codec/a.h", "#define A_MAX 1\n#define B_MAX 2 /* C_MAX */\n"
              "struct mu_a_config {\n    int met_max;\n    int unmet_max; /* of it */\n"
              "    int other_max;\n};\nstruct mu_a {\n    int private_max;\n};\n")
        write("tests/lib/rig.h", '#include "codec/a.h"\n')
        write("tests/unit/one.c", '#include "rig.h"\nmet_max A_MAX /* unmet_max */\n')
        write("tests/unit/two.c", "other_max UNMET_MAX\n/* Meets MET_MAX of\n * proto/x/b.c. */\n")
        faults, count = check(root, {"B_MAX": "why", "A_MAX": "why", "gone_max": "why"})
    expected = ["src/codec/a.h: no test names mu_a_config.unmet_max; write one that meets this limit",
                "src/codec/a.h: no test names mu_a_config.other_max; write one that meets this limit",
                "src/codec/a.h: a test names A_MAX; take it off the list of the waived",
                "src/proto/x/b.c: no test names b.c:UNMET_MAX; write one that meets this limit",
                "gone_max is waived, and is no limit"]
    return [f"expected {expected}, got {faults}"] if faults != expected or count != 7 else []


def main(root, mode=None):
    waived = " ".join(WAIVED.values()).split()
    if mode == "--self-test":
        faults, count = self_test(), 7
    else:
        faults, count = check(root, waived)
        faults += [f"{key} is waived twice" for key, times in
                   collections.Counter(waived).items() if times > 1]
    for fault in faults:
        print(fault)
    print(f"{count} limits, {len(waived)} waived: {len(faults)} faults")
    return 1 if faults or count == 0 else 0


sys.exit(main(*sys.argv[1:]))
