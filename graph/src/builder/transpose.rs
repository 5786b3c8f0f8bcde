//! Reordering and repeating elements: transpose, tile, pad, reverse.
