//! Checks of the images whose colors are converted or adjusted.

use device::{Error, Result};
use graph::{Code, Shape};

/// Returns an error with code `code` unless the pixels, the last axis, have three channels.
pub fn check_colours(x: &Shape, code: Code) -> Result<()> {
    match x.last() {
        None => device::invalid!("input must be at least 1D{x}"),
        Some(3) => Ok(()),
        Some(n) => Err(Error::new(code, format!("input must have 3 channels but instead has {n} channels."))),
    }
}

/// Checks that a tensor has at least three axes.
pub fn check_images(x: &Shape) -> Result<()> {
    if x.rank() < 3 {
        device::invalid!("input must be at least 3-D, got shape{x}");
    }
    Ok(())
}
