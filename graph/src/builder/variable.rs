//! Variables behind references (TensorFlow 1).
