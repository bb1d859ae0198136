-- set_queue: set limits of a queue; null: as it is. See functions/045_queue.sql.
select {schema}.set_queue(%(queue)s, max_running => %(max_running)s, rate_limit => %(rate_limit)s,
                          rate_period => make_interval(secs => %(rate_period_s)s))
