#!/bin/sh
# Writes requirements.txt anew from requirements.in: newest compatible versions, hashes of every
# file of each, no index named. Needs uv on the PATH. Afterwards build and verify a mirror.
set -eu
cd "$(dirname "$0")"
uv pip compile --generate-hashes --no-header --no-emit-index-url --python-version 3.13 \
    --python-platform linux --only-binary :all: --overrides overrides.txt --upgrade \
    -o requirements.txt requirements.in
