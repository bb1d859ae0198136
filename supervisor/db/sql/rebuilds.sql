-- rebuilds: the last rebuild of each index.
--
-- Returns  index, its outcome (begun: whoever began it was killed, or is at it), seconds until it may be tried again
--          (below 0: since then), how long that wait was, bytes before, bytes after (null: it did not end well).
-- Locks    none.
select r.index_name, r.outcome, extract(epoch from r.next_at - clock_timestamp())::float8, r.wait_s, r.before_bytes, r.after_bytes
  from {schema}.rebuild r
