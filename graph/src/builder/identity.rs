//! Ops that pass their inputs through.
