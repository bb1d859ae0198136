-- 0002_seen: what people look at: how much was done when, and what each worker runs.
--
-- Placeholders  {schema} is the quoted schema name; nothing else is replaced.

-- How many jobs ended how, by minute: what throughput and error lines are drawn from. Supervisors add what
-- their workers counted, a few rows a minute; counting finished jobs instead would read millions.
create table {schema}.tally (
    minute timestamptz      not null,
    queue  text collate "C" not null,
    -- done, failed, dead, crashed, cancelled, ...: an outcome's word.
    event  text collate "C" not null,
    n      bigint           not null,
    primary key (minute, queue, event),
    constraint tally_n_check check (n >= 0)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- What a worker runs, as its parent saw it on the scoreboard: written with a renewal, and each second
-- while somebody looks. Not the truth of anything: the truth of a lease is job.lease.
alter table {schema}.session
    add column doing   jsonb,
    add column seen_at timestamptz;
