"""How limits affect counting leases and finding jobs in this engine."""

from __future__ import annotations

from collections.abc import Mapping

from tenure.core import limits
from tenure.core.limits import EVERYTHING, TenantGroup
from tenure.model.ops import Limit


class Rules(limits.Rules):
    """All limits of a queue at one moment."""

    def __init__(self, queue: str, limits: Mapping[TenantGroup, Limit]) -> None:
        super().__init__(queue, limits)
        self.any_concurrency: bool = any(limit.concurrency is not None for limit in limits.values())
        self.hold_back: bool = self.any_concurrency or any(
            limit.paused for limit in limits.values()
        )

    def bounded(self, tenant: str, group: str) -> list[TenantGroup]:
        """The scopes of a job in which leases are counted exactly."""
        if not self.limits:
            return []
        found: list[TenantGroup] = []
        if self.whole.concurrency is not None:
            found.append(EVERYTHING)
        if self.tenant_concurrency(tenant) is not None:
            found.append((tenant, None))
        if self.group_concurrency(tenant, group) is not None:
            found.append((tenant, group))
        return found
