-- pass_gates: let jobs in that waited for others and may go now. See functions/046_gate.sql.
--
-- Params   since: read notes from this time on, in epoch seconds; most: notes taken.
select looked, let_in, next_s, read_ms from {schema}.pass_gates(to_timestamp(%(since)s::float8), %(most)s)
