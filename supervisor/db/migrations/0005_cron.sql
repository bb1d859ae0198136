-- 0005_cron: entries of cron, and who defines them.
--
-- Placeholders  {schema} is the quoted schema name; nothing else is replaced.
-- Functions     functions/085_cron.sql.

-- One row per entry. Ticks are computed by supervisors (supervisor/cron.py); here is which one is the next.
create table {schema}.schedule (
    name         text collate "C" primary key,
    kind         text collate "C" not null,
    -- As its handler defines it.
    cron         text        not null,
    tz           text        not null,
    -- How many missed ticks are fired at most; 0: none.
    missed       integer     not null,
    queue        text        not null,
    priority     integer     not null,
    max_attempts integer     not null,
    max_crashes  integer     not null,
    unique_key   text,
    payload      jsonb       not null,
    -- As an operator has set it; null: as defined. A new definition leaves this alone.
    set_cron     text,
    set_tz       text,
    set_missed   integer,
    set_at       timestamptz,
    set_by       text,
    paused_at    timestamptz,
    paused_by    text,
    -- No running supervisor defines it any more: it is not fired.
    retired_at   timestamptz,
    -- Grows with each change of when it is due: what was computed before matches nothing.
    revision     bigint      not null default 1,
    -- The first tick that is not fired; null: to be computed, from now on.
    next_at      timestamptz,
    -- Why it cannot be computed.
    problem      text,
    fired        bigint      not null default 0,
    skipped      bigint      not null default 0,
    last_tick    timestamptz,
    last_at      timestamptz,
    last_job     bigint,
    created_at   timestamptz not null default clock_timestamp(),
    updated_at   timestamptz not null default clock_timestamp(),
    constraint schedule_name_check   check (octet_length(name) between 1 and 300),
    constraint schedule_cron_check   check (octet_length(cron) between 1 and 200 and octet_length(set_cron) between 1 and 200),
    constraint schedule_tz_check     check (octet_length(tz) between 1 and 100 and octet_length(set_tz) between 1 and 100),
    constraint schedule_missed_check check (missed between 0 and 1000 and set_missed between 0 and 1000),
    constraint schedule_paused_check check (paused_by is null or paused_at is not null)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- The entries of a kind as some supervisor defines them, and until when it surely does. During a deploy a kind
-- has two such rows; the one that was seen first last counts, so the old release cannot take its word back.
create table {schema}.schedule_version (
    kind       text collate "C" not null,
    digest     text             not null,
    entries    jsonb            not null,
    first_seen timestamptz      not null,
    expires_at timestamptz      not null,
    primary key (kind, digest)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
