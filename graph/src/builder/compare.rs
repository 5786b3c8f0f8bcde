//! Comparisons and logic, element by element, with broadcasting.
