//! Picking and placing elements by index.
