//! Encodes clips of a batch as WAV: 16-bit little-endian samples with interleaved channels.

use checkpoint::proto::Writer;
use device::{Error, Result};
use graph::Tensor;

/// An encoded clip, with the fields of `Summary.Audio`.
pub(super) struct Clip {
    rate: f32,
    channels: usize,
    frames: usize,
    wav: Vec<u8>,
}

impl Clip {
    pub(super) fn write(&self, proto: &mut Writer) {
        proto.float(1, self.rate).int(2, self.channels as i64).int(3, self.frames as i64);
        proto.string(4, &self.wav).string(5, b"audio/wav");
    }
}

/// Encodes the first `max_clips` clips of a batch. A clip is a tensor of frames, or of frames by channels, with samples
/// in [-1, 1].
pub(super) fn encode_all(batch: &Tensor, max_clips: i64, rate: f32) -> Result<Vec<Clip>> {
    let (count, frames, channels) = match *batch.shape().dims() {
        [count, frames] => (count, frames, 1),
        [count, frames, channels] => (count, frames, channels),
        _ => device::invalid!("Tensor must be 3-D or 2-D, got: {}", batch.shape()),
    };
    if rate.is_nan() || rate <= 0.0 {
        device::invalid!("sample_rate must be > 0");
    }
    let count = count.min(usize::try_from(max_clips).unwrap_or(0));
    let samples = batch.values::<f32>()?;
    let size = frames * channels;
    if count > 0 && channels == 0 {
        device::invalid!("audio has no channels");
    }
    (0..count)
        .map(|i| {
            Ok(Clip { rate, channels, frames, wav: wav(&samples[i * size..(i + 1) * size], rate, channels)? })
        })
        .collect()
}

fn wav(samples: &[f32], rate: f32, channels: usize) -> Result<Vec<u8>> {
    const HEADER: usize = 44;
    let number = |n: usize| u32::try_from(n).map_err(|_| Error::invalid("audio is too long for a WAV file"));
    let bytes = samples.len() * 2;
    let frame = channels * 2;
    let rate = (rate.round_ties_even() as u32).max(1);
    let per_second = number(frame)?.checked_mul(rate);
    let per_second = per_second.ok_or_else(|| Error::invalid("sample_rate is too high for a WAV file"))?;
    let narrow = |n: usize| u16::try_from(n).map_err(|_| Error::invalid("too many channels for a WAV file"));
    let mut out = Vec::with_capacity(HEADER + bytes);
    out.extend_from_slice(b"RIFF");
    out.extend_from_slice(&number(HEADER - 8 + bytes)?.to_le_bytes());
    out.extend_from_slice(b"WAVEfmt ");
    out.extend_from_slice(&16u32.to_le_bytes());
    // WAV format code 1: uncompressed samples.
    out.extend_from_slice(&1u16.to_le_bytes());
    out.extend_from_slice(&narrow(channels)?.to_le_bytes());
    out.extend_from_slice(&rate.to_le_bytes());
    out.extend_from_slice(&per_second.to_le_bytes());
    out.extend_from_slice(&narrow(frame)?.to_le_bytes());
    out.extend_from_slice(&16u16.to_le_bytes());
    out.extend_from_slice(b"data");
    out.extend_from_slice(&number(bytes)?.to_le_bytes());
    for sample in samples {
        // The cast saturates, and converts NaN to silence.
        out.extend_from_slice(&((sample * 32768.0).round() as i16).to_le_bytes());
    }
    Ok(out)
}
