-- doctor_ids: how much of its numbers each of the queue's sequences has given out.
--
-- Returns  sequence, share from 0 to 1 (null: this role may not see it), its type, whether it begins anew at its
--          end.
-- Locks    none.
select s.sequencename::text, (s.last_value - s.min_value)::float8 / nullif((s.max_value - s.min_value)::float8, 0),
       s.data_type::text, s.cycle
  from pg_catalog.pg_sequences s
 where s.schemaname = {schema_literal}
 order by 1
