//! Choosing elements by condition.
