#!/bin/sh
# Makes the secrets of compose.yaml where they are not there yet: each a file, readable by the one account that needs it.
#
#   /secrets/db_password          postgres reads it as root, before it becomes another user
#   /secrets/database_url         supervisor, migrate, dashboard
#   /secrets/dashboard_token      dashboard
#   /secrets/grafana_password     grafana
#
# Never changes one that is there: the database keeps the password it was made with. To bring your own, put
# them into the volume before, or set SECRETS_DIR to a directory that has them.
set -eu
umask 077
cd /secrets

word() { od -An -v -tx1 -N24 /dev/urandom | tr -d ' \n'; }

make() { # NAME UID: standard input becomes the file, if there is none
    if [ ! -s "$1" ]; then
        cat > "$1.new"
        chmod 0400 "$1.new"
        chown "$2:$2" "$1.new"
        mv "$1.new" "$1"
        echo "made $1"
    fi
}

word | make db_password 0
[ -s database_url ] || echo "postgresql://supervisor:$(cat db_password)@db:5432/supervisor" | make database_url 10001
word | make dashboard_token 10001
word | make grafana_password 472
chmod 0755 .
