-- doctor_keys: ordering keys that dead jobs hold.
--
-- Params   limit: the most keys in use that are looked at. some: where counting those behind one stops.
-- Returns  id of the dead job, its key, how many wait behind it.
-- Locks    none.
-- Index    gated_order_held from its start, gated_order_waiting once per such key.
select h.job_id, h.ordering_key,
       (select count(*) from (select from {schema}.gated w where w.gate = 2 and w.ordering_key = h.ordering_key
                               limit %(some)s) x)
  from (select g.job_id, g.ordering_key, g.gate from {schema}.gated g
         where g.ordering_key is not null and (g.gate is null or g.gate in (3, 4) or (g.gate = 9 and g.ordering_hold))
         order by g.ordering_key limit %(limit)s) h
 where h.gate = 9
 order by 3 desc, 1
