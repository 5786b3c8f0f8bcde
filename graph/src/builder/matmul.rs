//! Products of matrices and of batches of them.
