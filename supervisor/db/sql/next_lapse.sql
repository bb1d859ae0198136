-- next_lapse: when the first lease of others lapses unless it is renewed.
--
-- Params   parent: whose sessions are left out.
-- Returns  seconds from now; null: there is none.
select extract(epoch from min(s.expires_at) - clock_timestamp())::float8
  from {schema}.session s
 where s.closed_at is null and s.parent is distinct from %(parent)s
