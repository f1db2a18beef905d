#!/bin/sh
# Installs the Debian packages that building and running Weir need and this machine lacks. Works as root and as a
# user with sudo; does nothing, and needs no network, when everything is here.
#   install.sh          for `make up`
#   install.sh kafka    and what a Kafka broker of our own needs (`make test`, `make up WITH_KAFKA=1`): Java and Maven
#   install.sh clients  and what the clients of `make test` need: Node and npm (both words may be given)
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

# The Kafka client is built from source and linked to the system's OpenSSL.
has_openssl_to_build_with() {
    has pkg-config && pkg-config --exists openssl
}

has_java_17() {
    has java && version=$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1) &&
        [ "${version:-0}" -ge 17 ]
}

kafka= clients=
for wish in "$@"; do
    case "$wish" in
        kafka) kafka=1 ;;
        clients) clients=1 ;;
        *) die "unknown wish '$wish': kafka, clients, or nothing" ;;
    esac
done

missing=
has_postgres || missing="$missing postgresql"
has_python_with_venv || missing="$missing python3 python3-venv"
has cc || missing="$missing gcc libc6-dev"
has g++ || missing="$missing g++"
has_openssl_to_build_with || missing="$missing pkg-config libssl-dev"
has curl || missing="$missing curl ca-certificates"
if [ -n "$clients" ]; then
    has node || missing="$missing nodejs"
    has npm || missing="$missing npm"
fi
if [ -n "$kafka" ]; then
    has_java_17 || missing="$missing default-jre-headless"
    has mvn || missing="$missing maven"
    # Makes the certificates of a broker that asks who comes.
    has openssl || missing="$missing openssl"
fi

if [ -n "$missing" ]; then
    has apt-get || die "missing:$missing; there is no apt-get here, please install them by this system's means"
    root=
    if [ "$(id -u)" -ne 0 ]; then
        has sudo || die "missing:$missing; run as root, or install sudo"
        root=sudo
    fi
    say "installing:$missing"
    $root apt-get update -q >&2
    # Where the default Java is older than 17, 17 stands beside it.
    case "$missing:$(apt-cache policy openjdk-17-jre-headless 2>/dev/null)" in
        *default-jre-headless*Candidate:\ [0-9]*)
            missing=$(printf %s "$missing" | sed 's/default-jre-headless/openjdk-17-jre-headless/')
            ;;
    esac
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
