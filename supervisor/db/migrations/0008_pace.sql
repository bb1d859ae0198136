-- 0008_pace: a rate of a queue, and when its last jobs started.
--
-- Placeholders  {schema} is the quoted schema name; nothing else is replaced.

-- At most rate_limit jobs of the queue are claimed in any rate_period, evenly, in the whole cluster; null: no rate.
alter table {schema}.queue
    add column rate_limit  integer,
    add column rate_period interval,
    add constraint queue_rate_check check (
        (rate_limit is null) = (rate_period is null)
        and rate_limit between 1 and 1000000 and rate_period between interval '1 second' and interval '366 days');

-- When the last jobs of a queue with a rate were claimed: its row of the highest turn, written by each claim of
-- it (047_pace.sql). A new row each time and the index read from its end, for the reason that place has.
create table {schema}.pace (
    queue    text collate "C" not null,
    turn     bigint           not null,
    -- When the next one is to start, were all to start evenly.
    next_at  timestamptz      not null,
    -- Starts of the last period, oldest first: so many at one time, or until then.
    ats      timestamptz[]    not null,
    counts   integer[]        not null,
    primary key (queue, turn)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
