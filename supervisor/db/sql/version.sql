-- version: the schema's version, its functions' digest and the release that installed them. An undefined
-- table (42P01) means that there is none.
select version, functions, functions_by from {schema}.migration order by version desc limit 1
