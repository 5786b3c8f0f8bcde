//! Bias vectors added to a channel axis.
