#!/bin/sh
# Installs the Debian packages that building and running Weir need and this machine lacks. Works as root and as a
# user with sudo; does nothing, and needs no network, when everything is here.
set -eu

say() { printf 'install: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
has() { command -v "$1" >/dev/null 2>&1; }

has_postgres() {
    for bin in /usr/lib/postgresql/*/bin; do
        [ -x "$bin/initdb" ] && [ -x "$bin/postgres" ] && return
    done
    has initdb && has postgres
}

# Debian splits venv off python3; with it comes a pip for the models and for the test clients.
has_python_with_venv() {
    has python3 && python3 -c 'import ensurepip, venv' >/dev/null 2>&1
}

missing=
has_postgres || missing="$missing postgresql"
has_python_with_venv || missing="$missing python3 python3-venv"
has cc || missing="$missing gcc libc6-dev"
has curl || missing="$missing curl ca-certificates"

if [ -n "$missing" ]; then
    has apt-get || die "missing:$missing; there is no apt-get here, please install them by this system's means"
    root=
    if [ "$(id -u)" -ne 0 ]; then
        has sudo || die "missing:$missing; run as root, or install sudo"
        root=sudo
    fi
    say "installing:$missing"
    $root apt-get update -q >&2
    # A private instance is all we use: Debian is kept from creating and starting a cluster of its own.
    case "$missing" in
        *postgresql*)
            if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
                $root mkdir -p /etc/postgresql-common
                echo 'create_main_cluster = false' | $root tee /etc/postgresql-common/createcluster.conf >/dev/null
            fi
            ;;
    esac
    # shellcheck disable=SC2086 -- a list of words
    $root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing >&2
fi

has cargo || die "Rust is missing: install 1.90 or newer from https://rustup.rs, then run this again"
