//! Lists the option fields that are set in a message, by name, which the generated structs cannot do.

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// The name of a message, and its fields.
type Message = (&'static str, &'static [Field]);

/// The number of a field, its name, the name of its type (empty for scalars), and whether it is a single
/// message whose own fields are listed.
type Field = (u32, &'static str, &'static str, bool);

mod table {
    use super::Message;
    include!("generated/fields.rs");
}

/// An option field that is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetField {
    /// Path from the top message: `graph_options.optimizer_options.opt_level`. A list or map is one field.
    pub path: String,
    /// Name of the field's type, with its package; empty for scalars.
    pub type_name: &'static str,
    /// The value of a number, an enum or a bool; 0 for other types.
    pub value: u64,
}

/// A message of options.
pub trait Options: prost::Message {
    /// Name of the message, with its package.
    const NAME: &'static str;
}

impl Options for crate::pb::ConfigProto {
    const NAME: &'static str = "tensorflow.ConfigProto";
}

impl Options for crate::pb::RunOptions {
    const NAME: &'static str = "tensorflow.RunOptions";
}

/// Returns the fields that are set to other values than their defaults, each once.
pub fn set_fields<T: Options>(options: &T) -> Vec<SetField> {
    let mut found = Vec::new();
    let bytes = options.encode_to_vec();
    // Decoding cannot fail, because the bytes were encoded above.
    let _ = walk(T::NAME, "", &bytes, &mut found);
    found
}

fn walk(
    message: &str,
    prefix: &str,
    mut bytes: &[u8],
    found: &mut Vec<SetField>,
) -> Result<(), prost::DecodeError> {
    let fields = table::MESSAGES.iter().find(|known| known.0 == message).map_or(&[][..], |known| known.1);
    while !bytes.is_empty() {
        let (number, wire) = decode_key(&mut bytes)?;
        let Some(&(_, name, type_name, is_entered)) = fields.iter().find(|field| field.0 == number) else {
            skip_field(wire, number, &mut bytes, DecodeContext::default())?;
            continue;
        };
        let path = format!("{prefix}{name}");
        let mut value = 0;
        match wire {
            WireType::Varint => value = decode_varint(&mut bytes)?,
            WireType::LengthDelimited if is_entered => {
                let length = decode_varint(&mut bytes)? as usize;
                let (inner, rest) = bytes.split_at(length.min(bytes.len()));
                bytes = rest;
                walk(type_name, &format!("{path}."), inner, found)?;
                continue;
            }
            _ => skip_field(wire, number, &mut bytes, DecodeContext::default())?,
        }
        if !found.iter().any(|known| known.path == path) {
            found.push(SetField { path, type_name, value });
        }
    }
    Ok(())
}
