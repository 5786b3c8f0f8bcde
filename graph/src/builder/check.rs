//! Assertions and messages.
