#!/bin/sh
# Puts the jars of one real Apache Kafka node into .cache/kafka/lib, from Maven Central, at the versions that
# kafka-pom.xml pins. Does nothing, and needs no network, when they are there already.
set -eu
cd "$(dirname "$0")/../.."
pom=deploy/setup/kafka-pom.xml
home=.cache/kafka
plugin=org.apache.maven.plugins:maven-dependency-plugin:3.8.1

if cmp -s "$pom" "$home/pom.xml"; then
    exit 0
fi
command -v mvn >/dev/null 2>&1 || {
    echo "kafka: Maven is missing; run: deploy/setup/install.sh kafka" >&2
    exit 1
}
echo "kafka: fetching the broker's jars from Maven Central (about 45 MB)"
mkdir -p "$home"
scratch=$(mktemp -d "$home/.fetch.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
mvn --quiet --batch-mode -Dstyle.color=never --file "$pom" "$plugin:copy-dependencies" \
    -DoutputDirectory="$PWD/$scratch/lib" -DincludeScope=runtime >&2 || {
    echo "kafka: Maven could not fetch them; is Maven Central (or a mirror in ~/.m2/settings.xml) reachable?" >&2
    exit 1
}
rm -rf "$home/lib" "$home/pom.xml"
mv "$scratch/lib" "$home/lib"
# Written last: what was cut short is fetched again.
cp "$pom" "$home/pom.xml"
echo "kafka: fetched ($(du -sh "$home/lib" | cut -f1) in $home/lib)"
