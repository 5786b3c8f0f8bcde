#!/bin/sh
# The load of tests/session_load.rs in full: 1,000 sessions, 200 clients at once, 10,000 kinds of steps. It prints
# how long each took and what the server processes held before and after.
cd "$(dirname "$0")/.." && ANABRANCH_LOAD=10 exec cargo test --test session_load -- --test-threads 1 --nocapture
