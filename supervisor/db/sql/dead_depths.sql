-- dead_depths: the queues of the latest dead jobs.
--
-- Params   limit: the most dead letters looked at, latest first.
-- Returns  queue, count of dead ones among them.
-- Locks    none.
-- Index    dead_letter_finished.
select x.queue, count(*)
  from (select d.queue, d.status from {schema}.dead_letter d order by d.finished_at desc limit %(limit)s) x
 where x.status = 'dead'
 group by x.queue
