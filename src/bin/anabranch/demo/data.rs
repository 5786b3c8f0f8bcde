//! The digits: 8 x 8 images of real handwriting (see DIGITS.md), split into training and held-out ones.

use graph::{Result, Shape, Tensor};
use std::error::Error;

const CSV: &str = include_str!("digits.csv");

/// Pixels an image.
pub(super) const PIXELS: usize = 64;

/// Kinds of digits.
pub(super) const CLASSES: usize = 10;

/// Every fifth image, after shuffling, is held out.
const HELD_OUT: usize = 5;

/// The brightest pixel's value.
const BRIGHTEST: f32 = 16.0;

/// Images with their digits.
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
    /// Reads the images, and splits them in an order that is the same each time.
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
    pub(super) fn len(&self) -> usize {
        self.digits.len()
    }

    /// All images `[n, 64]` and their digits `[n]`.
    pub(super) fn all(&self) -> Result<(Tensor, Tensor)> {
        let pixels = Tensor::from_slice(&self.pixels, Shape::new(&[self.len(), PIXELS])?)?;
        Ok((pixels, Tensor::vector(&self.digits)?))
    }

    /// Some images, drawn at random: `[size, 64]` and `[size]`.
    pub(super) fn batch(&self, size: usize, random: &mut Sequence) -> Result<(Tensor, Tensor)> {
        let mut pixels = Vec::with_capacity(size * PIXELS);
        let mut digits = Vec::with_capacity(size);
        for _ in 0..size {
            let i = random.below(self.len());
            pixels.extend_from_slice(&self.pixels[i * PIXELS..(i + 1) * PIXELS]);
            digits.push(self.digits[i]);
        }
        Ok((Tensor::from_slice(&pixels, Shape::new(&[size, PIXELS])?)?, Tensor::vector(&digits)?))
    }
}

/// A pseudo-random sequence (Steele, Lea and Flood's SplitMix64, 2014).
#[derive(Debug)]
pub(super) struct Sequence(pub(super) u64);

impl Sequence {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number under `bound`.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_image_is_in_one_part() -> Result<(), Box<dyn Error + Send + Sync>> {
        let digits = Digits::load()?;
        assert_eq!(digits.training.len() + digits.held_out.len(), 1797);
        assert_eq!(digits.held_out.len(), 360);
        assert!(digits.training.digits.iter().all(|d| (0..CLASSES as i32).contains(d)));
        let (pixels, labels) = digits.training.batch(8, &mut Sequence(1))?;
        assert_eq!((pixels.shape().dims(), labels.shape().dims()), ([8, PIXELS].as_slice(), [8].as_slice()));
        Ok(())
    }
}
