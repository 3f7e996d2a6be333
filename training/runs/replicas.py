"""The processes of a training: each has a replica of the model, a share of each batch, and takes the same steps.

`torchrun` starts them, with gloo on CPUs and NCCL on GPUs. The first one leads: it alone reads the index, writes
checkpoints and registers the model. The others follow it. A process that was not started by torchrun is alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from scannery.training.errors import ReplicaLostError

if TYPE_CHECKING:
    import torch
    from torch.distributed.distributed_c10d import Store

__all__ = ["Replicas"]

TIMEOUT = timedelta(days=1)
"""What followers wait for the leader, which embeds samples between two models. An end of it ends them at once."""
JOIN_TIMEOUT = timedelta(minutes=10)
"""What processes wait for others to start."""
_LAUNCHED = "TORCHELASTIC_RUN_ID"


@dataclass(frozen=True, slots=True)
class Replicas:
    """The processes of a training, seen by one of them. All call each method together, but for `share_of`."""

    rank: int = 0
    """Number of this process; 0 leads."""
    count: int = 1
    """Number of processes."""

    @classmethod
    @contextmanager
    def joined(cls) -> Iterator[Replicas]:
        """Give the processes that torchrun started, of which this is one; alone without torchrun.

        Where the context of the leader ends without an exception, `shared` of the others returns None.
        """
        if int(os.environ.get("WORLD_SIZE", "1")) == 1 or _LAUNCHED not in os.environ:
            yield cls()
            return
        import torch

        has_cuda = torch.cuda.is_available()
        if has_cuda:  # "cuda" is then the GPU of this process
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        with _together():
            store, rank, count = _met()
            torch.distributed.init_process_group(
                "cpu:gloo,cuda:nccl" if has_cuda else "gloo",
                store=store, rank=rank, world_size=count, timeout=TIMEOUT,
            )  # fmt: skip
        replicas = cls(rank, count)
        yield replicas
        if replicas.leads:
            with suppress(ReplicaLostError):  # all is done: those that ended miss nothing
                replicas.shared()
        torch.distributed.destroy_process_group()

    @property
    def leads(self) -> bool:
        """Whether this process leads."""
        return self.rank == 0

    def shared(self, value: Any = None) -> Any:
        """Return the leader's value in all processes; it must be one of JSON."""
        if self.count == 1:
            return value
        import torch

        data = bytearray(json.dumps(value).encode()) if self.leads else bytearray()
        size = torch.tensor([len(data)])
        with _together():
            torch.distributed.broadcast(size, 0)
            content = torch.frombuffer(data, dtype=torch.uint8) if self.leads else _empty(size.item())
            torch.distributed.broadcast(content, 0)
        return json.loads(content.numpy().tobytes())

    def shared_tensors(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the leader's tensors by name in all processes; those of others are copies, on the CPU."""
        if self.count == 1:
            return dict(tensors)
        import torch

        listed = [(name, [*value.shape], str(value.dtype)) for name, value in tensors.items()]
        copies = {}
        for name, shape, dtype in self.shared(listed):
            if self.leads:
                copies[name] = tensors[name].detach().cpu().contiguous()
            else:
                copies[name] = torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
            with _together():
                torch.distributed.broadcast(copies[name], 0)
        return copies

    def any(self, is_so: bool) -> bool:
        """Return whether it is so in any process."""
        if self.count == 1:
            return is_so
        import torch

        flag = torch.tensor([int(is_so)])
        with _together():
            torch.distributed.all_reduce(flag)
        return bool(flag.item())

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum of the tensors of all processes, of equal shapes.

        Its gradient is that of the tensor: all processes compute the same of the sum.
        """
        if self.count == 1:
            return tensor
        from scannery.training.runs.replica_sum import ReplicaSum

        with _together():
            return ReplicaSum.apply(tensor)  # type: ignore[no-any-return, no-untyped-call]

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Set the gradients of parameters to the sums of those of all processes, where none counts as 0."""
        if self.count == 1:
            return
        import torch

        parameters = [*parameters]
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
        total = torch.cat([each.flatten() for each in gradients])
        with _together():
            torch.distributed.all_reduce(total)
        sizes = [each.numel() for each in parameters]
        parts = total.split(sizes)  # type: ignore[no-untyped-call]
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)

    def share_of(self, costs: Sequence[float]) -> list[int]:
        """Return the numbers of the tasks that this process has, of tasks with these costs, ascending.

        The largest are dealt first, each to the process with the least: at most a third above the best deal (Graham,
        "Bounds on Multiprocessing Timing Anomalies", 1969).
        """
        loads = [0.0] * self.count
        share = []
        for number in sorted(range(len(costs)), key=lambda number: -costs[number]):
            least = loads.index(min(loads))
            loads[least] += costs[number]
            if least == self.rank:
                share.append(number)
        return sorted(share)


def _met() -> tuple[Store, int, int]:
    """Return the store of this attempt when all processes have come to it, the rank of this one, and their number.

    torchrun keeps one store for all attempts (`--max-restarts`): there, the first to come would wait for a process of
    the attempt before.
    """
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    shared, rank, count = next(rendezvous("env://", timeout=JOIN_TIMEOUT))
    store = PrefixStore(f"scannery-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", shared)
    store.set(f"come-{rank}", "")
    store.wait([f"come-{number}" for number in range(count)], JOIN_TIMEOUT)
    return store, rank, count


def _empty(size: Any) -> torch.Tensor:
    import torch

    return torch.empty(int(size), dtype=torch.uint8)


@contextmanager
def _together() -> Iterator[None]:
    """Tell of another process that ended while this one waited for it."""
    try:
        yield
    except RuntimeError as error:  # of gloo, and of NCCL
        first = (str(error).strip().splitlines() or [""])[0]
        raise ReplicaLostError(
            f"another process of this training ended, or cannot be reached; the same command goes on ({first})"
        ) from error
