//! `EncodeProto`: messages whose fields hold the elements of tensors.

use super::budget::Budget;
use super::descriptor::{Kind, WireType};
use super::wire::{put_bytes, put_numbers, put_tag};
use super::{Types, budget_of, is_compatible};
use crate::numeric::scratch::check_scratch;
use bytes::Bytes;
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelInit};
use graph::{Bool8, DType, Shape, Tensor};

/// The largest number of bytes of a tag with a number or a length, or of the two tags of a group.
const MAX_NUMBER: usize = 16;

/// A field to write.
struct Written {
    name: String,
    number: u32,
    kind: Kind,
    is_packed: bool,
}

pub(super) fn encode(init: &KernelInit<'_>) -> Result<Kernel> {
    let types = Types::of(init)?;
    let mut fields = Vec::new();
    for name in init.attr::<Vec<Bytes>>("field_names")? {
        let field = types.field(&name, false)?;
        fields.push(Written {
            name: field.name.clone(),
            number: field.number,
            kind: field.kind,
            is_packed: field.is_packed,
        });
    }
    // Fields are written in the order of their numbers.
    let mut order: Vec<usize> = (0..fields.len()).collect();
    order.sort_by_key(|i| fields[*i].number);
    Kernel::sync(move |ctx| encode_messages(ctx, &fields, &order))
}

fn encode_messages(ctx: &mut KernelContext<'_>, fields: &[Written], order: &[usize]) -> Result<()> {
    let sizes_tensor = ctx.input(0)?;
    let values = ctx.inputs_from(1)?;
    if values.len() != fields.len() {
        device::invalid!("Length of inputs list must match field_names");
    }
    let mut prefix: Option<&[usize]> = None;
    for (field, value) in fields.iter().zip(&values) {
        if !is_compatible(field.kind, value.dtype()) {
            device::invalid!(
                "Incompatible type for field {}.  Saw dtype: {} but field type is: {}",
                field.name,
                value.dtype(),
                field.kind.name()
            );
        }
        let dims = value.shape().dims();
        let Some((_, outer)) = dims.split_last().filter(|(_, outer)| !outer.is_empty()) else {
            device::invalid!(
                "Invalid shape for field {}.  Saw shape {} but it should be at least a matrix.",
                field.name,
                value.shape()
            );
        };
        if *prefix.get_or_insert(outer) != outer {
            device::invalid!("Values must match up to the last dimension");
        }
    }
    let prefix = prefix.unwrap_or_default();
    let expected = Shape::new(&[prefix, &[fields.len()]].concat())?;
    if *sizes_tensor.shape() != expected {
        device::invalid!(
            "sizes should be batch_size + [len(field_names)].  Saw: {} but expected: {expected}",
            sizes_tensor.shape()
        );
    }
    let sizes = sizes_tensor.values::<i32>()?;
    let widths: Vec<usize> = values.iter().map(|v| v.shape().dims().last().copied().unwrap_or(0)).collect();
    for (message, row) in sizes.chunks(fields.len().max(1)).enumerate() {
        if message.is_multiple_of(4096) {
            ctx.check_cancelled()?;
        }
        for (i, (size, width)) in row.iter().zip(&widths).enumerate() {
            if usize::try_from(*size).is_ok_and(|size| size > *width) {
                device::invalid!(
                    "Size to write must not be larger than value tensor; but saw: {size} > {width} at message {message} \
                     field {i}"
                );
            }
        }
    }
    let shape = Shape::new(prefix)?;
    let count = shape.num_elements();
    check_scratch::<Bytes>(count)?;
    let budget = budget_of(ctx);
    budget.take(count.saturating_mul(size_of::<Bytes>()))?;
    let mut messages = Vec::with_capacity(count);
    for message in 0..count {
        budget.check_cancelled()?;
        let mut out = Vec::new();
        for &i in order {
            budget.step()?;
            let size = sizes[message * fields.len() + i];
            if size != 0 {
                let size = usize::try_from(size).unwrap_or(0);
                fields[i].write(&mut out, values[i], message * widths[i], size, &budget)?;
            }
        }
        messages.push(Bytes::from(out));
    }
    drop(values);
    ctx.set_output(0, Tensor::strings(messages, shape)?);
    Ok(())
}

impl Written {
    /// Writes the `count` elements of a tensor from number `from` on. The budget pays for the bytes.
    fn write(
        &self,
        out: &mut Vec<u8>,
        value: &Tensor,
        from: usize,
        count: usize,
        budget: &Budget<'_>,
    ) -> Result<()> {
        let at = from..from + count;
        macro_rules! numbers {
            ($t:ty, $bits:expr) => {{
                let numbers = value.values::<$t>()?[at].iter().copied().map($bits);
                // The length of the numbers is known after they are written.
                let (most, before) = (count.saturating_mul(MAX_NUMBER), out.len());
                budget.take(most)?;
                put_numbers(out, self.number, self.kind, self.is_packed, numbers);
                budget.give((most + before).saturating_sub(out.len()));
            }};
        }
        // Integers are cut to the width of the field's type.
        let is_narrow = matches!(self.kind, Kind::Int32 | Kind::SInt32 | Kind::SFixed32 | Kind::Enum);
        let is_narrow_unsigned = matches!(self.kind, Kind::UInt32 | Kind::Fixed32);
        match value.dtype() {
            DType::Double if self.kind == Kind::Float => numbers!(f64, |v| (v as f32).to_bits().into()),
            DType::Double => numbers!(f64, f64::to_bits),
            DType::Float => numbers!(f32, |v| v.to_bits().into()),
            DType::Int64 if is_narrow => numbers!(i64, |v| i64::from(v as i32) as u64),
            DType::Int64 => numbers!(i64, |v| v as u64),
            DType::Int32 => numbers!(i32, |v| i64::from(v) as u64),
            DType::UInt64 if is_narrow_unsigned => numbers!(u64, |v| u64::from(v as u32)),
            DType::UInt64 => numbers!(u64, |v| v),
            DType::UInt32 => numbers!(u32, u64::from),
            DType::Bool => numbers!(Bool8, |v| u64::from(bool::from(v))),
            _ => {
                let texts = &value.as_strings()?[at];
                // The elements may share their bytes, so the tensor's memory does not bound the message.
                for text in texts {
                    budget.take(text.len().saturating_add(MAX_NUMBER))?;
                }
                for text in texts {
                    budget.step()?;
                    if self.kind == Kind::Group {
                        put_tag(out, self.number, WireType::StartGroup);
                        out.extend_from_slice(text);
                        put_tag(out, self.number, WireType::EndGroup);
                    } else {
                        put_tag(out, self.number, WireType::Delimited);
                        put_bytes(out, text);
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::cancel::Cancellation;
    use graph::Code;

    #[test]
    fn a_message_of_elements_that_share_their_bytes_is_bounded_by_the_memory_limit() {
        let cancellation = Cancellation::new();
        let field = Written { name: "value".to_owned(), number: 1, kind: Kind::Bytes, is_packed: false };
        let shared = vec![Bytes::from(vec![7; 10_000]); 100];
        let value = Tensor::strings(shared, Shape::new(&[1, 100]).expect("a shape"))
            .expect("a value within the limit");
        let mut out = Vec::new();
        let written = field.write(&mut out, &value, 0, 100, &Budget::new(500_000, &cancellation));
        assert_eq!(written.expect_err("an error").code(), Code::ResourceExhausted);
        assert!(out.is_empty());
        field
            .write(&mut out, &value, 0, 100, &Budget::new(2_000_000, &cancellation))
            .expect("a value within the limit");
        assert_eq!(out.len(), 100 * 10_003);
    }

    #[test]
    fn the_budget_pays_for_the_bytes_that_numbers_take() {
        let cancellation = Cancellation::new();
        let field = Written { name: "value".to_owned(), number: 1, kind: Kind::Int64, is_packed: false };
        let value = Tensor::from_slice(&[1i64; 10], Shape::new(&[1, 10]).expect("a shape"))
            .expect("a value within the limit");
        let budget = Budget::new(180, &cancellation);
        let mut out = Vec::new();
        field.write(&mut out, &value, 0, 10, &budget).expect("a value within the limit");
        assert_eq!(out.len(), 20);
        budget.take(160).expect("a value within the limit");
        assert_eq!(budget.take(1).expect_err("an error").code(), Code::ResourceExhausted);
    }
}
