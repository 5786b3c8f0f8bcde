//! `DecodeProtoV2`: the values of some fields of encoded messages, as tensors that are padded to the longest field.

use super::descriptor::{DefaultValue, Field, Kind, MessageType, Pool, WireType};
use super::message::Message;
use super::wire::{Reader, put_tag};
use super::{Types, is_compatible, text};
use crate::numeric::scratch::check_scratch;
use bytes::Bytes;
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{Error, Result};
use graph::{Bool8, Code, DType, Shape, Tensor};

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
    is_text: bool,
    is_sanitized: bool,
}

/// The values of a field in one message.
#[derive(Default)]
struct Values {
    numbers: Vec<u64>,
    texts: Vec<Bytes>,
    /// The number of values in the message, at most 1 for a singular field.
    count: usize,
    /// The values that precede an empty or misplaced packed list.
    packed_at: Option<usize>,
}

pub(super) fn decode(init: &KernelInit<'_>) -> Result<Kernel> {
    let types = Types::of(init)?;
    let (names, dtypes) = (init.attr::<Vec<Bytes>>("field_names")?, init.attr::<Vec<DType>>("output_types")?);
    if names.len() != dtypes.len() {
        device::invalid!("field_names and output_types attributes must have the same length");
    }
    let mut fields = Vec::new();
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
        fields.push(Requested { number, kind, is_repeated, dtype, default: types.pool.default_of(field)? });
    }
    let is_text = match &init.attr::<Bytes>("message_format")?[..] {
        b"binary" => false,
        b"text" => true,
        _ => device::invalid!("format must be one of binary or text"),
    };
    let decoder = Decoder { types, fields, is_text, is_sanitized: init.attr("sanitize")? };
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
        let of = self.types.message()?;
        let mut all: Vec<Vec<Values>> = Vec::with_capacity(messages.len());
        for message in messages {
            all.push(if self.is_text || self.is_sanitized {
                self.values(&normalized(&self.types.pool, of, message, self.is_text)?)?
            } else {
                self.values(message)?
            });
        }
        let dims =
            |last: usize| -> Result<Shape> { Ok(Shape::new(&[input.shape().dims(), &[last]].concat())?) };
        let sizes = all.iter().flat_map(|message| message.iter().map(|values| values.count as i32));
        let sizes = Tensor::from_slice(&sizes.collect::<Vec<i32>>(), dims(self.fields.len())?)?;
        let mut outputs = Vec::with_capacity(self.fields.len());
        for (i, field) in self.fields.iter().enumerate() {
            let longest = all.iter().map(|message| message[i].count).max().unwrap_or(0).max(1);
            if all.iter().any(|message| message[i].packed_at.is_some_and(|at| at >= longest)) {
                return Err(data_loss(format!(
                    "ReadPackedValues: Tried to write more entries than allowed.  Field tag: {}, Max entries \
                     allowed: {longest}",
                    field.number
                )));
            }
            outputs.push(field.tensor(all.iter().map(|message| &message[i]), longest, dims(longest)?)?);
        }
        ctx.set_output(0, sizes);
        for (i, output) in outputs.into_iter().enumerate() {
            ctx.set_output(1 + i, output);
        }
        Ok(())
    }

    /// Reads the requested fields of an encoded message.
    fn values(&self, message: &[u8]) -> Result<Vec<Values>> {
        let mut all: Vec<Values> = self.fields.iter().map(|_| Values::default()).collect();
        let mut reader = Reader(message);
        loop {
            let rest = reader;
            let unconsumed = || data_loss("CountFields: Failed to consume entire buffer");
            let (number, wire_type) = match reader.tag() {
                Ok(None) => return Ok(all),
                Ok(Some((_, WireType::EndGroup))) => return Err(unconsumed()),
                Ok(Some(tag)) => tag,
                Err(_) if rest.0.first() == Some(&0) => return Err(unconsumed()),
                Err(_) => return Err(data_loss("Failed skipping unrequested field")),
            };
            // Of several requests for one field, the first one gets the values.
            let found = self.fields.iter().position(|field| field.number == number);
            let Some((field, values)) = found.map(|i| (&self.fields[i], &mut all[i])) else {
                reader.skip(number, wire_type).map_err(|_| data_loss("Failed skipping unrequested field"))?;
                continue;
            };
            field.read(&mut reader, wire_type, values)?;
        }
    }
}

/// Returns a message as protocol buffers' library writes it after it has read it.
fn normalized(pool: &Pool, of: &MessageType, message: &[u8], is_text: bool) -> Result<Vec<u8>> {
    let form = if is_text { "text" } else { "binary" };
    let parsed = if is_text { text::parse(pool, of, message) } else { Message::read(pool, of, message) };
    let parsed = parsed.ok().filter(|parsed| parsed.is_complete(pool, of));
    let parsed = parsed.ok_or_else(|| data_loss(format!("Unable to parse {form} protobuf")))?;
    let mut out = Vec::new();
    parsed.write(pool, of, &mut out);
    Ok(out)
}

impl Requested {
    /// Reads a value or a packed list.
    fn read(&self, reader: &mut Reader<'_>, wire_type: WireType, values: &mut Values) -> Result<()> {
        let own = self.kind.wire_type();
        if wire_type == WireType::Delimited && own != WireType::Delimited {
            let bytes = reader.bytes().map_err(|_| data_loss("CollectField: Failed reading packed size"))?;
            return self.read_packed(bytes, values);
        }
        if wire_type != own {
            let skipped = reader.skip(self.number, wire_type);
            return skipped.map_err(|_| data_loss("CollectField: Failed skipping malformed field"));
        }
        let failed = |_| data_loss("ReadValue: Failed skipping field when counting");
        if !self.is_repeated {
            (values.numbers, values.texts) = Default::default();
        }
        match self.kind {
            Kind::Group => {
                let fields = reader.group(self.number).map_err(failed)?;
                let mut group = Vec::with_capacity(fields.len() + 4);
                put_tag(&mut group, self.number, WireType::StartGroup);
                group.extend_from_slice(fields);
                put_tag(&mut group, self.number, WireType::EndGroup);
                values.texts.push(group.into());
            }
            kind if kind.is_number() => values.numbers.push(reader.number(kind).map_err(failed)?),
            _ => values.texts.push(Bytes::copy_from_slice(reader.bytes().map_err(failed)?)),
        }
        values.count = values.numbers.len() + values.texts.len();
        Ok(())
    }

    /// Reads a packed list. A singular field keeps its default value, like in TensorFlow.
    fn read_packed(&self, bytes: &[u8], values: &mut Values) -> Result<()> {
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
    ) -> Result<Tensor> {
        let count = shape.num_elements();
        let default = match &self.default {
            DefaultValue::Number(bits) => *bits,
            DefaultValue::Bytes(default) => {
                check_scratch::<Bytes>(count)?;
                let padded = messages.flat_map(|values| {
                    values.texts.iter().chain(std::iter::repeat(default)).take(longest).cloned()
                });
                return Ok(Tensor::strings(padded.collect(), shape)?);
            }
        };
        check_scratch::<u64>(count)?;
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
