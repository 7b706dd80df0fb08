"""Distributed checkpoints (torch.distributed.checkpoint) from processes that have them in memory.

A process that has the state shares it with ``share_checkpoint()``; one that needs it calls
``dcp.load(state_dict, storage_reader=PeerReader(...))``. Nothing is written to a disk, and what is
loaded was verified. Tensors are shared whole; a reader whose tensors are shards of them takes the
parts that its plan names. Nothing that comes from a peer is unpickled.
"""

import io
from typing import Any, Dict, List, Mapping, Optional, Sequence

import torch
from torch.distributed.checkpoint import LoadPlan, LoadPlanner, Metadata, StorageReader
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

from . import state
from .store import Store

__all__ = ["PeerReader", "share_checkpoint"]


def _whole(value: Any) -> Any:
    """A value that can be shared: a tensor that is distributed over processes is gathered."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def share_checkpoint(state_dict: Mapping[str, Any], **options: Any) -> state.Shared:
    """Shares a copy of a state dict for ``PeerReader``. The options are those of
    ``muster.state.share()``: prefix, epoch, step, store, listen and others. Where tensors are
    distributed (DTensor), all processes of their mesh must call it."""
    flat, _ = flatten_state_dict(dict(state_dict))
    return state.share({name: _whole(value) for name, value in flat.items()}, **options)


class PeerReader(StorageReader):  # type: ignore[misc]
    """Reads a distributed checkpoint from peers that share it.

    :param prefix: the name under which they share it
    :param donors: their addresses
    :param store: or the store in which they have announced themselves
    :param timeout: for the whole load, in seconds
    :param options: further options of ``muster.state.load()``, such as ``trust``
    """

    def __init__(
        self,
        prefix: str = "model",
        *,
        donors: Optional[Sequence[str]] = None,
        store: Optional[Store] = None,
        timeout: float = 600.0,
        **options: Any,
    ) -> None:
        self._prefix = prefix
        self._options = dict(options, donors=donors, store=store, timeout=timeout)
        self._tree: Optional[Dict[str, Any]] = None

    def reset(self, checkpoint_id: Any = None) -> None:
        """A new load begins; a checkpoint id is the prefix."""
        if checkpoint_id is not None:
            self._prefix = str(checkpoint_id)
        self._tree = None

    def _load(self) -> Dict[str, Any]:
        if self._tree is None:
            loaded = state.load(prefix=self._prefix, **self._options).tree
            self._tree = dict(loaded)
        return self._tree

    def read_metadata(self, *_args: Any, **_options: Any) -> Metadata:
        """What is in the checkpoint. The load itself happens here."""
        described: Dict[str, Any] = {}
        for name, value in self._load().items():
            if isinstance(value, torch.Tensor):
                described[name] = TensorStorageMetadata(
                    properties=TensorProperties.create_from_tensor(value),
                    size=value.size(),
                    chunks=[ChunkStorageMetadata(torch.Size([0] * value.dim()), value.size())],
                )
            else:
                described[name] = BytesStorageMetadata()
        return Metadata(state_dict_metadata=described)

    def set_up_storage_reader(
        self, _metadata: Metadata, _is_coordinator: bool, *_args: Any, **_options: Any
    ) -> None:
        """Nothing is left to do."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: List[LoadPlan]) -> List[LoadPlan]:
        return plans

    def _read(self, item: ReadItem, planner: LoadPlanner) -> None:
        value = self._load()[item.storage_index.fqn]
        if item.type == LoadItemType.BYTE_IO:
            raw = io.BytesIO()
            torch.save(value, raw)
            raw.seek(0)
            planner.load_bytes(item, raw)
            return
        for dim, (begin, length) in enumerate(zip(item.storage_offsets, item.lengths)):
            value = torch.narrow(value, dim, begin, length)
        target = planner.resolve_tensor(item).detach()
        if target.size() != value.size():
            raise ValueError(
                f"the tensor {item.storage_index.fqn} has the size {tuple(target.size())} here and "
                f"{tuple(value.size())} in the checkpoint of the prefix {self._prefix!r}"
            )
        target.copy_(value)
        planner.commit_tensor(item, target)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Any:
        """Copies what the plan names into place."""
        for item in plan.items:
            self._read(item, planner)
        self._tree = None
        done: Any = torch.futures.Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """An id is the prefix: any text but a path."""
        return "/" not in str(checkpoint_id)
