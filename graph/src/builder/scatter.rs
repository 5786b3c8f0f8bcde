//! Updates of slices of variables.
