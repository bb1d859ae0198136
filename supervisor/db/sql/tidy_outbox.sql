-- tidy_outbox: retention of what was published and of the inbox. See functions/120_inbox.sql.
select {schema}.tidy_outbox(make_interval(secs => %(keep_sent_s)s), make_interval(secs => %(keep_inbox_s)s),
                            make_interval(secs => %(keep_parked_s)s), %(limit)s)
