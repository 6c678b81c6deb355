"""Which jobs an operation may see.

Jobs that its grant does not allow are not even locked: nobody can delay the work of others by
naming their jobs. Those that it allows are looked up again once they are locked, because a job may
have been replaced by one of the same id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from tenure.core.transaction import J, Owner, Transaction
from tenure.model import ops
from tenure.model.job import JobSpec
from tenure.model.ops import Grant

NamingOp = ops.LeaseOp | ops.JobsOp | ops.ReplayEdited
Named = tuple[Grant | None, str]  # a job that an operation names, and what the operation may see


class Owners:
    """The owners of the jobs that operations with a grant name."""

    def __init__(self, tx: Transaction[J], named: Collection[Named]) -> None:
        self._tx = tx
        self._granted = [job_id for grant, job_id in named if grant is not None]
        self._known: dict[str, Owner] = {}
        self.look_up()

    def look_up(self) -> None:
        """Look up the owners, again if they have been locked since."""
        if self._granted:
            self._known = dict(self._tx.owners(self._granted))

    def add(self, specs: Iterable[JobSpec]) -> None:
        """Add jobs that have been inserted."""
        self._known.update((spec.id, (spec.queue, spec.tenant)) for spec in specs)

    def shows(self, grant: Grant | None, job_id: str) -> bool:
        """Whether an operation may see a job. False if it does not exist, unless there is no
        grant."""
        if grant is None:
            return True
        owner = self._known.get(job_id)
        return owner is not None and grant.allows(*owner)


def load(tx: Transaction[J], batch: Sequence[NamingOp]) -> Owners:
    """Load the jobs that operations name."""
    named = [(op.grant, job_id) for op in batch for job_id in _ids_of(op)]
    owners = Owners(tx, named)
    tx.load(job_id for grant, job_id in named if owners.shows(grant, job_id))
    owners.look_up()
    return owners


def _ids_of(op: NamingOp) -> Sequence[str]:
    return op.ids if isinstance(op, ops.JobsOp) else (op.id,)
