"""The rendezvous handler of torchrun's agents.

How torchrun's agent is told what it has no call for:

- *The round is over* (a node was lost or has left, or late nodes are let in): the agent asks
  ``num_nodes_waiting()`` at every ``--monitor-interval``, and restarts its workers when the answer
  is not 0. So the answer is 1 or more from the moment the round is over, and 0 until then: nodes
  that wait are gathered for ``upscale_delay``, and let in together.
- *Another node has failed for good*: its agent closes the run, as after a success. What tells the
  two apart is a key in the round's store. After a failure the answer is 1 as well, and the next
  ``next_rendezvous()`` says that the run is closed and why.
"""

import logging
import re
import sys
from typing import Any, Optional, Tuple

from torch.distributed.elastic.rendezvous import api

from . import _torch_lock
from ._torch_aloud import next_round
from ._torch_gateway import LOOPBACK, AgentStore, Gateway, workers_gateway
from .errors import (
    Closed,
    ConnectionFailed,
    Locked,
    MusterError,
    RendezvousClosed,
    RendezvousTimeout,
)
from .rendezvous import Rendezvous, Round

log = logging.getLogger("muster.torch")

_FAILED_KEY = "muster/torch/failed"

# What muster's errors say, and what torchrun calls it.
_WORDS = {
    ", or MUSTER_ALLOW=CIDR (PyTorch only) or MUSTER_INSECURE=1": " or --rdzv-conf insecure=true",
    "muster.Runtime(token_file=FILE), or MUSTER_TOKEN_FILE":
        "--rdzv-conf token_file=FILE, or MUSTER_TOKEN_FILE",
    "MUSTER_TOKEN_FILE=FILE": "--rdzv-conf token_file=FILE",
    "MUSTER_TOKEN_FILE": "--rdzv-conf token_file=FILE",
    "MUSTER_TLS_CA": "--rdzv-conf ca=FILE",
    "nodes=": "--nnodes ",
    "run_id": "--rdzv-id",
}


def _torch_error(error: MusterError) -> Exception:
    """PyTorch's exception for one of muster's, with the words of torchrun."""
    words = "|".join(map(re.escape, _WORDS))
    text = re.sub(words, lambda found: _WORDS[found.group()], str(error))
    graceful = getattr(api, "RendezvousGracefulExitError", api.RendezvousClosedError)
    if error.name == "MUSTER_ERDZV_GRACEFUL":
        return graceful(text)
    if error.name == "MUSTER_ERDZV_STATE":
        return api.RendezvousStateError(text)
    if isinstance(error, (RendezvousClosed, Closed)):
        return api.RendezvousClosedError(text)
    if isinstance(error, RendezvousTimeout):
        return api.RendezvousTimeoutError(text)
    if error.name == "MUSTER_ERDZV_CONN" or isinstance(error, (ConnectionFailed, Locked)):
        return api.RendezvousConnectionError(text)
    return api.RendezvousError(text)


def _options(config: Any) -> Tuple[Any, Any]:
    """The options of --rdzv-conf. torchrun adds `timeout`, as a number, for its static backend;
    from the command line every value is text."""
    given = {k: v for k, v in config.items() if not (k == "timeout" and isinstance(v, int))}
    return _torch_lock.split(given)


class MusterRendezvousHandler(api.RendezvousHandler):
    """A node of a run, for an agent of torchrun."""

    def __init__(self, params: api.RendezvousParameters) -> None:
        self._run_id: str = params.run_id
        self._runtime, options = _options(params.config)
        endpoint = params.endpoint
        if not endpoint and params.max_nodes == 1:
            endpoint = f"{LOOPBACK}:0"  # a job of one node meets nobody
        try:
            self._rdzv = Rendezvous(
                endpoint,
                params.run_id,
                (params.min_nodes, params.max_nodes),
                local_addr=getattr(params, "local_addr", None),
                config=options,
                runtime=self._runtime,
            )
            self._store = AgentStore(self._runtime)
            if params.max_nodes > 1 and endpoint:
                self._store.prepare(endpoint)
        except MusterError as error:
            if isinstance(error, ValueError):
                raise
            raise _torch_error(error) from error
        self._gateway: Optional[Gateway] = None
        self._round: Optional[Round] = None
        self._closing: Optional[bool] = None  # whether the end of the run is a failure's

    # --- rounds -----------------------------------------------------------------------------------

    def _leave_round(self) -> None:
        gateway, self._gateway, self._round = self._gateway, None, None
        if gateway is not None:
            gateway.close()

    def next_rendezvous(self) -> Any:
        """Waits for the next round. PyTorch 2.4 and later get an object, those before a tuple."""
        why = self._closing_text()
        self._leave_round()
        try:
            round = next_round(self._rdzv)
            self._gateway = gateway = workers_gateway(round, self._runtime)
            store = self._store.of(round)
        except MusterError as error:
            raise _torch_error(error if why is None else RendezvousClosed(why)) from error
        self._round = round
        log.info("round %d: rank %d of %d", round.round, round.rank, round.world_size)
        if not hasattr(api, "RendezvousInfo"):
            return store, round.rank, round.world_size
        info = api.RendezvousStoreInfo(LOOPBACK, gateway.port)
        return api.RendezvousInfo(store, round.rank, round.world_size, info)

    def num_nodes_waiting(self) -> int:
        """How many nodes must be let in: 0 while the round goes on, and more when it is over."""
        if self._round is None:
            return 0
        try:
            why = self._rdzv.ended()
            if why is None:
                return 0
            if self._rdzv.is_closed and not self._has_failed():
                return 0  # another node is done with its part; this one's workers go on
            log.info("round %d is over: %s", self._round.round, why)
            return 1
        except Closed:
            return 0

    def _has_failed(self) -> bool:
        """Whether the run was closed because a node has failed."""
        if self._closing is None and self._round is not None:
            try:
                self._closing = self._round.store.check(_FAILED_KEY, timeout=2)
            except MusterError as error:
                log.info("cannot tell why the run was closed: %s", error)
                self._closing = False
        return bool(self._closing)

    def _closing_text(self) -> Optional[str]:
        """Which node's failure has closed the run, if one has."""
        if not self._closing or self._round is None:
            return None
        try:
            who = self._round.store.get(_FAILED_KEY, wait=False, timeout=2).decode()
        except MusterError:
            return None
        return f"the run is closed: {who} has failed"

    # --- the run ----------------------------------------------------------------------------------

    def get_backend(self) -> str:
        return "muster"

    @property
    def use_agent_store(self) -> bool:
        """The workers' store is the agent's: the gateway, which serves as long as the round."""
        return True

    def get_run_id(self) -> str:
        return self._run_id

    def is_closed(self) -> bool:
        try:
            return self._rdzv.is_closed
        except Closed:
            return True

    def set_closed(self) -> None:
        try:
            self._rdzv.set_closed()
        except MusterError as error:
            raise _torch_error(error) from error

    def shutdown(self) -> bool:
        """Ends this node's part. If it was in a round, the run is over for all nodes, as with
        PyTorch's own handlers; a node that never got in, or timed out, does not end the work of
        the others."""
        done = True
        if self._round is not None:
            self._tell_failure()
            done = self._rdzv.shutdown()
        self._leave_round()
        self._store.close()
        self._rdzv.close()
        return done

    def _tell_failure(self) -> None:
        """The launcher calls shutdown() while the exception passes that ends it."""
        error = sys.exc_info()[1]
        if error is None or self._round is None:
            return
        members = self._round.members
        me = members[self._round.rank] if members else f"the node of rank {self._round.rank}"
        try:
            self._round.store.set(_FAILED_KEY, me, timeout=2)
        except MusterError:
            pass  # the others will notice by themselves
