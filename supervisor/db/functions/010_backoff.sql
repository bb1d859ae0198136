-- backoff: how long a job waits before its next run.
--
-- Params   attempts: failures so far (at least 1). base_s, cap_s: seconds, at least 0.
-- Returns  least(cap, base * 2^attempts), spread evenly over half to one and a half times that.
--          The exponent is capped before the power is taken, so no number of attempts overflows.
create or replace function {schema}.backoff(attempts integer, base_s float8, cap_s float8) returns interval
language sql volatile as $fn$
    select make_interval(secs => least(cap_s, base_s * power(2::float8, least(attempts, 62))) * (0.5 + random()))
$fn$;
