//! Stack ops have no builders: only TensorFlow clients add stacks, for the gradients of loops.
