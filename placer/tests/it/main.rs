//! Tests of placement and partitioning, on graphs that are given and compared as text.

mod chain;
mod loops;
mod partition;
mod place;
mod rewrite;
mod setter;
mod support;
