"""The sizes and times that tests change, by what they decide.

A test says `let(monkeypatch, bytes_of_a_page=1000)`. Where the product keeps a size is written here
only.
"""

from __future__ import annotations

from typing import Any

import pytest

_CLI = {
    "jobs_listed_as_held_back": "cli.held_back.MAX_LISTED",
    "bytes_of_a_chunk_of_lines": "cli.json_lines.CHUNK_BYTES",
    "jobs_of_a_chunk_of_lines": "cli.json_lines.CHUNK_JOBS",
    "jobs_of_a_pass_of_maintenance": "cli.maintenance.PASS",
}
_FOUNDATIONDB = {
    "jobs_of_a_claim_of_fdb": "engines.foundationdb.claim._MOST_JOBS",
    "claimed_jobs_remembered": "engines.foundationdb.claimed_jobs.MOST",
    "bytes_of_a_commit_of_fdb": "engines.foundationdb.engine._MOST_BYTES",
    "jobs_of_a_commit_of_fdb": "engines.foundationdb.engine._MOST_JOBS",
    "format_of_fdb": "engines.foundationdb.formats.FORMAT",
    "lanes_parked_at_once": "engines.foundationdb.parking.AT_ONCE",
    "lanes_held_back_of_a_claim": "engines.foundationdb.pick.MOST_HELD_BACK",
    "grace_of_versions_ms": "engines.foundationdb.store.VERSION_GRACE_MS",
    "jobs_of_a_step_of_a_recount": "engines.foundationdb.upkeep._STEP",
    "steps_of_a_recount_at_once": "engines.foundationdb.upkeep._UNDER_WAY",
}
_POSTGRES = {
    "claimed_places_remembered": "engines.postgres.claimed_places.MOST",
    "tries_after_a_race": "engines.postgres.engine.MOST_RACES",
    "tries_to_wait_for_a_lock": "engines.postgres.engine.MOST_WAITS",
    "seconds_of_a_read_of_postgresql": "engines.postgres.engine.READ_SECONDS",
    "jobs_read_one_by_one": "engines.postgres.reads._FEW",
    "queues_with_news_remembered": "engines.postgres.unfolded.MOST",
}
_SQL = {
    "jobs_swept_to_explain": "engines.sql.explain._MOST_SWEPT",
    "lanes_that_are_many": "engines.sql.job_lists._MANY_LANES",
    "keys_looked_up_at_once": "engines.sql.reads._MOST_KEYED",
    "books_kept": "engines.sqlite.counters.MOST_KEPT",
    "bytes_of_the_log": "engines.sqlite.disk.LOG_LIMIT_BYTES",
    "milliseconds_until_a_file_is_busy": "engines.sqlite.disk.WAIT_MS",
    "seconds_of_a_read_of_sqlite": "engines.sqlite.engine.READ_SECONDS",
    "steps_between_looks_at_the_time": "engines.sqlite.engine.STEPS_PER_LOOK",
    "oldest_jobs_looked_up_at_once": "engines.sqlite.oldest.AT_ONCE",
    "age_of_the_oldest_jobs_ms": "engines.sqlite.oldest.CLOCK_MS",
    "lanes_changed_before_oldest_are_read_anew": "engines.sqlite.oldest.MOST_CHANGED",
    "lines_of_oldest_jobs": "engines.sqlite.oldest.MOST_LINES",
    "oldest_jobs_remembered": "engines.sqlite.oldest.MOST_REMEMBERED",
    "rounds_for_oldest_jobs": "engines.sqlite.oldest.MOST_ROUNDS",
    "jobs_swept_in_a_step": "engines.sqlite.transaction.SWEPT_PER_STEP",
    "children_told_in_a_step": "engines.sqlite.transaction.TOLD_PER_STEP",
    "seconds_between_looks_at_an_idle_file": "engines.sqlite.watch.IDLE_SECONDS",
    "seconds_between_looks_at_a_file": "engines.sqlite.watch.INTERVAL_SECONDS",
}
_REMOTE = {
    "bytes_of_a_request": "engines.remote.LARGEST_BODY",
    "operations_of_a_request": "engines.remote.MAX_OPS",
}
_SHARDED = {
    "bytes_carried_together": "engines.sharded.carrying._BYTES",
    "jobs_carried_together": "engines.sharded.carrying._TOGETHER",
    "tenants_of_a_page_of_shards": "engines.sharded.catalog.PAGE",
    "seconds_for_the_ring_to_settle": "engines.sharded.engine.PATIENCE",
    "seconds_that_late_jobs_are_kept": "engines.sharded.late.KEEP_SECONDS",
    "seconds_until_a_shard_is_silent": "engines.sharded.late.PROMPT_SECONDS",
    "seconds_until_a_shard_is_away": "engines.sharded.late.SLOW_SECONDS",
    "places_of_jobs_known": "engines.sharded.locating._MOST_KNOWN",
    "tries_to_merge_a_page": "engines.sharded.merged_lists._TRIES",
    "seconds_to_mark_the_shards": "engines.sharded.reshard.MARK_SECONDS",
    "tenants_moved_in_a_step": "engines.sharded.reshard.STEP_TENANTS",
    "names_in_a_ring": "engines.sharded.ring.MAX_NAMES",
    "seconds_between_tries_of_a_shard": "engines.sharded.shard.TRY_SECONDS",
}
_FEATURES = {
    "scans_of_a_bulk_filter": "features.bulk.calls._SCANS",
    "bulk_actions_at_once": "features.bulk.runs.MOST_AT_ONCE",
    "jobs_of_a_step_of_a_bulk_action": "features.bulk.runs.STEP",
    "groups_of_errors": "features.errors.data.MAX_GROUPS",
    "workers_listed": "features.live_workers.routes.MOST_WORKERS",
    "seconds_that_an_overview_is_kept": "features.overview.routes.KEPT_SECONDS",
    "seconds_between_counts_of_rates": "features.rates.counter.FLUSH_SECONDS",
    "jobs_looked_up_for_rates": "features.rates.counter.MOST_LOOKED_UP",
    "tenants_counted_ahead": "features.why.data.MOST_AHEAD",
}
_MODEL = {
    "milliseconds_until_a_queue_is_forgotten": "model.ops.FORGET_MS",
    "queues_of_a_step_of_upkeep": "model.ops.QUEUES_PER_STEP",
    "jobs_read_at_once": "model.queries.JOBS_AT_ONCE",
    "jobs_scanned_for_a_page": "model.queries.MOST_SCANNED",
    "jobs_sorted_for_a_page": "model.queries.MOST_SORTED",
    "bytes_of_a_page": "model.queries.PAGE_BYTES",
}
_QUEUE = {
    "operations_of_a_commit": "queue.commit_line.MAX_BATCH",
    "claims_watched_at_once": "queue.running.MOST_RUNNING",
    "jobs_of_the_first_page_of_a_copy": "queue.store_copy.FIRST_PAGE",
    "jobs_of_a_page_of_a_copy": "queue.store_copy.LARGEST_PAGE",
    "tenants_in_metrics": "observe.metrics.MOST_TENANTS",
}
_SERVER = {
    "jobs_of_a_part_of_a_request": "server.batches.PART",
    "schedules_of_a_bound_token": "server.bound_token.MOST_SCHEDULES",
    "groups_of_a_call_of_firecrawl": "server.dialects.firecrawl.MAX_GROUPS_PER_CALL",
    "events_read_at_once": "server.event_feed.AT_ONCE",
    "seconds_that_a_feed_outlives_its_readers": "server.event_feed.LINGER_SECONDS",
    "readers_of_events": "server.event_feed.MOST_READERS",
    "events_that_a_reader_is_behind": "server.event_feed.MOST_UNREAD",
    "events_remembered": "server.event_feed.RING",
    "seconds_between_wakings_of_a_feed": "server.event_feed.WAKE_SECONDS",
    "seconds_between_beats_of_a_stream": "server.events.BEAT_SECONDS",
    "seconds_between_looks_of_a_stream": "server.events.LOOK_SECONDS",
    "seconds_to_send_an_event": "server.events.SEND_SECONDS",
    "queue_names_known": "server.new_names.MOST_KNOWN",
    "tokens_with_new_names": "server.new_names.MOST_TOKENS",
    "results_weighed": "server.payload_sizes.RESULTS",
    "seconds_until_a_store_is_not_ready": "server.readiness.PATIENCE_SECONDS",
    "requests_of_strangers_at_once": "server.service.STRANGER_BURST",
    "requests_of_strangers_in_a_second": "server.service.STRANGER_RATE",
    "seconds_between_looks_at_responses": "server.traffic.FORGET_SECONDS",
    "bytes_held_for_a_token": "server.traffic.HELD_BYTES",
    "seconds_to_wait_for_room": "server.traffic.ROOM_SECONDS",
    "seconds_of_a_turn": "server.turns.SLICE_SECONDS",
    "seconds_between_looks_for_jobs": "server.waiting.LOOK_SECONDS",
}
_WORKER = {
    "seconds_to_be_let_in": "worker.admission.PATIENCE_SECONDS",
    "seconds_between_beats_of_a_worker": "worker.beats.BEAT_SECONDS",
    "seconds_until_outcomes_are_held_up": "worker.commits.HELD_UP_SECONDS",
    "leases_renewed_at_once": "worker.lease_keeper.MOST_AT_ONCE",
    "seconds_until_a_renewal_is_overdue": "worker.lease_keeper.OVERDUE_SECONDS",
    "where_marks_are_shared": "worker.marks.SHARED",
    "schedules_fired_at_once": "worker.scheduler.MOST_AT_ONCE",
    "steps_of_upkeep_of_a_scheduler": "worker.scheduler.MOST_STEPS",
    "milliseconds_until_a_worker_is_away": "worker.suspects.AWAY_MS",
    "seconds_that_suspects_are_held": "worker.suspects.HOLD_SECONDS",
    "seconds_of_quiet_for_suspects": "worker.suspects.QUIET_SECONDS",
    "seconds_after_the_grace": "worker.worker.AFTER_GRACE_SECONDS",
}
WHERE: dict[str, str] = {
    **_CLI, **_FOUNDATIONDB, **_POSTGRES, **_SQL, **_REMOTE, **_SHARDED, **_FEATURES, **_MODEL,
    **_QUEUE, **_SERVER, **_WORKER,
}  # fmt: skip


def let(monkeypatch: pytest.MonkeyPatch, **sizes: Any) -> None:
    """Change sizes and times until the end of a test."""
    for name, value in sizes.items():
        monkeypatch.setattr(f"tenure.{WHERE[name]}", value)
