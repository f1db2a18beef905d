#!/bin/sh
# The Node clients that the tests drive Weir with, as pinned with their hashes in tests/conformance/node/package-lock.json.
# Does nothing when they are there already.
set -eu
cd "$(dirname "$0")/../.."
source=tests/conformance/node
target=.cache/node-tests

if cmp -s "$source/package-lock.json" "$target/package-lock.json" && [ -d "$target/node_modules" ]; then
    exit 0
fi
echo "setup: installing the Node test clients into $target"
rm -rf "$target"
mkdir -p "$target"
cp "$source/package.json" "$source/package-lock.json" "$target/"
npm ci --prefix "$target" --silent --no-audit --no-fund
