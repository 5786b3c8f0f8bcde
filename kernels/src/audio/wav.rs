//! WAV files of samples of 16 bits.

use super::sample_rate;
use bytes::Bytes;
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{Error, Result, invalid};
use graph::{DType, Shape, Tensor};

/// The bytes of a file that have not been read.
struct Unread<'a>(&'a [u8]);

impl<'a> Unread<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        match self.0.split_at_checked(count) {
            Some((taken, rest)) => {
                self.0 = rest;
                Ok(taken)
            }
            None => Err(Error::invalid("Data too short when trying to read string")),
        }
    }

    fn expect(&mut self, text: &str) -> Result<()> {
        let found = self.take(text.len())?;
        if found != text.as_bytes() {
            invalid!("Header mismatch: Expected {text} but found {}", found.escape_ascii());
        }
        Ok(())
    }

    fn number<const N: usize>(&mut self) -> Result<u32> {
        Ok(self.take(N)?.iter().rev().fold(0, |all, byte| all << 8 | u32::from(*byte)))
    }
}

/// The contents of a file: the samples of all channels in turn.
struct Wav<'a> {
    channels: usize,
    rate: u32,
    data: &'a [u8],
}

impl<'a> Wav<'a> {
    fn of(file: &'a [u8]) -> Result<Wav<'a>> {
        let mut unread = Unread(file);
        unread.expect("RIFF")?;
        unread.number::<4>()?;
        unread.expect("WAVE")?;
        unread.expect("fmt ")?;
        let size = unread.number::<4>()?;
        if size != 16 && size != 18 {
            invalid!("Bad format chunk size for WAV: Expected 16 or 18, but got{size}");
        }
        let format = unread.number::<2>()?;
        let channels = unread.number::<2>()?;
        let rate = unread.number::<4>()?;
        let per_second = unread.number::<4>()?;
        let per_sample = unread.number::<2>()?;
        let bits = unread.number::<2>()?;
        unread.take(size as usize - 16)?;
        if format != 1 {
            invalid!("Bad audio format for WAV: Expected 1 (PCM), but got{format}");
        }
        if channels < 1 {
            invalid!("Bad number of channels for WAV: Expected at least 1, but got {channels}");
        }
        if bits != 16 {
            invalid!("Can only read 16-bit WAV files, but received {bits}");
        }
        if per_sample != 2 * channels {
            invalid!("Bad bytes per sample in WAV header: Expected {} but got {per_sample}", 2 * channels);
        }
        if u64::from(per_second) != u64::from(rate) * u64::from(per_sample) {
            invalid!(
                "Bad bytes per second in WAV header: Expected {} but got {per_second} (sample_rate={rate}, \
                 bytes_per_sample={per_sample})",
                u64::from(rate) * u64::from(per_sample)
            );
        }
        let mut data = None;
        while !unread.0.is_empty() {
            let name = unread.take(4)?;
            let size = unread.number::<4>()? as usize;
            if name != b"data" {
                unread.take(size)?;
                continue;
            }
            if data.is_some() {
                invalid!("More than one data chunk found in WAV");
            }
            // Bytes after the last whole sample are the start of the next chunk.
            data = Some(unread.take(size - size % per_sample as usize)?);
        }
        match data {
            Some(data) => Ok(Wav { channels: channels as usize, rate, data }),
            None => invalid!("No data chunk found in WAV"),
        }
    }
}

/// Makes the kernel that decodes a file to samples between -1 and 1.
pub(super) fn decode(init: &KernelInit<'_>) -> Result<Kernel> {
    let wanted_channels = usize::try_from(init.attr::<i64>("desired_channels")?).ok().filter(|&n| n > 0);
    let wanted_samples = usize::try_from(init.attr::<i64>("desired_samples")?).ok();
    Kernel::sync(move |ctx| {
        let contents = ctx.input(0)?;
        let (0, [file]) = (contents.shape().rank(), contents.as_strings()?) else {
            invalid!("contents must be scalar, got shape {}", contents.shape());
        };
        let wav = Wav::of(file)?;
        let given = wav.data.len() / (2 * wav.channels);
        let (channels, samples) = (wanted_channels.unwrap_or(wav.channels), wanted_samples.unwrap_or(given));
        let mut out = Tensor::zeros(DType::Float, Shape::new(&[samples, channels])?)?;
        let frames = wav.data.chunks_exact(2 * wav.channels);
        for (frame, out) in frames.zip(out.values_mut::<f32>()?.chunks_exact_mut(channels)) {
            for (channel, out) in out.iter_mut().enumerate() {
                // Channels that the file lacks are copies of its last channel.
                let at = 2 * channel.min(wav.channels - 1);
                *out = f32::from(i16::from_le_bytes([frame[at], frame[at + 1]])) / 32768.0;
            }
        }
        let rate = wav.rate as i32;
        ctx.set_output(0, out);
        ctx.set_scalar(1, rate);
        Ok(())
    })
}

/// `EncodeWav`: encodes samples as a WAV file.
pub(super) fn encode(ctx: &mut KernelContext<'_>) -> Result<()> {
    let audio = ctx.input(0)?;
    let rate = sample_rate(ctx, 1)?;
    let &[samples, channels] = audio.shape().dims() else {
        invalid!("audio must be 2-dimensional{}", audio.shape());
    };
    if rate <= 0 {
        invalid!("sample_rate must be in (0, 2^32), got: {rate}");
    }
    let Some(channel_count) = u16::try_from(channels).ok().filter(|&n| n > 0) else {
        invalid!("num_channels must be in (0, 2^16), got: {channels}");
    };
    let per_sample = 2 * channels as u64;
    let per_second = per_sample * rate as u64;
    let size = samples as u64 * per_sample;
    // The header's field wraps around for very fast rates, like in TensorFlow.
    let per_second = per_second as u32;
    let (Ok(per_sample), Ok(size), Ok(whole)) =
        (u16::try_from(per_sample), u32::try_from(size), u32::try_from(size.saturating_add(36)))
    else {
        invalid!("num_frames ({samples}), num_channels ({channels}) and sample_rate ({rate}) are too large");
    };
    let mut file = Vec::with_capacity(44 + size as usize);
    file.extend_from_slice(b"RIFF");
    file.extend(whole.to_le_bytes());
    file.extend_from_slice(b"WAVEfmt ");
    file.extend(16u32.to_le_bytes());
    file.extend(1u16.to_le_bytes());
    file.extend(channel_count.to_le_bytes());
    file.extend((rate as u32).to_le_bytes());
    file.extend(per_second.to_le_bytes());
    file.extend(per_sample.to_le_bytes());
    file.extend(16u16.to_le_bytes());
    file.extend_from_slice(b"data");
    file.extend(size.to_le_bytes());
    for sample in audio.values::<f32>()? {
        file.extend(((sample * 32768.0).round() as i16).to_le_bytes());
    }
    ctx.set_output(0, Tensor::string(Bytes::from(file)));
    Ok(())
}
