-- ended_depths: how many jobs have ended, by how.
--
-- Params   limit: the most rows counted of each; a count of limit means "or more".
-- Returns  one row: dead, cancelled, done (those that the history still has).
-- Locks    none.
select (select count(*) from (select from {schema}.dead_letter where status = 'dead' limit %(limit)s) x),
       (select count(*) from (select from {schema}.dead_letter where status = 'cancelled' limit %(limit)s) x),
       (select count(*) from (select from {schema}.history limit %(limit)s) x)
