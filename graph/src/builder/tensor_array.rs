//! Builders of arrays of tensors.
