#!/bin/sh
# A table of 1 GiB on two parameter servers is saved while a worker's steps go on, thrice: prints the rate of steps by
# themselves and while it is saved, the longest step of each, and the rate of the save. The first argument is another
# size, in MiB.
set -e
cd "$(dirname "$0")/.."
cargo build --release --bins
export ANABRANCH_PROGRAMS="${CARGO_TARGET_DIR:-target}/release" ANABRANCH_SAVE_MIB="${1:-1024}"
exec cargo test --test asynchronous_saves -- --nocapture
