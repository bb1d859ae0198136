-- show_job: everything that is known of one job.
--
-- Params   id. most: bytes of storage above which payload and headers are left out; null never.
-- Returns  one row of the view jobs, and what payload and headers take up; none when the job never was, or is past its time in the history.
-- Locks    none.
-- Index    job_pkey, dead_letter_pkey, history_id.
select id, status, queue, kind, priority, attempts, max_attempts, crashes, max_crashes, suspect, claims,
       locked_by, locked_until, unique_key, extract(epoch from timeout)::float8 as timeout_s,
       created_at, run_at, started_at, finished_at, cancel_at, reason, last_error, errors,
       case when %(most)s::integer is null or pg_column_size(payload) <= %(most)s::integer then payload end as payload,
       case when %(most)s::integer is null or pg_column_size(headers) <= %(most)s::integer then headers end as headers,
       pg_column_size(payload) as payload_bytes, pg_column_size(headers) as headers_bytes
  from {schema}.jobs
 where id = %(id)s::bigint
