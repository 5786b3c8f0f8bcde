//! Slices, and the gradients of slices.
