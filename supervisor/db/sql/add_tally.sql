-- add_tally: add to the counts of ended jobs by minute, queue and event.
--
-- Params   arrays of one length, a row per position; minutes in seconds since 1970.
-- Locks    the rows added to, in the order of the key: supervisors that add at once wait, but not for each other.
-- Index    tally_pkey.
insert into {schema}.tally (minute, queue, event, n)
select to_timestamp(t.minute), t.queue, t.event, t.n
  from unnest(%(minutes)s::bigint[], %(queues)s::text[], %(events)s::text[], %(counts)s::bigint[]) as t (minute, queue, event, n)
 order by 1, 2, 3
    on conflict (minute, queue, event) do update set n = tally.n + excluded.n
