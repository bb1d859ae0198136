-- recent_dead: the jobs that died last.
--
-- Params   limit: how many.
-- Returns  id, kind, queue, reason, attempts, crashes, finished_at, last_error; latest first.
-- Locks    none.
-- Index    dead_letter_finished.
select d.id, d.kind, d.queue, d.reason, d.attempts, d.crashes, d.finished_at, left(d.last_error, 2000) as last_error
  from {schema}.dead_letter d
 where d.status = 'dead'
 order by d.finished_at desc
 limit %(limit)s
