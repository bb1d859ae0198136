-- version: the schema's version. An undefined table (42P01) means that there is none.
select max(version) from {schema}.migration
