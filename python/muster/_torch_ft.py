"""A transport for torchft: a replica that is behind gets the state from one that is not."""

import time
from datetime import timedelta
from typing import Any, List, Optional

from torchft.checkpointing import CheckpointTransport as _Base

from . import state
from .errors import NotFound

__all__ = ["CheckpointTransport"]


class CheckpointTransport(_Base):  # type: ignore[misc]
    """torchft's CheckpointTransport over ``muster.state``: what arrives is verified, and nothing is
    unpickled. The state is copied before ``send_checkpoint()`` returns, so that training goes on.

    :param listen: where others connect, as ``muster.state.Donor`` takes it
    :param advertise: how others reach it, if that is not where it listens
    """

    def __init__(self, *, listen: Optional[str] = None, advertise: Optional[str] = None) -> None:
        self._donor = state.Donor(listen=listen, advertise=advertise)
        self._shared: Optional[str] = None

    @staticmethod
    def _prefix(step: int) -> str:
        return f"torchft.{step}"

    def metadata(self) -> str:
        return self._donor.address

    def send_checkpoint(
        self, dst_ranks: List[int], step: int, state_dict: Any, timeout: timedelta
    ) -> None:
        self._forget()
        self._shared = self._prefix(step)
        self._donor.share({"state": state_dict}, prefix=self._shared, step=step)

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> Any:
        end = time.monotonic() + timeout.total_seconds()
        while True:
            left = max(0.1, end - time.monotonic())
            try:
                loaded = state.load(
                    prefix=self._prefix(step), donors=[metadata], timeout=left, progress=False
                )
                return loaded.tree["state"]
            except NotFound:
                if time.monotonic() >= end:
                    raise
                time.sleep(0.02)  # the other replica has not shared this step yet

    def disallow_checkpoint(self) -> None:
        """The state may change from now on; what others load is a copy."""

    def _forget(self) -> None:
        shared, self._shared = self._shared, None
        if shared is not None:
            self._donor.unshare(shared)

    def shutdown(self, wait: bool = True) -> None:
        self._donor.close()
