//! Datasets as iterators see them.
