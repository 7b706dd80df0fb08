"""The library, as ctypes sees it: where it is found, its structs, and its functions.

Two views of one library: ``lib`` releases the interpreter's lock during a call and is for functions
that wait; ``fast`` keeps the lock and is for those that return at once. A thread that computes can
keep the lock for milliseconds, and each release is a chance to lose it.

No callback into Python is ever handed to the library: what has ended is taken from a queue
(``_runtime.Queue``). So nothing of the library runs Python code on a thread of its own, and a
process can end, fork or be interrupted at any moment.
"""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import (
    POINTER,
    Structure,
    c_bool,
    c_char,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)

from . import __version__

TYPE_CHECKING = False  # see muster/__init__.py
if TYPE_CHECKING:
    from typing import Any, List, Optional, Sequence, Tuple, Type, TypeVar

    _S = TypeVar("_S", bound=Structure)

TIMEOUT_NEVER = -1
TIMEOUT_DEFAULT = -2
#: More milliseconds count as that many (muster/types.h).
MOST_MS = 2**31 - 1

EINVAL = -10001
ETIMEDOUT = -10004
ECANCELED = -10005
ENOENT = -10006
ECLOSED = -10012
EREMOTE = -10050


# --- where it is ----------------------------------------------------------------------------------


def _candidates() -> List[str]:
    """Where the library may be: where the user says, beside this file, where the system says."""
    named = os.environ.get("MUSTER_LIBRARY")
    if named:
        return [named]
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libmuster.so.0")
    return ([here] if os.path.exists(here) else []) + ["libmuster.so.0"]


def _load() -> Tuple[ctypes.CDLL, ctypes.PyDLL, str]:
    tried = []
    for path in _candidates():
        try:
            return ctypes.CDLL(path), ctypes.PyDLL(path), path
        except OSError as error:
            tried.append(f"{path}: {error}")
    if not os.path.exists(__file__) and not os.environ.get("MUSTER_LIBRARY"):
        raise ImportError(
            f"muster: the module is in an archive ({os.path.dirname(__file__)}), from which the "
            "system can load no library: install the wheel, or name the file in MUSTER_LIBRARY"
        )
    raise ImportError(
        "muster: cannot load libmuster.so.0. Install the wheel of muster, which contains it, or "
        "the system's package libmuster0, or name the file in MUSTER_LIBRARY. Tried "
        + "; ".join(tried)
    )


if not getattr(sys, "_is_gil_enabled", lambda: True)():
    raise ImportError(
        "muster is not tested with free-threaded Python, and relies on the interpreter's lock: start "
        "Python with PYTHON_GIL=1 or -X gil=1"
    )
if not sys.platform.startswith("linux"):
    raise ImportError(f"muster runs on Linux only, not on {sys.platform}")

lib, fast, path = _load()


# --- structs --------------------------------------------------------------------------------------
#
# tests/python/test_layout.py compares each with the compiler's idea of it.


class Bytes(Structure):
    """struct muster_bytes, for bytes that go in; ctypes keeps what it points to."""

    _fields_ = [("data", c_char_p), ("len", c_size_t)]


class Span(Structure):
    """struct muster_bytes and struct muster_value, for bytes that come out."""

    _fields_ = [("data", c_void_p), ("len", c_size_t)]


class Values(Structure):
    """struct muster_values"""

    _fields_ = [("items", POINTER(Span)), ("count", c_size_t)]


class Lock(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("token_file", c_char_p),
        ("cert", c_char_p),
        ("key", c_char_p),
        ("ca", c_char_p),
        ("name", c_char_p),
        ("insecure", c_bool),
        ("allow", POINTER(c_char_p)),
        ("allow_count", c_size_t),
    ]


class RuntimeConfig(Structure):
    _fields_ = [("size", c_size_t), ("lock", POINTER(Lock))]


class Queued(Structure):
    _fields_ = [("kind", c_int), ("object", c_void_p), ("context", c_void_p)]


class StoreConfig(Structure):
    _fields_ = [("size", c_size_t), ("timeout_ms", c_int64), ("connect_timeout_ms", c_int64)]


class StoreRequest(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("verb", c_int),
        ("flags", c_uint32),
        ("keys", POINTER(Bytes)),
        ("key_count", c_size_t),
        ("values", POINTER(Bytes)),
        ("value_count", c_size_t),
        ("number", c_int64),
        ("lease", c_uint64),
        ("timeout_ms", c_int64),
        ("done", c_void_p),
        ("on_change", c_void_p),
        ("context", c_void_p),
        ("queue", c_void_p),
    ]


class Change(Structure):
    _fields_ = [("kind", c_int), ("revision", c_uint64), ("key", Span), ("value", Span)]


class ServerConfig(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("listen", c_char_p),
        ("data_dir", c_char_p),
        ("sync", c_int),
        ("sync_interval_ms", c_uint32),
        ("key_bytes_max", c_uint64),
        ("value_bytes_max", c_uint64),
        ("keys_max", c_uint64),
        ("memory_bytes_max", c_uint64),
        ("buffer_bytes_max", c_uint64),
        ("connections_max", c_uint64),
        ("sessions_max", c_uint64),
        ("session_grace_ms", c_uint32),
        ("drain_ms", c_uint32),
        ("backing", c_char_p),
        ("http", c_char_p),
        ("http_token", c_char_p),
    ]


class RdzvParams(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("backend", c_char_p),
        ("endpoint", c_char_p),
        ("run_id", c_char_p),
        ("nodes_min", c_uint32),
        ("nodes_max", c_uint32),
        ("local_addr", c_char_p),
        ("config", c_char_p),
        ("flags", c_uint32),
    ]


class RdzvInfo(Structure):
    _fields_ = [
        ("store", c_void_p),
        ("store_url", c_char_p),
        ("round", c_uint64),
        ("incarnation", c_uint64),
        ("rank", c_uint32),
        ("world_size", c_uint32),
        ("restarts_left", c_uint32),
        ("bootstrap_addr", c_char_p),
        ("bootstrap_port", c_uint16),
        ("member_count", c_size_t),
        ("members", POINTER(c_char_p)),
        ("member_addrs", POINTER(c_char_p)),
    ]


class RdzvEvent(Structure):
    _fields_ = [
        ("kind", c_int),
        ("waiting", c_uint32),
        ("round", c_uint64),
        ("reason", c_int),
        ("status", c_int),
        ("who", c_char_p),
        ("who_rank", c_uint32),
        ("text", c_char_p),
    ]


class RpcConfig(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("id", c_int32),
        ("listen", c_char_p),
        ("advertise", c_char_p),
        ("timeout_ms", c_int64),
        ("threads", c_uint32),
        ("connect_timeout_ms", c_int64),
        ("reconnect_timeout_ms", c_int64),
        ("message_bytes_max", c_size_t),
        ("retry_budget_percent", c_uint32),
        ("tcp_only", c_bool),
    ]


class RpcWorker(Structure):
    _fields_ = [("name", c_char * 128), ("id", c_int32)]


class RpcPart(Structure):
    """struct muster_rpc_part, for parts that go in."""

    _fields_ = [("data", Bytes), ("device", c_int32)]


class RpcPartOut(Structure):
    """struct muster_rpc_part, for parts that come out."""

    _fields_ = [("data", Span), ("device", c_int32)]


class RpcRetry(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("retries_max", c_int32),
        ("duration_ms", c_int64),
        ("backoff", c_double),
        ("jitter", c_double),
    ]


class RpcRequest(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("to", c_char_p),
        ("to_id", c_int32),
        ("method", c_char_p),
        ("parts", POINTER(RpcPart)),
        ("part_count", c_size_t),
        ("timeout_ms", c_int64),
        ("flags", c_uint32),
        ("retry", POINTER(RpcRetry)),
        ("done", c_void_p),
        ("context", c_void_p),
        ("queue", c_void_p),
    ]


class Tensor(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("dtype", c_int),
        ("rank", c_uint32),
        ("shape", POINTER(c_uint64)),
        ("data", c_void_p),
        ("reserved", c_void_p * 2),
    ]


class StateInfo(Structure):
    _fields_ = [
        ("prefix", c_char * 208),
        ("id", c_char * 65),
        ("epoch", c_uint64),
        ("step", c_uint64),
        ("bytes", c_uint64),
        ("tensors", c_uint64),
        ("priority", c_double),
        ("signer", c_char * 64),
    ]


class StateConfig(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("listen", c_char_p),
        ("advertise", c_char_p),
        ("key", c_char_p),
        ("sign", c_char_p),
        ("allow", POINTER(c_char_p)),
        ("allow_count", c_size_t),
        ("dht", POINTER(c_char_p)),
        ("dht_count", c_size_t),
        ("via", POINTER(c_char_p)),
        ("via_count", c_size_t),
        ("hivemind", c_char_p),
        ("encoding", c_char_p),
        ("slots", c_uint32),
        ("rate_bytes", c_uint64),
        ("replaced_ms", c_uint32),
    ]


class StateSource(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("prefix", c_char_p),
        ("epoch", c_uint64),
        ("step", c_uint64),
        ("priority", c_double),
        ("hidden", c_bool),
        ("metadata", Bytes),
        ("tensors", POINTER(Tensor)),
        ("tensor_count", c_size_t),
        ("released", c_void_p),
        ("context", c_void_p),
    ]


class StateStats(Structure):
    _fields_ = [
        ("downloads", c_uint64),
        ("turned_away", c_uint64),
        ("chunks", c_uint64),
        ("bytes", c_uint64),
        ("active", c_uint32),
        ("hivemind_downloads", c_uint64),
        ("hivemind_completed", c_uint64),
        ("declared", c_uint64),
    ]


class StateProgress(Structure):
    _fields_ = [
        ("info", POINTER(StateInfo)),
        ("bytes", c_uint64),
        ("total", c_uint64),
        ("resumed", c_uint64),
        ("wasted", c_uint64),
        ("bytes_per_s", c_double),
        ("donors", c_uint32),
        ("banned", c_uint32),
        ("lost", c_uint32),
        ("restarts", c_uint32),
        ("hivemind", c_bool),
    ]


class StateRequest(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("prefix", c_char_p),
        ("donors", POINTER(c_char_p)),
        ("donor_count", c_size_t),
        ("store", c_void_p),
        ("dht", POINTER(c_char_p)),
        ("dht_count", c_size_t),
        ("hivemind", c_char_p),
        ("key", c_char_p),
        ("allow", POINTER(c_char_p)),
        ("allow_count", c_size_t),
        ("trust", POINTER(c_char_p)),
        ("trust_count", c_size_t),
        ("id", c_char_p),
        ("by_priority", c_bool),
        ("tensors", POINTER(Tensor)),
        ("tensor_count", c_size_t),
        ("file", c_char_p),
        ("bytes_max", c_uint64),
        ("timeout_ms", c_int64),
        ("idle_ms", c_uint32),
        ("stall_ms", c_uint32),
        ("connect_ms", c_uint32),
        ("listen", c_char_p),
        ("through", c_void_p),
        ("keep_serving", c_bool),
        ("progress_ms", c_uint32),
        ("progress", c_void_p),
        ("context", c_void_p),
        ("queue", c_void_p),
    ]


class StateRow(Structure):
    _fields_ = [
        ("donor", c_char * 300),
        ("info", StateInfo),
        ("have", c_uint64),
        ("chunks", c_uint64),
        ("hivemind", c_bool),
        ("status", c_int),
        ("why", c_char * 256),
    ]


class StateKeepRequest(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("tensors", POINTER(Tensor)),
        ("tensor_count", c_size_t),
        ("metadata", Bytes),
        ("step", c_uint64),
        ("threads", c_uint64),
        ("replicated", c_bool),
        ("background", c_bool),
    ]


class StateKept(Structure):
    _fields_ = [
        ("step", c_uint64),
        ("bytes", c_uint64),
        ("head", Span),
    ]


class AverageConfig(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("prefix", c_char_p),
        ("tensors", POINTER(Tensor)),
        ("tensor_count", c_size_t),
        ("described", POINTER(c_int)),
        ("averager", c_char_p),
        ("encoding", c_char_p),
        ("part_bytes", c_uint64),
        ("mode", c_int),
        ("target_size", c_uint32),
        ("size_min", c_uint32),
        ("group_bits", c_char_p),
        ("matchmaking_ms", c_uint32),
        ("request_ms", c_uint32),
        ("sender_ms", c_uint32),
        ("reducer_ms", c_uint32),
        ("reduce_ms", c_uint32),
        ("through", c_void_p),
        ("key", c_char_p),
        ("listen", c_char_p),
        ("advertise", c_char_p),
        ("allow", POINTER(c_char_p)),
        ("allow_count", c_size_t),
        ("dht", POINTER(c_char_p)),
        ("dht_count", c_size_t),
        ("wire", c_char_p),
        ("power_rank", c_uint32),
        ("power_ratio", c_double),
    ]


class AverageMember(Structure):
    _fields_ = [
        ("peer", c_char * 64),
        ("mode", c_int),
        ("weight", c_double),
        ("sent", c_uint32),
        ("owed", c_uint32),
        ("results", c_uint32),
        ("owns", c_uint32),
        ("why", c_char * 224),
        ("gather", Span),
        ("reserved", c_uint64 * 4),
    ]


class AverageResult(Structure):
    _fields_ = [
        ("key", c_char * 256),
        ("group_id", c_char * 48),
        ("member_count", c_size_t),
        ("members", POINTER(AverageMember)),
        ("position", c_uint32),
        ("led", c_bool),
        ("parts", c_uint32),
        ("parts_local", c_uint32),
        ("bytes_sent", c_uint64),
        ("bytes_received", c_uint64),
        ("matchmaking_ms", c_uint64),
        ("reduce_ms", c_uint64),
    ]


class AverageRequest(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("weight", c_double),
        ("timeout_ms", c_int64),
        ("gather", Bytes),
        ("queue", c_void_p),
        ("context", c_void_p),
    ]


class AverageLook(Structure):
    _fields_ = [
        ("phase", c_int),
        ("key", c_char * 256),
        ("others", c_uint32),
        ("followers", c_uint32),
        ("leader", c_char * 64),
        ("refused_by", c_char * 64),
        ("refusal", c_char * 128),
        ("parts", c_uint32),
        ("parts_done", c_uint32),
        ("reserved", c_uint64 * 4),
    ]


#: The struct of the C API that each class mirrors, for the test of their layouts.
LAYOUTS = {
    "muster_bytes": Bytes,
    "muster_value": Span,
    "muster_values": Values,
    "muster_lock": Lock,
    "muster_runtime_config": RuntimeConfig,
    "muster_queued": Queued,
    "muster_store_config": StoreConfig,
    "muster_store_request": StoreRequest,
    "muster_change": Change,
    "muster_server_config": ServerConfig,
    "muster_rdzv_params": RdzvParams,
    "muster_rdzv_info": RdzvInfo,
    "muster_rdzv_event": RdzvEvent,
    "muster_rpc_config": RpcConfig,
    "muster_rpc_worker": RpcWorker,
    "muster_rpc_part": RpcPart,
    "muster_rpc_retry": RpcRetry,
    "muster_rpc_request": RpcRequest,
    "muster_tensor": Tensor,
    "muster_state_info": StateInfo,
    "muster_state_config": StateConfig,
    "muster_state_source": StateSource,
    "muster_state_keep_request": StateKeepRequest,
    "muster_state_kept": StateKept,
    "muster_state_stats": StateStats,
    "muster_state_progress": StateProgress,
    "muster_state_request": StateRequest,
    "muster_state_row": StateRow,
    "muster_average_config": AverageConfig,
    "muster_average_member": AverageMember,
    "muster_average_result": AverageResult,
    "muster_average_request": AverageRequest,
    "muster_average_look": AverageLook,
}


# --- functions ------------------------------------------------------------------------------------

_P = c_void_p
_PP = POINTER(c_void_p)
_T = c_int64


def _declare(name: str, result: Any, *arguments: Any) -> None:
    for view in (lib, fast):
        try:
            function = getattr(view, name)
        except AttributeError:
            raise ImportError(
                f"muster: {path} has no {name}(): it is of another version than this module"
            ) from None
        function.restype = result
        function.argtypes = list(arguments)


_FUNCTIONS: List[Any] = [
    ("muster_version", c_char_p),
    ("muster_errmsg", c_char_p),
    ("muster_errname", c_char_p, c_int),
    ("muster_strerror", c_char_p, c_int),
    ("muster_value_free", None, POINTER(Span)),
    ("muster_values_free", None, POINTER(Values)),
    ("muster_log_set", None, c_void_p, c_void_p, c_int),
    # runtime and queue
    ("muster_lock_init", None, POINTER(Lock), c_size_t),
    ("muster_runtime_config_init", None, POINTER(RuntimeConfig), c_size_t),
    ("muster_runtime_new_with", c_int, POINTER(RuntimeConfig), _PP),
    ("muster_runtime_free", None, _P),
    ("muster_queue_new", c_int, _P, _PP),
    ("muster_queue_fd", c_int, _P),
    ("muster_queue_take", c_size_t, _P, POINTER(Queued), c_size_t),
    ("muster_queue_wait", c_int, _P, _T),
    ("muster_queue_free", None, _P),
    # store
    ("muster_store_config_init", None, POINTER(StoreConfig), c_size_t),
    ("muster_store_request_init", None, POINTER(StoreRequest), c_size_t),
    ("muster_store_open", c_int, _P, c_char_p, POINTER(StoreConfig), _PP),
    ("muster_store_close", None, _P),
    ("muster_store_set_timeout", c_int, _P, _T),
    ("muster_store_timeout", c_int64, _P),
    ("muster_store_submit", c_int, _P, POINTER(StoreRequest), _PP),
    ("muster_op_wait", c_int, _P),
    ("muster_op_wait_for", c_int, _P, _T),
    ("muster_op_ended", c_bool, _P),
    ("muster_op_cancel", None, _P),
    ("muster_op_free", None, _P),
    ("muster_op_status", c_int, _P),
    ("muster_op_errmsg", c_char_p, _P),
    ("muster_op_number", c_int64, _P),
    ("muster_op_value_count", c_size_t, _P),
    ("muster_op_value", Span, _P, c_size_t),
    ("muster_op_change_next", c_int, _P, POINTER(Change)),
    # server
    ("muster_server_config_init", None, POINTER(ServerConfig), c_size_t),
    ("muster_server_start", c_int, _P, POINTER(ServerConfig), _PP),
    ("muster_server_address", c_char_p, _P),
    ("muster_server_port", c_uint16, _P),
    ("muster_server_http_address", c_char_p, _P),
    ("muster_server_drain", None, _P),
    ("muster_server_free", None, _P),
    # rendezvous
    ("muster_rdzv_params_init", None, POINTER(RdzvParams), c_size_t),
    ("muster_rdzv_open", c_int, _P, POINTER(RdzvParams), _PP),
    ("muster_rdzv_next", c_int, _P, POINTER(RdzvInfo)),
    ("muster_rdzv_is_closed", c_int, _P, POINTER(c_bool)),
    ("muster_rdzv_set_closed", c_int, _P),
    ("muster_rdzv_num_nodes_waiting", c_int, _P, POINTER(c_uint32)),
    ("muster_rdzv_ended", c_int, _P, _T),
    ("muster_rdzv_explain", c_int, _P, _T),
    ("muster_rdzv_backend", c_char_p, _P),
    ("muster_rdzv_run_id", c_char_p, _P),
    ("muster_rdzv_use_agent_store", c_bool, _P),
    ("muster_rdzv_shutdown", c_bool, _P),
    ("muster_rdzv_interrupt", None, _P),
    ("muster_rdzv_close", None, _P),
    ("muster_rdzv_wait_event", c_int, _P, _T, POINTER(RdzvEvent)),
    # rpc
    ("muster_rpc_config_init", None, POINTER(RpcConfig), c_size_t),
    ("muster_rpc_request_init", None, POINTER(RpcRequest), c_size_t),
    ("muster_rpc_retry_init", None, POINTER(RpcRetry), c_size_t),
    ("muster_rpc_start", c_int, _P, POINTER(RpcConfig), _PP),
    ("muster_rpc_shutdown", None, _P),
    ("muster_rpc_name", c_char_p, _P),
    ("muster_rpc_id", c_int32, _P),
    ("muster_rpc_address", c_char_p, _P),
    ("muster_rpc_set_timeout", c_int, _P, _T),
    ("muster_rpc_timeout", c_int64, _P),
    ("muster_rpc_add_worker", c_int, _P, c_char_p, c_int32, c_char_p),
    ("muster_rpc_remove_worker", c_int, _P, c_char_p),
    ("muster_rpc_worker_info", c_int, _P, c_char_p, c_int32, POINTER(RpcWorker)),
    ("muster_rpc_workers", c_size_t, _P, POINTER(RpcWorker), c_size_t),
    ("muster_rpc_join_group", c_int, _P, _P, c_char_p, c_uint32, _T),
    ("muster_rpc_leave_group", c_int, _P, _P, _T),
    ("muster_rpc_follow_round", c_int, _P, POINTER(RdzvInfo), _T),
    ("muster_rpc_call", c_int, _P, POINTER(RpcRequest), _PP),
    ("muster_rpc_future_wait", c_int, _P, _T),
    ("muster_rpc_future_ended", c_bool, _P),
    ("muster_rpc_future_cancel", None, _P),
    ("muster_rpc_future_free", None, _P),
    ("muster_rpc_future_status", c_int, _P),
    ("muster_rpc_future_kind", c_int, _P),
    ("muster_rpc_future_errmsg", c_char_p, _P),
    ("muster_rpc_future_part_count", c_size_t, _P),
    ("muster_rpc_future_part", RpcPartOut, _P, c_size_t),
    ("muster_rpc_all_gather", c_int, _P, POINTER(c_char_p), c_size_t, c_char_p, Bytes, _T,
     POINTER(Values)),
    ("muster_rpc_broadcast", c_int, _P, POINTER(c_char_p), c_size_t, c_char_p, c_char_p, Bytes, _T,
     POINTER(Span)),
    ("muster_rpc_register_queue", c_int, _P, c_char_p, _P, _P),
    ("muster_rpc_in_method", c_char_p, _P),
    ("muster_rpc_in_caller", c_char_p, _P),
    ("muster_rpc_in_part_count", c_size_t, _P),
    ("muster_rpc_in_part", RpcPartOut, _P, c_size_t),
    ("muster_rpc_in_time_left", c_int64, _P),
    ("muster_rpc_in_canceled", c_int, _P),
    ("muster_rpc_reply", None, _P, POINTER(RpcPart), c_size_t),
    ("muster_rpc_fail", None, _P, c_int, c_char_p),
    # state
    ("muster_dtype_name", c_char_p, c_int),
    ("muster_tensor_bytes", c_uint64, POINTER(Tensor)),
    ("muster_state_alloc", c_void_p, c_size_t),
    ("muster_state_free", None, c_void_p),
    ("muster_state_config_init", None, POINTER(StateConfig), c_size_t),
    ("muster_state_source_init", None, POINTER(StateSource), c_size_t),
    ("muster_state_request_init", None, POINTER(StateRequest), c_size_t),
    ("muster_state_open", c_int, _P, POINTER(StateConfig), _PP),
    ("muster_state_close", None, _P),
    ("muster_state_address", c_char_p, _P),
    ("muster_state_address_at", c_bool, _P, c_size_t, c_char_p, c_size_t),
    ("muster_state_transport", c_char_p, _P),
    ("muster_state_share", c_int, _P, POINTER(StateSource)),
    ("muster_state_share_file", c_int, _P, c_char_p, POINTER(StateSource)),
    ("muster_state_set", c_int, _P, c_char_p, c_double, c_bool),
    ("muster_state_shared", c_int, _P, c_char_p, POINTER(StateInfo)),
    ("muster_state_unshare", c_int, _P, c_char_p, c_uint32),
    ("muster_state_announce", c_int, _P, _P, c_char_p, _T),
    ("muster_state_stats", None, _P, POINTER(StateStats)),
    ("muster_state_load_begin", c_int, _P, POINTER(StateRequest), _PP),
    ("muster_state_load_wait", c_int, _P, _T),
    ("muster_state_load_progress", None, _P, POINTER(StateProgress), POINTER(StateInfo)),
    ("muster_state_load_cancel", None, _P),
    ("muster_state_load_end", c_int, _P, _PP),
    ("muster_state_report", c_char_p),
    ("muster_state_copy_info", POINTER(StateInfo), _P),
    ("muster_state_copy_metadata", Span, _P),
    ("muster_state_copy_count", c_size_t, _P),
    ("muster_state_copy_tensor", Tensor, _P, c_size_t),
    ("muster_state_copy_progress", POINTER(StateProgress), _P),
    ("muster_state_copy_free", None, _P),
    ("muster_state_list", c_int, _P, POINTER(StateRequest), POINTER(StateRow), c_size_t),
    ("muster_state_save", c_int, c_char_p, POINTER(Tensor), c_size_t, Bytes),
    ("muster_state_read", c_int, c_char_p, POINTER(Tensor), c_size_t),
    ("muster_state_keep_request_init", None, POINTER(StateKeepRequest), c_size_t),
    ("muster_state_keep", c_int, POINTER(StateKeepRequest)),
    ("muster_state_keep_wait", None),
    ("muster_state_kept", c_int, POINTER(StateKept)),
    ("muster_state_restore", c_int, POINTER(Tensor), c_size_t),
    # average
    ("muster_average_config_init", None, POINTER(AverageConfig), c_size_t),
    ("muster_average_request_init", None, POINTER(AverageRequest), c_size_t),
    ("muster_average_open", c_int, _P, POINTER(AverageConfig), _PP),
    ("muster_average_close", None, _P),
    ("muster_average_address", c_char_p, _P),
    ("muster_average_peer", c_char_p, _P),
    ("muster_average_begin", c_int, _P, POINTER(AverageRequest)),
    ("muster_average_wait", c_int, _P, _T),
    ("muster_average_cancel", None, _P),
    ("muster_average_end", c_int, _P, POINTER(POINTER(AverageResult))),
    ("muster_average_result_counted", c_bool, POINTER(AverageResult), c_size_t),
    ("muster_average_result_digest", c_char_p, POINTER(AverageResult)),
    ("muster_average_result_free", None, POINTER(AverageResult)),
    ("muster_average_look", None, _P, POINTER(AverageLook)),
]
for _row in _FUNCTIONS:
    _declare(*_row)
if fast.muster_version() != __version__.encode():
    raise ImportError(
        f"muster: {path} is of version {fast.muster_version().decode()}, and this module "
        f"({os.path.dirname(os.path.abspath(__file__))}) of {__version__}: install the two together. "
        "The wheel has both; the packages python3-muster and libmuster0 need the same version"
    )


# --- small help -----------------------------------------------------------------------------------

#: The name of each struct that begins with its size, as its `muster_NAME_init` has it.
_INITS = {cls: name for name, cls in LAYOUTS.items() if cls._fields_[0][0] == "size"}


def defaults(struct: Type[_S]) -> _S:
    """A config or request with its defaults."""
    it = struct()
    getattr(fast, _INITS[struct] + "_init")(ctypes.byref(it), ctypes.sizeof(it))
    return it


def text(value: Optional[bytes]) -> str:
    """Text that the library returned. Others may have chosen it, so it need not be UTF-8."""
    return "" if value is None else value.decode("utf-8", "replace")


def data(value: Any) -> bytes:
    """A key or a value as bytes: text is UTF-8, anything with a buffer is copied."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (int, float)):
        raise TypeError(f"expected str or bytes-like, not {type(value).__name__}: use str({value})")
    try:
        # bytes() alone would also take any iterable of numbers.
        return bytes(memoryview(value))
    except TypeError:
        raise TypeError(f"expected str or bytes-like, not {type(value).__name__}") from None


def whole(name: str, value: Any, least: int, most: int) -> int:
    """A number for a field of the library's, of which ctypes would cut what does not fit."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int: not {value!r}")
    number = int(value)
    if not least <= number <= most:
        raise ValueError(f"{name} must be from {least} to {most}: not {number}")
    return number


def encoded(value: Optional[Any]) -> Optional[bytes]:
    """Text for a `const char *`; paths are allowed, None is NULL."""
    if value is None:
        return None
    raw = os.fsencode(value)
    if b"\0" in raw:
        raise ValueError(f"text with a zero byte: {value!r}")
    return raw


def span(value: Span) -> bytes:
    """A copy of bytes that the library lends."""
    return ctypes.string_at(value.data, value.len) if value.len else b""


def many(values: Sequence[bytes]) -> Any:
    """An array of struct muster_bytes."""
    return (Bytes * len(values))(*[Bytes(v, len(v)) for v in values])


def texts(values: Sequence[str]) -> Any:
    """An array of `const char *`, of which none may be NULL."""
    if any(v is None for v in values):
        raise TypeError(f"a list of texts has None in it: {values!r}")
    return (c_char_p * len(values))(*[encoded(v) for v in values])


def milliseconds(seconds: Optional[float], default: int = TIMEOUT_DEFAULT) -> int:
    """A timeout in seconds as the library wants it. None is the default, infinity no bound; a
    timeout that is not 0 is at least a millisecond."""
    if seconds is None:
        return default
    if isinstance(seconds, (str, bytes)) or not hasattr(seconds, "__float__"):
        raise TypeError(f"a timeout must be a number of seconds, or None: not {seconds!r}")
    if seconds != seconds or seconds < 0:
        raise ValueError(f"a timeout must be 0 or more seconds, or None: not {seconds}")
    if seconds == float("inf"):
        return TIMEOUT_NEVER
    if seconds >= MOST_MS / 1000:
        return MOST_MS
    return 0 if seconds == 0 else max(1, round(seconds * 1000))
