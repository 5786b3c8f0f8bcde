//! Ops that ask for shapes, or give the same elements another shape.
