-- pass_gates: let jobs in that waited for others and may go now. See functions/046_gate.sql.
select looked, let_in, next_s, read_ms from {schema}.pass_gates(%(from_at)s::timestamptz, %(most)s)
