//! Pseudo-random numbers: Philox streams, the same as TensorFlow for the same seeds.
