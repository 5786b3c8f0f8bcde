//! The fields of a message of options that are set, by name: what the generated structs alone cannot say.

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// A message's name, and its fields.
type Message = (&'static str, &'static [Field]);

/// A field's number, its name, the name of its type unless that is a scalar, and whether it is one message whose
/// own fields count.
type Field = (u32, &'static str, &'static str, bool);

mod table {
    use super::Message;
    include!(concat!(env!("OUT_DIR"), "/fields.rs"));
}

/// A field that is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetField {
    /// From the message down: `graph_options.optimizer_options.opt_level`. Lists and maps are one field.
    pub path: String,
    /// The name of its type, with its package; empty for scalars.
    pub type_name: &'static str,
    /// Its value, of a number, an enum or a bool; 0 for others.
    pub value: u64,
}

/// A message of options.
pub trait Options: prost::Message {
    /// With its package.
    const NAME: &'static str;
}

impl Options for crate::pb::ConfigProto {
    const NAME: &'static str = "tensorflow.ConfigProto";
}

impl Options for crate::pb::RunOptions {
    const NAME: &'static str = "tensorflow.RunOptions";
}

/// The fields that are set, and not to their defaults; each once.
pub fn set_fields<T: Options>(options: &T) -> Vec<SetField> {
    let mut found = Vec::new();
    let bytes = options.encode_to_vec();
    // What was just encoded can be read.
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
