//! Two-dimensional pooling and its gradients.
