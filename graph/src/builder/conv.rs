//! Two-dimensional convolution and its gradients.
