-- 0003_queue: settings of queues, and the places of those with a limit.
--
-- Placeholders  {schema} is the quoted schema name; nothing else is replaced.

-- A row for each queue that has settings; most have none, and pay nothing. Written by the functions of
-- 045_queue.sql, which say who must be told of a change.
create table {schema}.queue (
    name        text collate "C" primary key,
    -- Paused: nothing is claimed from it; what runs goes on.
    paused_at   timestamptz,
    paused_by   text,
    -- The most jobs of it that run at one time in the whole cluster; null: no limit.
    max_running integer,
    -- When the limit was put on where there was none, and whether the runs that had begun before are
    -- counted. Until they are, nothing is claimed from it.
    limited_at  timestamptz,
    counted     boolean     not null default false,
    updated_at  timestamptz not null default clock_timestamp(),
    constraint queue_name_check        check (octet_length(name) between 1 and 128),
    constraint queue_paused_check      check (paused_by is null or paused_at is not null),
    constraint queue_max_running_check check (max_running between 1 and 10000),
    constraint queue_limited_check     check ((max_running is null) = (limited_at is null))
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- Who holds the places of a queue with a limit: its row of the highest turn, written by each claim. A place is
-- taken while the job that it names is leased under the token that it names. However a run ends, its place is
-- free with that, and nobody has to give it back.
--
-- A new row for each claim, not an update: the index is read from its end, so the row that counts comes first
-- however many dead ones an old snapshot elsewhere keeps alive behind it.
create table {schema}.place (
    queue  text collate "C" not null,
    turn   bigint           not null,
    ids    bigint[]         not null,
    tokens bigint[]         not null,
    primary key (queue, turn)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
