//! Kernels of sound: files of the format WAV, spectrograms, and mel-frequency cepstral coefficients.

mod cepstrum;
mod wav;

use cepstrum::Cepstrum;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Result, invalid};
use graph::{Shape, Tensor};
use rustfft::FftPlanner;
use rustfft::num_complex::Complex;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("DecodeWav", &[], wav::decode),
    KernelDef::of("EncodeWav", &[], |_| Kernel::sync(wav::encode)),
    KernelDef::of("AudioSpectrogram", &[], spectrogram),
    KernelDef::of("Mfcc", &[], coefficients),
];

/// Returns the number of samples a second in input `at`.
fn sample_rate(ctx: &KernelContext<'_>, at: usize) -> Result<i32> {
    let rate = ctx.input(at)?;
    if rate.shape().rank() != 0 {
        invalid!("Input sample_rate should be a scalar tensor, got {} instead.", rate.shape());
    }
    Ok(rate.item::<i32>()?)
}

/// Makes the kernel that computes the magnitudes of the frequencies in windows of each channel.
fn spectrogram(init: &KernelInit<'_>) -> Result<Kernel> {
    let (window, stride) = (init.attr::<i64>("window_size")?, init.attr::<i64>("stride")?);
    let is_squared = init.attr::<bool>("magnitude_squared")?;
    let (Ok(window), Ok(stride)) = (usize::try_from(window), usize::try_from(stride)) else {
        invalid!("Spectrogram initialization failed for window size {window} and stride {stride}");
    };
    if window < 2 || stride < 1 {
        invalid!("Spectrogram initialization failed for window size {window} and stride {stride}");
    }
    Kernel::sync(move |ctx| {
        let input = ctx.input(0)?;
        let &[samples, channels] = input.shape().dims() else {
            invalid!("input must be 2-dimensional{}", input.shape());
        };
        let Some(length) = window.checked_next_power_of_two().filter(|n| *n <= 1 << 30) else {
            invalid!("a window of {window} samples is too large");
        };
        let count = if samples < window { 0 } else { (samples - window) / stride + 1 };
        let frequencies = length / 2 + 1;
        let mut out = Tensor::zeros(graph::DType::Float, Shape::new(&[channels, count, frequencies])?)?;
        if samples >= window {
            let weights: Vec<f64> = (0..window)
                .map(|i| 0.5 - 0.5 * (std::f64::consts::TAU * i as f64 / window as f64).cos())
                .collect();
            let fft = FftPlanner::<f64>::new().plan_fft_forward(length);
            let mut scratch = vec![Complex::default(); fft.get_inplace_scratch_len()];
            let mut buffer = vec![Complex::default(); length];
            let values = input.values::<f32>()?;
            let rows = out.values_mut::<f32>()?.chunks_exact_mut(frequencies);
            for (at, row) in rows.enumerate() {
                let (channel, first) = (at / count, at % count * stride);
                buffer.fill(Complex::default());
                for (i, (slot, weight)) in buffer.iter_mut().zip(&weights).enumerate() {
                    slot.re = f64::from(values[(first + i) * channels + channel]) * weight;
                }
                fft.process_with_scratch(&mut buffer, &mut scratch);
                for (out, value) in row.iter_mut().zip(&buffer) {
                    let squared = value.norm_sqr();
                    *out = if is_squared { squared as f32 } else { squared.sqrt() as f32 };
                }
            }
        }
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Makes the kernel that computes the cepstral coefficients of the rows of spectrograms.
fn coefficients(init: &KernelInit<'_>) -> Result<Kernel> {
    let (upper, lower) =
        (init.attr::<f32>("upper_frequency_limit")?, init.attr::<f32>("lower_frequency_limit")?);
    let bands = init.attr::<i64>("filterbank_channel_count")?;
    let count = init.attr::<i64>("dct_coefficient_count")?;
    Kernel::sync(move |ctx| {
        let input = ctx.input(0)?;
        let &[channels, rows, frequencies] = input.shape().dims() else {
            invalid!("spectrogram must be 3-dimensional{}", input.shape());
        };
        let rate = sample_rate(ctx, 1)?;
        let limits = [f64::from(lower), f64::from(upper)];
        let Some(cepstrum) = Cepstrum::new(frequencies, f64::from(rate), bands, count, limits) else {
            invalid!(
                "Mfcc initialization failed for channel count {frequencies}, sample rate {rate} and \
                 filterbank_channel_count {bands}"
            );
        };
        let count = cepstrum.count();
        let shape = Shape::new(&[channels, rows, count])?;
        let mut out = Tensor::zeros(graph::DType::Float, shape)?;
        let spectra = input.values::<f32>()?.chunks_exact(frequencies);
        for (spectrum, out) in spectra.zip(out.values_mut::<f32>()?.chunks_exact_mut(count)) {
            cepstrum.compute(spectrum, out);
        }
        ctx.set_output(0, out);
        Ok(())
    })
}
