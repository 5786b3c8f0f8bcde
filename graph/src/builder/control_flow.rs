//! Builders of branches and loops.
