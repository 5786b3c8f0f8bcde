//! An exponential that the compiler can turn into vector instructions, and the choice of those instructions
//! at run time. Nothing here is peculiar to softmax.

use crate::kernels::cpu::wide::Wide;

/// A type with an exponential without branches or calls.
pub(super) trait Exp: Wide {
    /// `exp(self)`; for `f32` within 2e-7 of it, relatively.
    fn fast_exp(self) -> Self;
}

impl Exp for f32 {
    #[inline(always)]
    fn fast_exp(self) -> f32 {
        const LOG2_E: f32 = std::f32::consts::LOG2_E;
        // ln 2 in two parts, the first with few enough bits that a small multiple of it is exact.
        const LN2_HIGH: f32 = 0.693_359_4;
        const LN2_LOW: f32 = -2.121_944_4e-4;
        // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer.
        const ROUND: f32 = 12_582_912.0;
        // NaN goes through: comparisons with it are false.
        let x = if self < -104.0 { -104.0 } else { self };
        let x = if x > 89.0 { 89.0 } else { x };
        let n = (x * LOG2_E + ROUND) - ROUND;
        let r = x - n * LN2_HIGH - n * LN2_LOW;
        // Taylor's series with its tail bent to the interval [-ln 2 / 2, ln 2 / 2] (Cephes' expf).
        let p = 1.987_569_1e-4;
        let p = p * r + 1.398_199_9e-3;
        let p = p * r + 8.333_452e-3;
        let p = p * r + 4.166_579_6e-2;
        let p = p * r + 1.666_666_5e-1;
        let p = p * r + 0.5;
        let p = p * (r * r) + r + 1.0;
        // 2^n in two factors, so that both are normal where the result is subnormal or infinite.
        let n = n as i32;
        let half = n >> 1;
        let power = |n: i32| f32::from_bits(((n + 127) as u32) << 23);
        p * power(half) * power(n - half)
    }
}

impl Exp for f64 {
    #[inline(always)]
    fn fast_exp(self) -> f64 {
        self.exp()
    }
}

/// Defines a function whose body is compiled once for each instruction set, and chosen when it is called.
macro_rules! vectorised {
    ($(#[$doc:meta])* fn $name:ident<$T:ident: $bound:path>($($arg:ident: $ty:ty),*) = $body:path) => {
        $(#[$doc])*
        pub(super) fn $name<$T: $bound>($($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx2,fma")]
                fn avx512<$T: $bound>($($arg: $ty),*) { $body($($arg),*) }
                #[target_feature(enable = "avx2,fma")]
                fn avx2<$T: $bound>($($arg: $ty),*) { $body($($arg),*) }
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                {
                    // SAFETY: the processor has the instructions.
                    return unsafe { avx512($($arg),*) };
                }
                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                    // SAFETY: the processor has the instructions.
                    return unsafe { avx2($($arg),*) };
                }
            }
            $body($($arg),*)
        }
    };
}
pub(super) use vectorised;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_is_close() {
        let mut worst = 0f64;
        for i in -870_000..880_000 {
            let x = i as f32 * 1e-4;
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(x.fast_exp()) / exact - 1.0).abs());
        }
        assert!(worst < 2e-7, "{worst}");
    }

    #[test]
    fn ends() {
        assert!(f32::NAN.fast_exp().is_nan());
        assert_eq!([f32::NEG_INFINITY.fast_exp(), 0f32.fast_exp()], [0.0, 1.0]);
        assert_eq!(f32::INFINITY.fast_exp(), f32::INFINITY);
        let subnormal = (-100f32).fast_exp();
        assert!((f64::from(subnormal) / (-100f64).exp() - 1.0).abs() < 0.03);
    }
}
