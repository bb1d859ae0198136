-- note_rebuild: a rebuild began or ended, and may be tried again after a while.
--
-- Params   index_name, outcome (begun, failed, done), wait_s: from now, before_bytes, after_bytes (null: not known),
--          reason (null: none).
insert into {schema}.rebuild as r (index_name, outcome, began_at, next_at, wait_s, before_bytes, after_bytes, reason)
select %(index_name)s, %(outcome)s, clock_timestamp(), clock_timestamp() + make_interval(secs => %(wait_s)s), %(wait_s)s,
       %(before_bytes)s, %(after_bytes)s, %(reason)s
    on conflict (index_name) do update
   set outcome = excluded.outcome,
       began_at = case when excluded.outcome = 'begun' then excluded.began_at else r.began_at end,
       next_at = excluded.next_at,
       wait_s = excluded.wait_s,
       before_bytes = excluded.before_bytes,
       after_bytes = excluded.after_bytes,
       reason = excluded.reason
