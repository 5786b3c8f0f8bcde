//! Variants as `VariantTensorDataProto` messages. Only the states of iterators can be stored.

use super::content::ContentError;
use crate::error::{Error, Result};
use crate::proto::{Fields, Malformed, Writer};
use bytes::Bytes;
use graph::Tensor;
use graph::tensor::{IteratorState, Variant};

/// Encodes each element of a tensor of variants.
///
/// # Errors
/// `Unimplemented` naming the type if a variant is not the state of an iterator.
pub(super) fn encoded(tensor: &Tensor) -> Result<Vec<Vec<u8>>> {
    let encode = |variant: &Variant| match variant.get::<IteratorState>() {
        Some(IteratorState(state)) => {
            let mut proto = Writer::new();
            proto.string(1, IteratorState::TYPE_NAME.as_bytes()).string(2, state);
            Ok(proto.finish())
        }
        None => {
            let name = variant.object().map_or("nothing", |object| object.type_name());
            Err(unsupported(name))
        }
    };
    tensor.as_variants()?.iter().map(encode).collect()
}

/// Decodes a variant.
///
/// # Errors
/// `Unimplemented` naming the type if the variant is not the state of an iterator.
pub(super) fn decoded(message: &Bytes) -> Result<Variant, ContentError> {
    let read = || {
        let (mut name, mut state) = (&b""[..], &b""[..]);
        for field in Fields::of(message) {
            match field? {
                (1, value) => name = value.bytes()?,
                (2, value) => state = value.bytes()?,
                _ => {}
            }
        }
        Ok::<_, Malformed>((name, state))
    };
    let (name, state) = read().map_err(|_| ContentError::Layout("has a malformed variant"))?;
    if name != IteratorState::TYPE_NAME.as_bytes() {
        return Err(ContentError::Unsupported(unsupported(&String::from_utf8_lossy(name))));
    }
    // The state is copied, so that it does not keep the bytes of the whole tensor alive.
    Ok(Variant::new(IteratorState(Bytes::copy_from_slice(state))))
}

fn unsupported(name: &str) -> Error {
    Error::unimplemented(format!("a variant that holds {name} in a checkpoint"))
}
