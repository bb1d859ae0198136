-- last_id: the highest job id now, so that a long command ends: jobs made while it works are not its own.
--
-- Returns  one id; 0 when there are no jobs.
-- Index    job_pkey, dead_letter_pkey, from their upper ends.
select greatest((select coalesce(max(id), 0) from {schema}.job), (select coalesce(max(id), 0) from {schema}.dead_letter))
