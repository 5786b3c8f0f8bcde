//! Kernels of strings.

mod join;
mod ngrams;
mod number;
mod pattern;
mod split;
mod substr;

use crate::numeric::farm::fingerprint64;
use base64::Engine as _;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, URL_SAFE, URL_SAFE_NO_PAD};
use base64::engine::{DecodePaddingMode, GeneralPurpose as Codec};
use bytes::Bytes;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Error, Result};
use graph::Tensor;
use siphasher::sip::SipHasher24;

pub(super) use number::parse_float;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("StaticRegexFullMatch", &[], pattern::static_full_match),
    KernelDef::of("RegexFullMatch", &[], pattern::full_match),
    KernelDef::of("RegexReplace", &[], pattern::replace),
    KernelDef::of("StaticRegexReplace", &[], pattern::static_replace),
    KernelDef::of("StringJoin", &[], join::join),
    KernelDef::of("ReduceJoin", &[], join::reduce),
    KernelDef::of("UnsortedSegmentJoin", &[], join::segments),
    KernelDef::of("StringSplit", &[], split::split),
    KernelDef::of("StringSplitV2", &[], split::split_v2),
    KernelDef::of("StringNGrams", &[], ngrams::ngrams),
    KernelDef::of("StringToHashBucketFast", &[], |init| buckets(init, |_, s| fingerprint64(s))),
    KernelDef::of("Fingerprint", &[], |_| {
        Kernel::sync(|ctx| {
            let out = fingerprints(ctx.input(0)?, ctx.input(1)?)?;
            ctx.set_output(0, out);
            Ok(())
        })
    }),
    KernelDef::of("StringToHashBucket", &[], |init| buckets(init, |_, s| murmur64(s))),
    KernelDef::of("StringToHashBucketStrong", &[], |init| {
        if init.attr::<Vec<i64>>("key")?.len() != 2 {
            device::invalid!("Key must have 2 elements");
        }
        buckets(init, |key, s| SipHasher24::new_with_keys(key[0], key[1]).hash(s))
    }),
    KernelDef::of("StringToNumber", &[], number::parse),
    KernelDef::of("AsString", &[], number::format),
    KernelDef::of("StringLength", &[], |init| {
        let unit = Unit::of(init)?;
        Kernel::sync(move |ctx| {
            let input = ctx.input(0)?;
            let length =
                |s: &Bytes| i32::try_from(unit.length(s)).map_err(|_| Error::invalid("string too long"));
            let lengths = input.as_strings()?.iter().map(length).collect::<Result<Vec<_>>>()?;
            let out = Tensor::from_slice(&lengths, input.shape().clone())?;
            ctx.set_output(0, out);
            Ok(())
        })
    }),
    KernelDef::of("StringLower", &[], |init| {
        cased(init, |s| s.to_ascii_lowercase(), |s| String::from_utf8_lossy(s).to_lowercase())
    }),
    KernelDef::of("StringUpper", &[], |init| {
        cased(init, |s| s.to_ascii_uppercase(), |s| String::from_utf8_lossy(s).to_uppercase())
    }),
    KernelDef::of("StringStrip", &[], |_| Kernel::sync(|ctx| mapped(ctx, |s| Ok(stripped(s))))),
    KernelDef::of("Substr", &[], substr::substr),
    KernelDef::of("EncodeBase64", &[], |init| {
        let codec = if init.attr::<bool>("pad")? { URL_SAFE } else { URL_SAFE_NO_PAD };
        Kernel::sync(move |ctx| mapped(ctx, |s| Ok(codec.encode(s).into())))
    }),
    KernelDef::of("DecodeBase64", &[], |_| Kernel::sync(|ctx| mapped(ctx, decoded))),
];

/// Returns the fingerprint of each row of `data`, as the eight bytes of a little-endian number. The fingerprint of
/// several strings is that of their fingerprints.
fn fingerprints(data: &Tensor, method: &Tensor) -> Result<Tensor> {
    let (0, [method]) = (method.shape().rank(), method.as_strings()?) else {
        device::invalid!("`method` should be a scalar string: {}", method.shape());
    };
    if &method[..] != b"farmhash64" {
        device::invalid!("Unsupported fingerprint method: {}", String::from_utf8_lossy(method));
    }
    let Some((&rows, inner)) = data.shape().dims().split_first() else {
        device::invalid!("`data` should have at least one dimension: {}", data.shape());
    };
    let width: usize = inner.iter().product();
    // Rows without elements have no memory of their own.
    let mut out = Tensor::zeros(graph::DType::UInt8, graph::Shape::new(&[rows, 8])?)?;
    for (row, bytes) in out.values_mut::<u8>()?.chunks_exact_mut(8).enumerate() {
        let elements = row * width..(row + 1) * width;
        let hash = match data.as_strings() {
            Ok(strings) if width == 1 => fingerprint64(&strings[row]),
            Ok(strings) => {
                let parts = strings[elements].iter().flat_map(|s| fingerprint64(s).to_le_bytes());
                fingerprint64(&parts.collect::<Vec<u8>>())
            }
            Err(_) => {
                let size = data.dtype().size().unwrap_or(1);
                fingerprint64(&data.bytes()?[elements.start * size..elements.end * size])
            }
        };
        bytes.copy_from_slice(&hash.to_le_bytes());
    }
    Ok(out)
}

/// The unit in which a string's length is counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Byte,
    /// UTF-8 characters: a string's length is the number of bytes that do not continue a character.
    Character,
}

impl Unit {
    fn of(init: &KernelInit<'_>) -> Result<Unit> {
        Ok(if init.attr::<String>("unit")? == "BYTE" { Unit::Byte } else { Unit::Character })
    }

    fn length(self, s: &[u8]) -> usize {
        match self {
            Unit::Byte => s.len(),
            Unit::Character => s.iter().filter(|&&b| is_start(b)).count(),
        }
    }
}

/// Returns whether a byte starts a UTF-8 character.
fn is_start(byte: u8) -> bool {
    byte & 0xc0 != 0x80
}

/// Sets output 0 to the results of `map` for all strings of input 0.
fn mapped(ctx: &mut KernelContext<'_>, map: impl Fn(&Bytes) -> Result<Bytes>) -> Result<()> {
    let input = ctx.input(0)?;
    let strings = input.as_strings()?.iter().map(map).collect::<Result<Vec<_>>>()?;
    let out = Tensor::strings(strings, input.shape().clone())?;
    ctx.set_output(0, out);
    Ok(())
}

fn buckets(init: &KernelInit<'_>, hash: fn(&[u64], &[u8]) -> u64) -> Result<Kernel> {
    let count = init.attr::<i64>("num_buckets")?;
    let count = u64::try_from(count).ok().filter(|&n| n > 0);
    let Some(count) = count else { device::invalid!("num_buckets must be at least 1") };
    let key: Vec<u64> = match init.node.op.attr_spec("key") {
        Some(_) => init.attr::<Vec<i64>>("key")?.into_iter().map(|k| k as u64).collect(),
        None => Vec::new(),
    };
    Kernel::sync(move |ctx| {
        let input = ctx.input(0)?;
        let buckets: Vec<i64> = input.as_strings()?.iter().map(|s| (hash(&key, s) % count) as i64).collect();
        let out = Tensor::from_slice(&buckets, input.shape().clone())?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Returns the MurmurHash64A (Appleby, 2008) of `bytes` with TensorFlow's seed.
fn murmur64(bytes: &[u8]) -> u64 {
    const SEED: u64 = 0x00de_cafc_affe;
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    let mut h = SEED ^ (bytes.len() as u64).wrapping_mul(M);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let mut k = u64::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> 47;
        h = (h ^ k.wrapping_mul(M)).wrapping_mul(M);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        h = (h ^ u64::from_le_bytes(last)).wrapping_mul(M);
    }
    h = (h ^ (h >> 47)).wrapping_mul(M);
    h ^ (h >> 47)
}

fn cased(init: &KernelInit<'_>, ascii: fn(&[u8]) -> Vec<u8>, unicode: fn(&[u8]) -> String) -> Result<Kernel> {
    let encoding = init.attr::<String>("encoding")?;
    if !matches!(&*encoding, "" | "utf-8") {
        device::invalid!("only utf-8 or '' (no encoding) is supported, received {encoding}");
    }
    let is_ascii = encoding.is_empty();
    Kernel::sync(move |ctx| {
        mapped(ctx, |s| Ok(if is_ascii { ascii(s).into() } else { unicode(s).into_bytes().into() }))
    })
}

/// Returns whether a byte is ASCII white space by the definition of C's `isspace`.
fn is_space(byte: u8) -> bool {
    byte == b' ' || (b'\t'..=b'\r').contains(&byte)
}

fn stripped(s: &Bytes) -> Bytes {
    let start = s.iter().position(|&b| !is_space(b)).unwrap_or(s.len());
    let end = s.iter().rposition(|&b| !is_space(b)).map_or(start, |last| last + 1);
    s.slice(start..end)
}

/// Decodes URL-safe base64, with or without padding. Surplus bits after the last byte are ignored.
fn decoded(s: &Bytes) -> Result<Bytes> {
    const CODEC: Codec = GeneralPurpose::new(
        &base64::alphabet::URL_SAFE,
        GeneralPurposeConfig::new()
            .with_decode_padding_mode(DecodePaddingMode::RequireNone)
            .with_decode_allow_trailing_bits(true),
    );
    let content = match s.len() % 4 {
        0 => s.strip_suffix(b"==").or(s.strip_suffix(b"=")).unwrap_or(s),
        _ => &s[..],
    };
    if content.len() % 4 == 1 {
        device::invalid!("Base64 string length cannot be 1 modulo 4.");
    }
    let bytes = CODEC.decode(content).map_err(|_| Error::invalid("Invalid character found in base64."))?;
    Ok(bytes.into())
}

#[cfg(test)]
mod tests;
