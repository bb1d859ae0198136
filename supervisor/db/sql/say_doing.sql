-- say_doing: note what workers run, for people.
--
-- Params   ids, doing: bigint[] and jsonb[] of one length, a session and what its worker runs per position.
-- Locks    each session row, in id order, as renew; one that is closed is left alone.
update {schema}.session s
   set doing = live.doing, seen_at = clock_timestamp()
  from (select x.id, said.doing
          from unnest(%(ids)s::bigint[], %(doing)s::jsonb[]) as said (id, doing)
          join {schema}.session x on x.id = said.id
         where x.closed_at is null
         order by x.id for no key update of x) live
 where s.id = live.id
