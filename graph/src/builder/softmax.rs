//! Softmax, and cross entropies over it.
