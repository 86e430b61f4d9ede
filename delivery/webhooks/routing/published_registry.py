"""The registry as the driver knows it: a snapshot and all later changes. Pure.

Runs on the driver. `subscriptions_db.following` reads it from Postgres, and `delivery.stages` sends it to the executors.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from dataclasses import dataclass

from delivery.registry_model import Revision
from delivery.webhooks.routing.registry_snapshot import Snapshot, SnapshotChanges


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The registry as the driver knows it: a full snapshot, and all later changes as a delta."""

    base_id: str
    """A random id of the full snapshot."""
    base: Snapshot
    changes: SnapshotChanges | None
    """All changes since the full snapshot; None: there are none."""
    confirmed_at: float
    """When Postgres last confirmed that nothing else has changed; monotonic seconds."""
    changed_at: dt.datetime | None = None
    """When the change of `revision` was made, by Postgres's clock. If Postgres loses a change, another change may get the same
    revision. Then this time distinguishes the two changes. None: unknown, or there was no change."""

    @property
    def revision(self) -> Revision:
        """Return the revision of the registry with all changes."""
        return self.base.revision if self.changes is None else self.changes.revision

    def sizes(self) -> dict[str, int]:
        """Return the number of rows by kind (`tenants`, `endpoints`, `subscriptions`), after all changes were applied."""
        sizes = {}
        for kind in ("tenants", "endpoints", "subscriptions"):
            rows, changed = getattr(self.base, kind), {} if self.changes is None else getattr(self.changes, kind)
            sizes[kind] = len(rows) + sum((row is not None) - (row_id in rows) for row_id, row in changed.items())
        return sizes


def advanced(published: Published, changes: SnapshotChanges, now: float, *, changed_at: dt.datetime | None = None) -> Published:
    """Return `published` with later changes of the registry merged into its delta, confirmed at `now`. Pure.

    `changed_at` is the time of the last change. If `changes` ends at the revision of `published`, only `confirmed_at` changes.
    """
    if changes.revision == published.revision:
        return dataclasses.replace(published, confirmed_at=now)
    merged = changes if published.changes is None else published.changes.followed_by(changes)
    return dataclasses.replace(published, changes=merged, confirmed_at=now, changed_at=changed_at)
