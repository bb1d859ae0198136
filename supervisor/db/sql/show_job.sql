-- show_job: everything that is known of one job.
--
-- Params   id.
-- Returns  one row of the view jobs; none when the job never was, or is past its time in the history.
-- Locks    none.
-- Index    job_pkey, dead_letter_pkey, history_id.
select id, status, queue, kind, priority, attempts, max_attempts, crashes, max_crashes, suspect, claims,
       locked_by, locked_until, unique_key, extract(epoch from timeout)::float8 as timeout_s,
       created_at, run_at, started_at, finished_at, cancel_at, reason, last_error, errors, payload, headers
  from {schema}.jobs
 where id = %(id)s::bigint
