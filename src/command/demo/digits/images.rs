//! 8 x 8 images of real handwriting (see DIGITS.md), split into training and held-out images.

use crate::command::demo::problem::Examples;
use crate::command::demo::random::Sequence;
use graph::{Shape, Tensor};
use std::error::Error;

const CSV: &str = include_str!("digits.csv");

/// Number of pixels of an image.
pub(super) const PIXELS: usize = 64;

/// Number of different digits.
pub(super) const CLASSES: usize = 10;

/// Every fifth image after shuffling is held out from training.
const HELD_OUT: usize = 5;

/// Value of the brightest pixel.
const BRIGHTEST: f32 = 16.0;

/// Images, with the digit that each shows.
#[derive(Debug, Default)]
pub(super) struct Images {
    pixels: Vec<f32>,
    digits: Vec<i32>,
}

#[derive(Debug)]
pub(super) struct Digits {
    pub(super) training: Images,
    pub(super) held_out: Images,
}

impl Digits {
    /// Reads the images, shuffles them by a fixed seed, and splits them into training and held-out images.
    pub(super) fn load() -> Result<Digits, Box<dyn Error + Send + Sync>> {
        let mut rows = Vec::new();
        for (number, line) in CSV.lines().enumerate() {
            let row = line.split(',').map(str::parse::<u8>).collect::<Result<Vec<_>, _>>()?;
            if row.len() != PIXELS + 1 {
                return Err(format!("digits.csv, line {}: {} numbers", number + 1, row.len()).into());
            }
            rows.push(row);
        }
        let mut random = Sequence(1998);
        for i in (1..rows.len()).rev() {
            rows.swap(i, random.below(i + 1));
        }
        let mut digits = Digits { training: Images::default(), held_out: Images::default() };
        for (i, row) in rows.iter().enumerate() {
            let part = if i % HELD_OUT == 0 { &mut digits.held_out } else { &mut digits.training };
            part.pixels.extend(row[..PIXELS].iter().map(|&p| f32::from(p) / BRIGHTEST));
            part.digits.push(i32::from(row[PIXELS]));
        }
        Ok(digits)
    }
}

impl Images {
    fn len(&self) -> usize {
        self.digits.len()
    }

    /// Returns the images `[n, 64]` and their digits `[n]`.
    pub(super) fn examples(&self) -> graph::Result<Examples> {
        let pixels = Tensor::from_slice(&self.pixels, Shape::new(&[self.len(), PIXELS])?)?;
        Ok(Examples { features: vec![pixels], labels: Tensor::vector(&self.digits)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_image_is_in_one_set() -> Result<(), Box<dyn Error + Send + Sync>> {
        let digits = Digits::load()?;
        assert_eq!(digits.training.len() + digits.held_out.len(), 1797);
        assert_eq!(digits.held_out.len(), 360);
        assert!(digits.training.digits.iter().all(|d| (0..CLASSES as i32).contains(d)));
        let examples = digits.held_out.examples()?;
        assert_eq!(examples.features[0].shape().dims(), [360, PIXELS]);
        assert_eq!(examples.len(), 360);
        Ok(())
    }
}
