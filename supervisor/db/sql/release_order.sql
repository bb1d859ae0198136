-- release_order: dead jobs no longer hold their ordering_key. See functions/046_gate.sql.
select {schema}.release_order(%(ids)s::bigint[])
