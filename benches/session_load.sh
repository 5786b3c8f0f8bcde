#!/bin/sh
# Runs the loads of tests/session_load.rs at full size on server processes of the dist build: 100,000
# asynchronous training steps on two workers and a parameter server, 1,000 sessions, 250 rounds of 200
# concurrent clients, 10,000 kinds of steps. It prints the duration of each load, the memory of the processes
# before it and after each fifth of it, and the growth after the first fifth; it fails if that exceeds 1 %.
set -e
cd "$(dirname "$0")/.."
cargo build --profile dist --bins
export ANABRANCH_PROGRAMS="${CARGO_TARGET_DIR:-target}/dist" ANABRANCH_LOAD=full
exec cargo test --workspace --test session_load -- --test-threads 1 --nocapture
