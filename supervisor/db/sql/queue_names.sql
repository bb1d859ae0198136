-- queue_names: the queues in use, as their lanes are registered.
--
-- Locks    none. The table has a row per (queue, priority) in use.
select distinct l.queue from {schema}.lane l order by l.queue
