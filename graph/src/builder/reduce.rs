//! Reductions over axes.
