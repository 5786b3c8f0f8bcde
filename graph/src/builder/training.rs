//! Optimizer updates.
