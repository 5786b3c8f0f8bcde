//! Changes of element type.
