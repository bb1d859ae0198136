-- lanes: every known lane and its published mark.
--
-- Locks    none. The table has a row per (queue, priority) in use.
select queue, priority, to_char(mark_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.US"+00"'), mark_id from {schema}.lane
