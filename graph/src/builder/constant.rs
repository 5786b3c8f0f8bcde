//! Sources of values: constants, placeholders, fills, ranges.
