#!/bin/sh
# Saves a table of 1 GiB on two parameter servers while a worker runs steps, ten times. It prints the rate of
# steps without and during a save, the longest step of each, and the rate of the save. The first argument is
# the size in MiB, the second the number of rounds. With a third argument the worker multiplies matrices with
# that many rows and columns four times in each step.
set -e
cd "$(dirname "$0")/.."
cargo build --profile dist --bins
export ANABRANCH_PROGRAMS="${CARGO_TARGET_DIR:-target}/dist" ANABRANCH_SAVE_MIB="${1:-1024}"
export ANABRANCH_SAVE_ROUNDS="${2:-10}" ANABRANCH_SAVE_PRODUCTS="${3:-0}"
exec cargo test --test deadlines asynchronous_saves -- --nocapture
