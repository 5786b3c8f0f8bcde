#!/bin/sh
# A table of 1 GiB on two parameter servers is saved while a worker's steps go on, ten times: prints the rate of steps by
# themselves and while it is saved, the longest step of each, and the rate of the save. The first argument is another
# size, in MiB, the second another number of rounds; with a third the worker multiplies matrices of so many rows and columns
# in each step, four times.
set -e
cd "$(dirname "$0")/.."
cargo build --release --bins
export ANABRANCH_PROGRAMS="${CARGO_TARGET_DIR:-target}/release" ANABRANCH_SAVE_MIB="${1:-1024}"
export ANABRANCH_SAVE_ROUNDS="${2:-10}" ANABRANCH_SAVE_PRODUCTS="${3:-0}"
exec cargo test --test asynchronous_saves -- --nocapture
