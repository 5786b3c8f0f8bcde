//! Mel-frequency cepstral coefficients: the cosine transform of the logarithms of the energies in bands of equal width
//! on the mel scale.

use std::f64::consts::PI;

/// The lower limit of a band's energy, which is applied before the logarithm is taken.
const FLOOR: f64 = 1e-12;

/// The division of a frequency's magnitude between two adjacent bands.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// The lower of the two bands; `None` below the first band.
    band: Option<usize>,
    /// The share of the lower band; the upper band has the rest.
    weight: f64,
}

/// The transform from a spectrum to its coefficients.
pub(super) struct Cepstrum {
    /// The index of the first frequency that is used; `shares` begins with the shares of this frequency.
    first: usize,
    shares: Vec<Share>,
    bands: usize,
    /// The rows of the cosine transform, one for each coefficient.
    cosines: Vec<Vec<f64>>,
    /// The number of frequencies of a spectrum.
    frequencies: usize,
}

fn mel(hertz: f64) -> f64 {
    1127.0 * (hertz / 700.0).ln_1p()
}

impl Cepstrum {
    /// Returns the transform of spectra of `frequencies` magnitudes up to half of the sample rate, for bands between two
    /// limits in hertz; `None` for impossible parameters.
    pub(super) fn new(
        frequencies: usize,
        rate: f64,
        bands: i64,
        coefficients: i64,
        [lower, upper]: [f64; 2],
    ) -> Option<Cepstrum> {
        let bands = usize::try_from(bands).ok().filter(|&n| n > 0 && n <= 1 << 20)?;
        let count =
            usize::try_from(coefficients).ok().filter(|&n| n > 0 && n <= bands && n * bands <= 1 << 22)?;
        if rate <= 0.0 || frequencies < 2 || lower < 0.0 || upper <= lower || lower.is_nan() || upper.is_nan()
        {
            return None;
        }
        let lowest = mel(lower);
        let spacing = (mel(upper) - lowest) / (bands + 1) as f64;
        let center = |band: usize| lowest + spacing * (band + 1) as f64;
        let step = 0.5 * rate / (frequencies - 1) as f64;
        let (first, last) = ((1.5 + lower / step) as usize, (upper / step) as usize);
        let mut shares = Vec::new();
        // Spectra that end before the upper limit have no coefficients.
        if last < frequencies {
            let mut above = 0;
            for i in first..=last {
                let at = mel(i as f64 * step);
                while above < bands && center(above) < at {
                    above += 1;
                }
                let band = above.checked_sub(1);
                let (low, high) = (band.map_or(lowest, center), center(above));
                shares.push(Share { band, weight: (high - at) / (high - low) });
            }
        }
        let norm = (2.0 / bands as f64).sqrt();
        let cosine = |i: usize, j: usize| norm * (i as f64 * PI / bands as f64 * (j as f64 + 0.5)).cos();
        let cosines = (0..count).map(|i| (0..bands).map(|j| cosine(i, j)).collect()).collect();
        let first = if last < frequencies { first } else { frequencies };
        Some(Cepstrum { first, shares, bands, cosines, frequencies })
    }

    /// Returns the number of coefficients.
    pub(super) fn count(&self) -> usize {
        self.cosines.len()
    }

    /// Computes the coefficients of a spectrum of squared magnitudes.
    pub(super) fn compute(&self, spectrum: &[f32], out: &mut [f32]) {
        if self.first == self.frequencies {
            out.fill(0.0);
            return;
        }
        let mut energies = vec![0f64; self.bands];
        for (value, share) in spectrum.iter().skip(self.first).zip(&self.shares) {
            let magnitude = f64::from(*value).sqrt();
            let lower = magnitude * share.weight;
            if let Some(band) = share.band {
                energies[band] += lower;
            }
            let above = share.band.map_or(0, |band| band + 1);
            if let Some(energy) = energies.get_mut(above) {
                *energy += magnitude - lower;
            }
        }
        // Unlike `f64::max`, this comparison keeps NaN.
        energies.iter_mut().for_each(|energy| *energy = if *energy < FLOOR { FLOOR } else { *energy }.ln());
        for (out, row) in out.iter_mut().zip(&self.cosines) {
            *out = row.iter().zip(&energies).map(|(cosine, energy)| cosine * energy).sum::<f64>() as f32;
        }
    }
}
