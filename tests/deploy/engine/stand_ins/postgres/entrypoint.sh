# What compose.yaml relies on of the official image's start: POSTGRES_USER, _DB and _PASSWORD_FILE, a first start on
# the socket alone while the database is made, an account that is not root.
set -eu
[ "${1:-}" = postgres ] || exec "$@"

if [ "$(id -u)" = 0 ]; then
    if [ -n "${POSTGRES_PASSWORD_FILE:-}" ]; then
        POSTGRES_PASSWORD=$(cat "$POSTGRES_PASSWORD_FILE")
        export POSTGRES_PASSWORD
        unset POSTGRES_PASSWORD_FILE
    fi
    mkdir -p "$PGDATA" /var/run/postgresql
    chown -R postgres: /var/lib/postgresql /var/run/postgresql
    exec setpriv --reuid=postgres --regid=postgres --clear-groups sh "$0" "$@"
fi

if [ ! -s "$PGDATA/PG_VERSION" ]; then
    : "${POSTGRES_PASSWORD:?set POSTGRES_PASSWORD or POSTGRES_PASSWORD_FILE}"
    user=${POSTGRES_USER:-postgres}
    printf '%s\n' "$POSTGRES_PASSWORD" > /tmp/pw
    initdb --pgdata="$PGDATA" --username="$user" --pwfile=/tmp/pw --auth-local=trust --auth-host=scram-sha-256 > /dev/null
    rm -f /tmp/pw
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    printf "listen_addresses = '*'\nunix_socket_directories = '/var/run/postgresql'\n" >> "$PGDATA/postgresql.conf"
    pg_ctl --pgdata="$PGDATA" --wait --silent --options="-c listen_addresses=''" start
    if [ "${POSTGRES_DB:-$user}" != postgres ]; then createdb --host=/var/run/postgresql --username="$user" "${POSTGRES_DB:-$user}"; fi
    pg_ctl --pgdata="$PGDATA" --wait --silent --mode=fast stop
fi
unset POSTGRES_PASSWORD
exec "$@"
