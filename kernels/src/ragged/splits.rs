//! Checks of row splits, the positions at which the rows of a ragged tensor begin and end.

use device::{Result, invalid};

/// Checks that the row splits never descend, and that they lie between 0 and `below`.
pub(super) fn check_sorted(splits: &[i64], below: usize) -> Result<()> {
    if splits.is_empty() {
        invalid!("Ragged splits may not be empty");
    }
    if splits.first().is_some_and(|&first| first < 0) || splits.windows(2).any(|pair| pair[1] < pair[0]) {
        invalid!("Ragged splits must be sorted");
    }
    if splits.last().is_some_and(|&last| last > below as i64) {
        invalid!("Ragged splits must not point past values");
    }
    Ok(())
}

/// Checks that the row splits never descend, begin with 0, and end with `count`, the number of values.
pub(crate) fn check_whole(splits: &[i64], count: usize) -> Result<()> {
    check_sorted(splits, count)?;
    match (splits.first(), splits.last()) {
        (Some(0), Some(&last)) if last == count as i64 => Ok(()),
        (first, last) => invalid!(
            "Ragged splits must begin with 0 and end with the number of values, {count}; they begin with {} and end \
             with {}",
            first.copied().unwrap_or_default(),
            last.copied().unwrap_or_default()
        ),
    }
}
