-- look: tell every supervisor that somebody looks, so that they write at once what their workers run.
--
-- Sends    a notification that says for how many seconds. To supervisors of a release that does not know it,
--          it is the cancelling of no job, which changes nothing.
select pg_notify({channel}, json_build_object('look', %(seconds)s::float8, 'cancel', 0, 'session', 0, 'claims', 0)::text)
