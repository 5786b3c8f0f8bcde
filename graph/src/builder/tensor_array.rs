//! Tensor array ops have no builders.
