-- backoff: how long a job waits before its next run.
--
-- Params   attempts: failures so far (at least 1). base_s, cap_s: seconds, at least 0.
-- Returns  least(cap, base * 2^attempts), spread evenly over half to one and a half times that.
--          The exponent is capped before the power is taken and the base before it is multiplied, so
--          neither attempts nor seconds of any size overflow. A cap above 30 days, or NaN, is 30 days.
create or replace function {schema}.backoff(attempts integer, base_s float8, cap_s float8) returns interval
language sql volatile as $fn$
    select make_interval(secs => least(c.cap, least(c.cap, greatest(base_s, 0)) * power(2::float8, least(attempts, 62)))
                                 * (0.5 + random()))
      from (select least(greatest(cap_s, 0), 2592000)) as c (cap)
$fn$;
