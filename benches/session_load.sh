#!/bin/sh
# The loads of tests/session_load.rs in full, on server processes of the release build: 100,000 asynchronous training
# steps on two workers and a parameter server, 1,000 sessions, 250 rounds of 200 clients at once, 10,000 kinds of steps.
# It prints how long each took, what the processes held before it and after each fifth of it, and by how much that
# grew after the first; it fails where that is more than 1 %.
set -e
cd "$(dirname "$0")/.."
cargo build --release --bins
export ANABRANCH_PROGRAMS="${CARGO_TARGET_DIR:-target}/release" ANABRANCH_LOAD=full
exec cargo test --workspace --test session_load -- --test-threads 1 --nocapture
