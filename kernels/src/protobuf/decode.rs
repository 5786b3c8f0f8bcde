//! `DecodeProtoV2`: the values of some fields of encoded messages, as tensors that are padded to the longest field.

use super::budget::{Budget, Failure};
use super::descriptor::{DefaultValue, Field, Kind, MessageType, Pool, WireType};
use super::message::Message;
use super::wire::{Reader, put_tag};
use super::{Types, budget_of, is_compatible, text};
use crate::numeric::scratch::check_scratch;
use bytes::Bytes;
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{Error, Result};
use graph::{Bool8, Code, DType, Shape, Tensor};
use std::collections::BTreeMap;

/// A requested field.
struct Requested {
    number: u32,
    kind: Kind,
    is_repeated: bool,
    dtype: DType,
    default: DefaultValue,
}

/// The requested fields, with the types of a session's graph.
struct Decoder {
    types: Types,
    fields: Vec<Requested>,
    /// The indices in `fields` by number; of several requests for one field, the first.
    by_number: BTreeMap<u32, usize>,
    is_text: bool,
    is_sanitized: bool,
}

/// The values of a field in one message.
#[derive(Debug, Default)]
struct Values {
    numbers: Vec<u64>,
    texts: Vec<Bytes>,
    /// The number of values in the message, at most 1 for a singular field.
    count: usize,
    /// The values that precede an empty or misplaced packed list.
    packed_at: Option<usize>,
}

impl Values {
    /// Returns the number of bytes that a budget paid for the values.
    fn bytes(&self) -> usize {
        let texts = self.texts.iter().map(|text| text_bytes(text.len())).sum::<usize>();
        self.numbers.len() * size_of::<u64>() + texts
    }
}

/// Returns the number of bytes that a text of `len` bytes takes in a list.
fn text_bytes(len: usize) -> usize {
    size_of::<Bytes>() + len
}

pub(super) fn decode(init: &KernelInit<'_>) -> Result<Kernel> {
    let types = Types::of(init)?;
    let (names, dtypes) = (init.attr::<Vec<Bytes>>("field_names")?, init.attr::<Vec<DType>>("output_types")?);
    if names.len() != dtypes.len() {
        device::invalid!("field_names and output_types attributes must have the same length");
    }
    let (mut fields, mut by_number) = (Vec::new(), BTreeMap::new());
    for (name, dtype) in names.iter().zip(dtypes) {
        let field = types.field(name, true)?;
        if !is_compatible(field.kind, dtype) {
            device::invalid!(
                "Unexpected output type for {}.{}: {} to {dtype}",
                types.message()?.full_name,
                field.name,
                field.kind.name()
            );
        }
        let Field { number, kind, is_repeated, .. } = *field;
        by_number.entry(number).or_insert(fields.len());
        fields.push(Requested { number, kind, is_repeated, dtype, default: types.pool.default_of(field)? });
    }
    let is_text = match &init.attr::<Bytes>("message_format")?[..] {
        b"binary" => false,
        b"text" => true,
        _ => device::invalid!("format must be one of binary or text"),
    };
    let decoder = Decoder { types, fields, by_number, is_text, is_sanitized: init.attr("sanitize")? };
    Kernel::sync(move |ctx| decoder.decode(ctx))
}

fn data_loss(message: impl Into<String>) -> Error {
    Error::new(Code::DataLoss, message.into())
}

impl Decoder {
    fn decode(&self, ctx: &mut KernelContext<'_>) -> Result<()> {
        let input = ctx.input(0)?;
        let messages = input.as_strings()?;
        if messages.is_empty() {
            device::invalid!("Bufs argument must contain at least one value");
        }
        check_scratch::<Values>(messages.len().saturating_mul(self.fields.len()))?;
        let budget = budget_of(ctx);
        let all = self.read_all(messages, &budget)?;
        let dims =
            |last: usize| -> Result<Shape> { Ok(Shape::new(&[input.shape().dims(), &[last]].concat())?) };
        let sizes = all.iter().flat_map(|message| message.iter().map(|values| values.count as i32));
        let sizes = Tensor::from_slice(&sizes.collect::<Vec<i32>>(), dims(self.fields.len())?)?;
        let mut outputs = Vec::with_capacity(self.fields.len());
        for (i, field) in self.fields.iter().enumerate() {
            budget.check_cancelled()?;
            let longest = all.iter().map(|message| message[i].count).max().unwrap_or(0).max(1);
            if all.iter().any(|message| message[i].packed_at.is_some_and(|at| at >= longest)) {
                return Err(data_loss(format!(
                    "ReadPackedValues: Tried to write more entries than allowed.  Field tag: {}, Max entries \
                     allowed: {longest}",
                    field.number
                )));
            }
            let values = all.iter().map(|message| &message[i]);
            outputs.push(field.tensor(values, longest, dims(longest)?, &budget)?);
        }
        ctx.set_output(0, sizes);
        for (i, output) in outputs.into_iter().enumerate() {
            ctx.set_output(1 + i, output);
        }
        Ok(())
    }

    /// Reads the requested fields of all messages. The budget pays for the values.
    fn read_all(&self, messages: &[Bytes], budget: &Budget<'_>) -> Result<Vec<Vec<Values>>> {
        let of = self.types.message()?;
        let row = size_of::<Vec<Values>>() + self.fields.len() * size_of::<Values>();
        budget.take(messages.len().saturating_mul(row))?;
        let mut all: Vec<Vec<Values>> = Vec::with_capacity(messages.len());
        for message in messages {
            budget.check_cancelled()?;
            all.push(if self.is_text || self.is_sanitized {
                let pool = &self.types.pool;
                let message = budget.lend(|| normalized(pool, of, message, self.is_text, budget))?;
                self.values(&message, budget)?
            } else {
                self.values(message, budget)?
            });
        }
        Ok(all)
    }

    /// Reads the requested fields of an encoded message.
    fn values(&self, message: &[u8], budget: &Budget<'_>) -> Result<Vec<Values>> {
        let mut all: Vec<Values> = self.fields.iter().map(|_| Values::default()).collect();
        let mut reader = Reader(message);
        loop {
            budget.step()?;
            let rest = reader;
            let unconsumed = || data_loss("CountFields: Failed to consume entire buffer");
            let (number, wire_type) = match reader.tag() {
                Ok(None) => return Ok(all),
                Ok(Some((_, WireType::EndGroup))) => return Err(unconsumed()),
                Ok(Some(tag)) => tag,
                Err(_) if rest.0.first() == Some(&0) => return Err(unconsumed()),
                Err(_) => return Err(data_loss("Failed skipping unrequested field")),
            };
            let found = self.by_number.get(&number);
            let Some((field, values)) = found.map(|i| (&self.fields[*i], &mut all[*i])) else {
                reader.skip(number, wire_type).map_err(|_| data_loss("Failed skipping unrequested field"))?;
                continue;
            };
            field.read(&mut reader, wire_type, values, budget)?;
        }
    }
}

/// Returns a message as protocol buffers' library writes it after it has read it.
fn normalized(
    pool: &Pool,
    of: &MessageType,
    message: &[u8],
    is_text: bool,
    budget: &Budget<'_>,
) -> Result<Vec<u8>> {
    let rewritten = || -> Result<Vec<u8>, Failure> {
        let parsed = if is_text {
            text::parse(pool, of, message, budget)
        } else {
            Message::read(pool, of, message, budget)
        };
        let parsed = parsed?;
        if !parsed.is_complete(pool, of, budget)? {
            return Err(Failure::Malformed);
        }
        let mut out = Vec::new();
        parsed.write(pool, of, &mut out, budget)?;
        Ok(out)
    };
    rewritten().map_err(|failure| match failure {
        Failure::Malformed => {
            data_loss(format!("Unable to parse {} protobuf", if is_text { "text" } else { "binary" }))
        }
        Failure::Stopped(error) => error,
    })
}

impl Requested {
    /// Reads a value or a packed list.
    fn read(
        &self,
        reader: &mut Reader<'_>,
        wire_type: WireType,
        values: &mut Values,
        budget: &Budget<'_>,
    ) -> Result<()> {
        let own = self.kind.wire_type();
        if wire_type == WireType::Delimited && own != WireType::Delimited {
            let bytes = reader.bytes().map_err(|_| data_loss("CollectField: Failed reading packed size"))?;
            return self.read_packed(bytes, values, budget);
        }
        if wire_type != own {
            let skipped = reader.skip(self.number, wire_type);
            return skipped.map_err(|_| data_loss("CollectField: Failed skipping malformed field"));
        }
        let failed = |_| data_loss("ReadValue: Failed skipping field when counting");
        if !self.is_repeated {
            budget.give(values.bytes());
            (values.numbers, values.texts) = Default::default();
        }
        match self.kind {
            Kind::Group => {
                let fields = reader.group(self.number).map_err(failed)?;
                let mut group = Vec::with_capacity(fields.len() + 2 * size_of::<u64>());
                put_tag(&mut group, self.number, WireType::StartGroup);
                group.extend_from_slice(fields);
                put_tag(&mut group, self.number, WireType::EndGroup);
                budget.take(text_bytes(group.len()))?;
                values.texts.push(group.into());
            }
            kind if kind.is_number() => {
                budget.take(size_of::<u64>())?;
                values.numbers.push(reader.number(kind).map_err(failed)?);
            }
            _ => {
                let bytes = reader.bytes().map_err(failed)?;
                budget.take(text_bytes(bytes.len()))?;
                values.texts.push(Bytes::copy_from_slice(bytes));
            }
        }
        values.count = values.numbers.len() + values.texts.len();
        Ok(())
    }

    /// Reads a packed list. A singular field keeps its default value, like in TensorFlow.
    fn read_packed(&self, bytes: &[u8], values: &mut Values, budget: &Budget<'_>) -> Result<()> {
        values.packed_at = values.packed_at.max(Some(values.numbers.len()));
        if bytes.is_empty() {
            return Ok(());
        }
        if !self.kind.is_number() {
            return Err(data_loss("TYPE_GROUP encountered as packed"));
        }
        let mut reader = Reader(bytes);
        let mut numbers = Vec::new();
        while !reader.0.is_empty() {
            budget.take(size_of::<u64>())?;
            let number = reader.number(self.kind).map_err(|_| match self.kind.wire_type() {
                WireType::Varint => data_loss("Corrupt packed varint"),
                _ => data_loss(format!("Illegal data length for packed fixed-size type: {}", bytes.len())),
            })?;
            // TensorFlow extends packed values of this type with zeros, not with the sign.
            let is_unsigned = self.kind == Kind::Int32 && self.dtype == DType::Int64;
            numbers.push(if is_unsigned { number & u64::from(u32::MAX) } else { number });
        }
        if self.is_repeated {
            values.numbers.append(&mut numbers);
            values.count = values.numbers.len();
        } else {
            budget.give(numbers.len() * size_of::<u64>());
            values.count = 1;
        }
        Ok(())
    }

    /// Returns the values of all messages, each padded with the default value to `longest` values.
    fn tensor<'a>(
        &self,
        messages: impl Iterator<Item = &'a Values>,
        longest: usize,
        shape: Shape,
        budget: &Budget<'_>,
    ) -> Result<Tensor> {
        let count = shape.num_elements();
        let default = match &self.default {
            DefaultValue::Number(bits) => *bits,
            DefaultValue::Bytes(default) => {
                check_scratch::<Bytes>(count)?;
                budget.take(count.saturating_mul(size_of::<Bytes>()))?;
                let padded = messages.flat_map(|values| {
                    values.texts.iter().chain(std::iter::repeat(default)).take(longest).cloned()
                });
                return Ok(Tensor::strings(padded.collect(), shape)?);
            }
        };
        check_scratch::<u64>(count)?;
        budget.take(count.saturating_mul(size_of::<u64>()))?;
        let numbers = messages.flat_map(|values| {
            values.numbers.iter().copied().chain(std::iter::repeat(default)).take(longest)
        });
        Ok(match (self.dtype, self.kind) {
            (DType::Double, Kind::Float) => {
                let values = numbers.map(|bits| f64::from(f32::from_bits(bits as u32)));
                Tensor::from_slice(&values.collect::<Vec<_>>(), shape)?
            }
            (DType::Double, _) => {
                Tensor::from_slice(&numbers.map(f64::from_bits).collect::<Vec<_>>(), shape)?
            }
            (DType::Float, _) => Tensor::from_slice(
                &numbers.map(|bits| f32::from_bits(bits as u32)).collect::<Vec<_>>(),
                shape,
            )?,
            (DType::Int32, _) => {
                Tensor::from_slice(&numbers.map(|bits| bits as i32).collect::<Vec<_>>(), shape)?
            }
            (DType::UInt32, _) => {
                Tensor::from_slice(&numbers.map(|bits| bits as u32).collect::<Vec<_>>(), shape)?
            }
            (DType::UInt64, _) => Tensor::from_slice(&numbers.collect::<Vec<u64>>(), shape)?,
            (DType::Bool, _) => {
                Tensor::from_slice(&numbers.map(|bits| Bool8::from(bits != 0)).collect::<Vec<_>>(), shape)?
            }
            _ => Tensor::from_slice(&numbers.map(|bits| bits as i64).collect::<Vec<_>>(), shape)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::pool_of;
    use super::super::wire::put_bytes;
    use super::*;
    use device::cancel::Cancellation;

    /// Returns a decoder of the values of `BytesList` messages.
    fn decoder(is_sanitized: bool) -> Decoder {
        let types = Types {
            pool: pool_of(b"local://").expect("the messages of TensorFlow"),
            name: "tensorflow.BytesList".to_owned(),
        };
        let field = Requested {
            number: 1,
            kind: Kind::Bytes,
            is_repeated: true,
            dtype: DType::String,
            default: DefaultValue::Bytes(Bytes::new()),
        };
        Decoder {
            types,
            fields: vec![field],
            by_number: BTreeMap::from([(1, 0)]),
            is_text: false,
            is_sanitized,
        }
    }

    /// Returns a message with `count` values of `len` bytes.
    fn message(count: usize, len: usize) -> Bytes {
        let mut out = Vec::new();
        for _ in 0..count {
            put_tag(&mut out, 1, WireType::Delimited);
            put_bytes(&mut out, &vec![7; len]);
        }
        out.into()
    }

    #[test]
    fn values_of_messages_that_share_their_bytes_are_bounded_by_the_memory_limit() {
        let cancellation = Cancellation::new();
        let messages = vec![message(1, 10_000); 100];
        for is_sanitized in [false, true] {
            let decoder = decoder(is_sanitized);
            let read = decoder.read_all(&messages, &Budget::new(2_000_000, &cancellation));
            assert_eq!(read.expect("values within the limit")[99][0].texts[0], vec![7; 10_000]);
            let read = decoder.read_all(&messages, &Budget::new(500_000, &cancellation));
            assert_eq!(read.expect_err("an error").code(), Code::ResourceExhausted);
        }
    }

    #[test]
    fn a_cancelled_step_ends_the_decoding_of_one_long_message() {
        let cancellation = Cancellation::new();
        cancellation.cancel(Error::new(Code::Cancelled, "the client left"));
        let budget = Budget::new(u64::MAX, &cancellation);
        let read = decoder(false).values(&message(10_000, 0), &budget);
        assert_eq!(read.expect_err("an error").code(), Code::Cancelled);
        let types = decoder(true).types;
        let read = normalized(
            &types.pool,
            types.message().expect("a message type"),
            &message(10_000, 0),
            false,
            &budget,
        );
        assert_eq!(read.expect_err("an error").code(), Code::Cancelled);
    }
}
