//! Kernels that return the next element of an iterator.

pub use crate::iterator::{get_next, get_next_as_optional};
