#!/bin/bash
# Create the logins and the database, once, when Postgres initialises itself: neither the job nor the API is a superuser.
# docs/operations.md says what each login may do.
set -eu

# password FILE: of a URL postgresql://LOGIN:PASSWORD@…; letters and digits, as make-secrets writes them.
password() { sed 's|^[^:]*://[^:]*:\([A-Za-z0-9]*\)@.*|\1|' "$1"; }

psql --quiet --set=ON_ERROR_STOP=1 --username="$POSTGRES_USER" --dbname=postgres \
    --set=owner="$(password /run/secrets/database-url)" --set=api="$(password /run/secrets/api-database-url)" <<'SQL'
create role fanout_api;
create role fanout_operator;
create role fanout login password :'owner';
create role fanout_serve login password :'api' in role fanout_api, fanout_operator;
create database fanout owner fanout;
SQL
