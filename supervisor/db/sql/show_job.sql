-- show_job: everything that is known of one job.
--
-- Params   id. most: bytes of storage above which payload, headers and result are left out; null never.
-- Returns  one row of the view jobs, what it returned (result: null where nothing is kept; result_bytes says which), and what
--          payload, headers and result take up; none when the job never was, or is past its time in the history.
-- Locks    none.
-- Index    job_pkey, dead_letter_pkey, history_id, result_pkey.
select id, status, queue, kind, priority, attempts, max_attempts, crashes, max_crashes, suspect, claims,
       locked_by, locked_until, unique_key, extract(epoch from timeout)::float8 as timeout_s,
       created_at, run_at, started_at, finished_at, cancel_at, reason, last_error, errors,
       case when %(most)s::integer is null or pg_column_size(payload) <= %(most)s::integer then payload end as payload,
       case when %(most)s::integer is null or pg_column_size(headers) <= %(most)s::integer then headers end as headers,
       pg_column_size(payload) as payload_bytes, pg_column_size(headers) as headers_bytes,
       waits_for, ordering_key, concurrency_key, rate_key, progress, progress_note, progress_at,
       case when %(most)s::integer is null or pg_column_size(r.value) <= %(most)s::integer then r.value end as result,
       pg_column_size(r.value) as result_bytes, coalesce(r.expires_at, result_until) as result_until
  from {schema}.jobs
  left join {schema}.result r on r.job_id = id and r.expires_at > now()
 where id = %(id)s::bigint
