//! Sound: files of the format WAV, spectrograms, and mel-frequency cepstral coefficients.

use super::check::scalar;
use super::{Gradient, OpDef};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "DecodeWav",
        inputs: &["contents: string"],
        outputs: &["audio: float", "sample_rate: int32"],
        attrs: &["desired_channels: int = -1", "desired_samples: int = -1"],
        infer: decoded,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "EncodeWav",
        inputs: &["audio: float", "sample_rate: int32"],
        outputs: &["contents: string"],
        infer: |infer| {
            infer.input_of_rank(0, 2)?;
            infer.input_of_rank(1, 0)?;
            scalar(infer)
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "AudioSpectrogram",
        inputs: &["input: float"],
        outputs: &["spectrogram: float"],
        attrs: &["window_size: int", "stride: int", "magnitude_squared: bool = false"],
        infer: spectrogram,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "Mfcc",
        inputs: &["spectrogram: float", "sample_rate: int32"],
        outputs: &["output: float"],
        attrs: &[
            "upper_frequency_limit: float = 4000.0",
            "lower_frequency_limit: float = 20.0",
            "filterbank_channel_count: int = 40",
            "dct_coefficient_count: int = 13",
        ],
        infer: |infer| {
            let spectra = infer.input_of_rank(0, 3)?;
            infer.input_of_rank(1, 0)?;
            let count = usize::try_from(infer.attr::<i64>("dct_coefficient_count")?).ok();
            infer.set(0, PartialShape::of_dims([spectra.dim(0), spectra.dim(1), count]));
            Ok(())
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
];

fn decoded(infer: &mut Infer<'_>) -> Result<()> {
    infer.input_of_rank(0, 0)?;
    let wanted = |name: &str, least: i64| -> Result<Dim> {
        let value = infer.attr::<i64>(name)?;
        match value {
            -1 => Ok(None),
            value if value >= least => Ok(usize::try_from(value).ok()),
            value => crate::invalid!("{name} must be at least {least}, not {value}"),
        }
    };
    let (channels, samples) = (wanted("desired_channels", 0)?, wanted("desired_samples", 0)?);
    infer.set(0, PartialShape::of_dims([samples, channels]));
    infer.set(1, PartialShape::scalar());
    Ok(())
}

fn spectrogram(infer: &mut Infer<'_>) -> Result<()> {
    let input = infer.input_of_rank(0, 2)?;
    let (window, stride) = (infer.attr::<i64>("window_size")?, infer.attr::<i64>("stride")?);
    let (Ok(window), Ok(stride)) = (usize::try_from(window), usize::try_from(stride)) else {
        crate::invalid!("window_size {window} and stride {stride} must be positive");
    };
    if window < 2 || stride < 1 {
        crate::invalid!("window_size must be at least 2 and stride at least 1, not {window} and {stride}");
    }
    let count =
        input.dim(0).map(|samples| if samples < window { 0 } else { (samples - window) / stride + 1 });
    let frequencies = window.checked_next_power_of_two().map(|length| length / 2 + 1);
    infer.set(0, PartialShape::of_dims([input.dim(1), count, frequencies]));
    Ok(())
}
