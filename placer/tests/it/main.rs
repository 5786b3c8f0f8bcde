//! Placement and partitioning, from text to text.

mod chain;
mod loops;
mod partition;
mod place;
mod rewrite;
mod setter;
mod support;
