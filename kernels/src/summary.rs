//! Kernels that encode `Summary` messages, byte for byte like TensorFlow.

mod audio;
mod image;

use crate::numeric::dispatch::{REALS, dispatch};
use crate::objects::summary_histogram as histogram;
use bytes::Bytes;
use checkpoint::proto::{Fields, Malformed, Writer};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Error, Result};
use graph::{DType, Tensor};
use num_traits::ToPrimitive;
use rustc_hash::FxHashSet;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("ScalarSummary", &[("T", REALS)], |_| Kernel::sync(scalars)),
    KernelDef::of("HistogramSummary", &[("T", REALS)], |init| {
        let node = init.node.name.clone();
        Kernel::sync(move |ctx| {
            let tag = tag(ctx.input(0)?, "tags must be scalar")?;
            let summary = of_histogram(tag, ctx.input(1)?, &node, "Histogram")?;
            set_summary(ctx, summary)
        })
    }),
    KernelDef::of(
        "ImageSummary",
        &[("T", &[DType::UInt8, DType::Float, DType::Half, DType::Double])],
        images,
    ),
    KernelDef::of("AudioSummary", &[], |init| {
        let rate = init.attr::<f32>("sample_rate")?;
        audio(init, move |_| Ok(rate))
    }),
    KernelDef::of("AudioSummaryV2", &[], |init| audio(init, |ctx| rate_of(ctx.input(2)?))),
    // The summary message does not contain the node's attribute `description`.
    KernelDef::of("TensorSummary", &[], |init| {
        let node = init.node.name.clone();
        Kernel::sync(move |ctx| {
            let tensor = checkpoint::tensor::encode(ctx.input(0)?)?;
            let mut summary = Writer::new();
            summary.message(1, |v| _ = v.string(7, node.as_bytes()).bytes(8, &tensor));
            set_summary(ctx, summary)
        })
    }),
    KernelDef::of("TensorSummaryV2", &[], |_| {
        Kernel::sync(|ctx| {
            let tag = tag(ctx.input(0)?, "tag must be scalar")?;
            let metadata = self::tag(ctx.input(2)?, "serialized_summary_metadata must be scalar")?;
            if !is_message(metadata) {
                device::invalid!("serialized_summary_metadata is no SummaryMetadata");
            }
            let tensor = checkpoint::tensor::encode(ctx.input(1)?)?;
            let summary = of_value(tag, |v| _ = v.bytes(8, &tensor).bytes(9, metadata));
            set_summary(ctx, summary)
        })
    }),
    KernelDef::of("MergeSummary", &[], |_| Kernel::sync(merge)),
];

fn set_summary(ctx: &mut KernelContext<'_>, summary: Writer) -> Result<()> {
    ctx.set_output(0, Tensor::string(summary.finish()));
    Ok(())
}

/// Returns whether the bytes parse as a protocol buffer message.
pub(super) fn is_message(bytes: &[u8]) -> bool {
    Fields::of(bytes).all(|field| field.is_ok())
}

/// Returns a summary of one value with a tag; `write` adds the fields after the tag.
pub(super) fn of_value(tag: &[u8], write: impl FnOnce(&mut Writer)) -> Writer {
    let mut summary = Writer::new();
    value(&mut summary, tag, write);
    summary
}

/// Returns a histogram summary. Error messages call the values `name`, or `infinite` if a value is infinite.
pub(super) fn of_histogram(tag: &[u8], values: &Tensor, name: &str, infinite: &str) -> Result<Writer> {
    let histogram = histogram::of(values, &histogram::HistogramLabel { name, infinite })?;
    Ok(of_value(tag, |v| _ = v.message(5, |h| histogram.write(h))))
}

/// Returns a summary of at most `max_images` images of a batch.
pub(super) fn of_images(tag: &[u8], batch: &Tensor, max_images: i64, bad_color: &Tensor) -> Result<Writer> {
    if bad_color.dtype() != DType::UInt8 || bad_color.shape().rank() != 1 {
        device::invalid!("bad_color must be a vector of uint8, got {bad_color:?}");
    }
    let mut summary = Writer::new();
    for (i, image) in image::encode_all(batch, max_images, bad_color.values::<u8>()?)?.iter().enumerate() {
        let tag = numbered(tag, "image", i, max_images);
        value(&mut summary, &tag, |v| _ = v.message(4, |m| image.write(m)));
    }
    Ok(summary)
}

/// Returns a summary of at most `max_outputs` audio clips of a batch.
pub(super) fn of_audio(tag: &[u8], batch: &Tensor, max_outputs: i64, rate: f32) -> Result<Writer> {
    let mut summary = Writer::new();
    for (i, clip) in audio::encode_all(batch, max_outputs, rate)?.iter().enumerate() {
        let tag = numbered(tag, "audio", i, max_outputs);
        value(&mut summary, &tag, |v| _ = v.message(6, |m| clip.write(m)));
    }
    Ok(summary)
}

/// Returns the sample rate in a tensor of one element.
pub(super) fn rate_of(tensor: &Tensor) -> Result<f32> {
    tensor.item::<f32>().map_err(|_| {
        let shape = tensor.shape();
        Error::invalid(format!("sample_rate must be rank-0 or contain a single value; got {shape}"))
    })
}

/// Returns the elements of a real tensor as `f32`, the type in which summaries store them.
pub(super) fn floats(values: &Tensor) -> Result<Vec<f32>> {
    dispatch!(real, values.dtype(), T => {
        let all = values.values::<T>()?;
        Ok(all.iter().map(|v| v.to_f32().unwrap_or(f32::NAN)).collect())
    })
}

/// Appends a value with a tag to a summary; `write` adds the fields after the tag.
fn value(summary: &mut Writer, tag: &[u8], write: impl FnOnce(&mut Writer)) {
    summary.message(1, |value| {
        value.string(1, tag);
        write(value);
    });
}

/// Returns the string in a scalar tensor, or an error with the message `otherwise`.
pub(super) fn tag<'a>(tensor: &'a Tensor, otherwise: &str) -> Result<&'a Bytes> {
    match (tensor.shape().rank(), tensor.as_strings()?) {
        (0, [tag]) => Ok(tag),
        _ => Err(Error::invalid(otherwise)),
    }
}

fn scalars(ctx: &mut KernelContext<'_>) -> Result<()> {
    let (tags, values) = (ctx.input(0)?, ctx.input(1)?);
    if tags.shape() != values.shape() {
        let single = match tags.as_strings()? {
            [tag] => format!(" (tag '{}')", String::from_utf8_lossy(tag)),
            _ => String::new(),
        };
        device::invalid!(
            "tags and values are not the same shape: {} != {}{single}",
            tags.shape(),
            values.shape()
        );
    }
    let mut summary = Writer::new();
    for (tag, float) in tags.as_strings()?.iter().zip(floats(values)?) {
        value(&mut summary, tag, |v| _ = v.fixed32(2, float.to_bits()));
    }
    set_summary(ctx, summary)
}

fn images(init: &KernelInit<'_>) -> Result<Kernel> {
    let max_images = init.attr::<i64>("max_images")?;
    let bad_color = init.attr::<Tensor>("bad_color")?;
    Kernel::sync(move |ctx| {
        let base = tag(ctx.input(0)?, "Tags must be a scalar")?;
        let summary = of_images(base, ctx.input(1)?, max_images, &bad_color)?;
        set_summary(ctx, summary)
    })
}

fn audio(
    init: &KernelInit<'_>,
    rate: impl Fn(&KernelContext<'_>) -> Result<f32> + Send + Sync + 'static,
) -> Result<Kernel> {
    let max_outputs = init.attr::<i64>("max_outputs")?;
    Kernel::sync(move |ctx| {
        let base = tag(ctx.input(0)?, "Tag must be a scalar")?;
        let summary = of_audio(base, ctx.input(1)?, max_outputs, rate(ctx)?)?;
        set_summary(ctx, summary)
    })
}

/// Returns the tag of item `i`, which contains the number `i` only if `max` is greater than 1.
fn numbered(base: &[u8], kind: &str, i: usize, max: i64) -> Vec<u8> {
    let suffix = if max > 1 { format!("/{kind}/{i}") } else { format!("/{kind}") };
    [base, suffix.as_bytes()].concat()
}

fn merge(ctx: &mut KernelContext<'_>) -> Result<()> {
    let mut merged = Writer::new();
    let mut tags = FxHashSet::default();
    for input in ctx.inputs_from(0)? {
        for summary in input.as_strings()? {
            let twice = append(&mut merged, &mut tags, summary)
                .map_err(|Malformed| Error::invalid("Could not parse one of the summary inputs"))?;
            if let Some(tag) = twice {
                device::invalid!("Duplicate tag {} found in summary inputs ", String::from_utf8_lossy(&tag));
            }
        }
    }
    set_summary(ctx, merged)
}

/// Appends the values of a summary to `merged`, and their tags to `tags`. Returns a tag that `tags` already has, if
/// any.
fn append(
    merged: &mut Writer,
    tags: &mut FxHashSet<Vec<u8>>,
    summary: &[u8],
) -> Result<Option<Vec<u8>>, Malformed> {
    for field in Fields::of(summary) {
        let (1, value) = field? else { continue };
        for field in value.fields()? {
            if let (1, tag) = field? {
                let tag = tag.bytes()?.to_vec();
                if !tag.is_empty() && !tags.insert(tag.clone()) {
                    return Ok(Some(tag));
                }
            }
        }
        merged.bytes(1, value.bytes()?);
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
