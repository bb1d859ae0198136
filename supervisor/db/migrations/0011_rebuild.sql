-- 0011_rebuild: what supervisors remember of the indexes that they rebuilt.
--
-- Placeholders  {schema} is the quoted schema name; nothing else is replaced.

-- The last rebuild of an index: written when it begins, and again when it ends. Whoever is killed in between leaves it
-- as begun, which counts as failed. So no index is rebuilt over and over, whichever supervisors come and go.
create table {schema}.rebuild (
    index_name   text collate "C" primary key,
    outcome      text        not null check (outcome in ('begun', 'failed', 'done')),
    began_at     timestamptz not null,
    -- Not before this it is tried again, and how long that was from the beginning or the end.
    next_at      timestamptz not null,
    wait_s       float8      not null,
    before_bytes bigint      not null,
    after_bytes  bigint,
    reason       text
);
