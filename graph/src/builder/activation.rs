//! Activation functions of neural networks.
