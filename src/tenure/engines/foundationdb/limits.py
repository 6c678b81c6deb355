"""The limits of one queue, and what they mean for its tenants and groups."""

from __future__ import annotations

from tenure.ops import Limit

Scope = tuple[str | None, str | None]  # tenant, group
EVERYTHING: Scope = (None, None)


class Rules:
    """All limits of a queue, as of one moment."""

    def __init__(self, queue: str, limits: dict[Scope, Limit]) -> None:
        self.queue = queue
        self.limits = limits
        self.any_concurrency = any(limit.concurrency is not None for limit in limits.values())
        self.hold_back = self.any_concurrency or any(limit.paused for limit in limits.values())

    def of(self, tenant: str | None = None, group: str | None = None) -> Limit:
        return self.limits.get((tenant, group)) or Limit(self.queue, tenant, group)

    @property
    def whole(self) -> Limit:
        """The limit of the queue itself."""
        return self.of()

    def tenant_concurrency(self, tenant: str) -> int | None:
        own = self.of(tenant).concurrency
        return own if own is not None else self.of("*").concurrency

    def group_concurrency(self, tenant: str, group: str) -> int | None:
        if not group:
            return None
        for scope in ((tenant, group), (tenant, "*"), ("*", group), ("*", "*")):
            bound = self.of(*scope).concurrency
            if bound is not None:
                return bound
        return None

    def tenant_paused(self, tenant: str) -> bool:
        return self.of(tenant).paused

    def group_paused(self, tenant: str, group: str) -> bool:
        return bool(group) and (self.of(tenant, group).paused or self.of("*", group).paused)

    def weight(self, tenant: str) -> int:
        return self.of(tenant).weight or self.of("*").weight or 1

    def bounded(self, tenant: str, group: str) -> list[Scope]:
        """Those of a job's scopes in which leases are counted exactly."""
        if not self.limits:
            return []
        found: list[Scope] = []
        if self.whole.concurrency is not None:
            found.append(EVERYTHING)
        if self.tenant_concurrency(tenant) is not None:
            found.append((tenant, None))
        if self.group_concurrency(tenant, group) is not None:
            found.append((tenant, group))
        return found
