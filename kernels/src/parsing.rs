//! Kernels that decode tensors from serialized bytes: raw numbers, CSV, compressed data and protocol buffers.

pub(super) mod csv;
pub(crate) mod example;
mod raw;

use crate::objects::io::Compression;
use base64::Engine as _;
use bytes::Bytes;
use device::kernel::{Kernel, KernelDef};
use device::{Error, Result};
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use graph::{Code, DType, Tensor};
use std::io::{ErrorKind, Read};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("DecodeRaw", &[], raw::decode),
    KernelDef::of("DecodePaddedRaw", &[], raw::decode_padded),
    KernelDef::of("DecodeCSV", &[], csv::decode),
    KernelDef::of("DecodeCompressed", &[], |init| {
        let name = init.attr::<String>("compression_type")?;
        let compression = Compression::parse(name.as_bytes())
            .map_err(|_| Error::invalid("Only ZLIB, ZSTD, GZIP or NONE are supported compressions"))?;
        Kernel::sync(move |ctx| {
            let input = ctx.input(0)?;
            let all = input
                .as_strings()?
                .iter()
                .map(|s| decompressed(s, compression))
                .collect::<Result<Vec<_>>>()?;
            let out = Tensor::strings(all, input.shape().clone())?;
            ctx.set_output(0, out);
            Ok(())
        })
    }),
    KernelDef::of("ParseTensor", &[], |init| {
        let dtype = init.attr::<DType>("out_type")?;
        Kernel::sync(move |ctx| {
            let input = ctx.input(0)?;
            let (0, [serialized]) = (input.shape().rank(), input.as_strings()?) else {
                device::invalid!("Expected `serialized` to be a scalar, got shape: {}", input.shape());
            };
            let tensor = checkpoint::tensor::decode(serialized).map_err(|_| {
                let shown =
                    base64::engine::general_purpose::STANDARD.encode(&serialized[..serialized.len().min(64)]);
                Error::invalid(format!("Could not parse `serialized` as TensorProto, base64: {shown}"))
            })?;
            if tensor.dtype() != dtype {
                device::invalid!(
                    "Type mismatch between parsed tensor ({}) and dtype ({dtype})",
                    tensor.dtype()
                );
            }
            ctx.set_output(0, tensor);
            Ok(())
        })
    }),
    KernelDef::of("SerializeTensor", &[], |_| {
        Kernel::sync(|ctx| {
            let serialized = checkpoint::tensor::encode(ctx.input(0)?)?;
            ctx.set_output(0, Tensor::string(serialized));
            Ok(())
        })
    }),
    KernelDef::of("ParseExample", &[], example::parse_v1),
    KernelDef::of("ParseExampleV2", &[], example::parse_v2),
    KernelDef::of("ParseSingleExample", &[], example::parse_single),
    KernelDef::of("ParseSequenceExample", &[], example::sequence::parse_v1),
    KernelDef::of("ParseSequenceExampleV2", &[], example::sequence::parse_v2),
    KernelDef::of("ParseSingleSequenceExample", &[], example::sequence::parse_single),
];

/// The maximum number of bytes that a string may decompress to.
const LARGEST: u64 = 1 << 31;

/// Returns the decompressed bytes; truncated data gives the bytes before the truncation, like in TensorFlow.
fn decompressed(s: &Bytes, compression: Compression) -> Result<Bytes> {
    let inflate = |stream: &mut dyn Read| {
        let mut out = Vec::new();
        match stream.take(LARGEST + 1).read_to_end(&mut out) {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => {}
            Err(e) => return Err(Error::new(Code::DataLoss, format!("cannot be decompressed: {e}"))),
        }
        if out.len() as u64 > LARGEST {
            return Err(Error::new(
                Code::ResourceExhausted,
                format!("more than {LARGEST} bytes when decompressed"),
            ));
        }
        Ok(Bytes::from(out))
    };
    match compression {
        Compression::None => Ok(s.clone()),
        Compression::Zlib => inflate(&mut ZlibDecoder::new(&s[..])),
        // The decoder does not check the first bytes of a truncated header, so the magic number is checked here.
        Compression::Gzip if s.iter().zip([0x1f, 0x8b]).any(|(&byte, magic)| byte != magic) => {
            Err(Error::new(Code::DataLoss, "cannot be decompressed: incorrect header check"))
        }
        Compression::Gzip => inflate(&mut MultiGzDecoder::new(&s[..])),
        Compression::Snappy => Err(Error::unimplemented("strings that are compressed by Snappy")),
    }
}

#[cfg(test)]
mod tests;
