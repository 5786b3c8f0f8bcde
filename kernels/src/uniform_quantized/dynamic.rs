//! Numbers that are quantized to 8 bits within an op, with the range of the numbers that occur.

use super::convert::level;

/// Quantized numbers relative to the level of zero, and their scale.
pub(super) struct Dynamic {
    pub(super) levels: Vec<f32>,
    pub(super) scale: f32,
}

impl Dynamic {
    pub(super) fn new(numbers: &[f32]) -> Dynamic {
        let (lowest, highest) = (f64::from(i8::MIN), f64::from(i8::MAX));
        let min = f64::from(numbers.iter().copied().fold(0.0, f32::min));
        let max = f64::from(numbers.iter().copied().fold(0.0, f32::max));
        let scale = ((max - min) / (highest - lowest)) as f32;
        if scale == 0.0 {
            return Dynamic { levels: vec![0.0; numbers.len()], scale };
        }
        // The level of zero follows from either end of the range; the end with the smaller error is used.
        let steps = [min, max].map(|end| end / f64::from(scale));
        let errors = [lowest.abs() + steps[0].abs(), highest.abs() + steps[1].abs()];
        let zero = if errors[0] < errors[1] { lowest - steps[0] } else { highest - steps[1] };
        let zero = zero.round().clamp(lowest, highest) as i64;
        let inverse = 1.0 / scale;
        let centred = |&number: &f32| {
            let level = level(number, inverse, zero as i32).clamp(i8::MIN.into(), i8::MAX.into());
            (level - zero) as f32
        };
        Dynamic { levels: numbers.iter().map(centred).collect(), scale }
    }
}
