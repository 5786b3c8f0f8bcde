//! Tensors as bytes of a data file. Numeric elements are stored as they are in memory; strings as their
//! lengths, a checksum of the lengths, and the concatenated strings; variants each as a message with its length before
//! and a checksum after it.

use super::variant;
use crate::checksum::Checksum;
use crate::error::Result;
use crate::proto::{put_varint, take_varint};
use crate::store::Pending;
use bytes::Bytes;
use graph::{DType, Shape, Tensor};
use std::sync::Arc;

/// A value that a bundle can store: a tensor, or numeric elements that are produced piece by piece.
pub trait Content {
    fn dtype(&self) -> DType;

    fn shape(&self) -> &Shape;

    /// Writes all elements to the sink, in row-major order.
    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()>;
}

/// The writer of the bytes of one tensor to a file.
#[derive(Debug)]
pub struct Sink<'a> {
    file: &'a mut dyn Pending,
    size: u64,
    checksum: Checksum,
}

impl<'a> Sink<'a> {
    pub(super) fn new(file: &'a mut dyn Pending) -> Sink<'a> {
        Sink { file, size: 0, checksum: Checksum::default() }
    }

    /// Appends bytes of numeric elements to the file, and adds them to the checksum.
    pub fn add(&mut self, bytes: &[u8]) -> Result<()> {
        self.checksum.add(bytes);
        self.put(bytes)
    }

    /// Adds bytes of numeric elements from `read`, which fills the start of the buffer passed to it and
    /// returns the number of bytes, until it returns 0.
    pub fn add_from(&mut self, mut read: impl FnMut(&mut [u8]) -> Result<usize>) -> Result<()> {
        let (checksum, size) = (&mut self.checksum, &mut self.size);
        self.file.write_from(&mut |space| {
            let count = read(space)?;
            checksum.add(&space[..count]);
            *size += count as u64;
            Ok(count)
        })
    }

    /// Writes bytes without adding them to the checksum.
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.size += bytes.len() as u64;
        self.file.write(bytes)
    }

    fn add_strings(&mut self, strings: &[Bytes]) -> Result<()> {
        let lengths = Lengths::of(strings);
        self.put(&lengths.encoded)?;
        self.checksum.add(&lengths.checked);
        self.add(&lengths.checksum)?;
        strings.iter().try_for_each(|string| self.add(string))
    }

    /// Adds the message of a variant: its length, its bytes, and the checksum of all bytes so far, in which lengths
    /// count as numbers of eight bytes.
    fn add_message(&mut self, message: &[u8]) -> Result<()> {
        let mut length = Vec::new();
        put_varint(&mut length, message.len() as u64);
        self.put(&length)?;
        self.checksum.add(&(message.len() as u64).to_le_bytes());
        self.add(message)?;
        let checksum = self.checksum.masked();
        self.add(&checksum.to_le_bytes())
    }

    /// Returns the number of bytes and their masked checksum.
    pub(super) fn finish(self) -> (u64, u32) {
        (self.size, self.checksum.masked())
    }
}

impl Content for Tensor {
    fn dtype(&self) -> DType {
        self.dtype()
    }

    fn shape(&self) -> &Shape {
        self.shape()
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        match self.dtype() {
            DType::String => sink.add_strings(self.as_strings()?),
            DType::Variant => {
                variant::encoded(self)?.iter().try_for_each(|message| sink.add_message(message))
            }
            _ => sink.add(self.bytes()?),
        }
    }
}

impl<C: Content> Content for Arc<C> {
    fn dtype(&self) -> DType {
        C::dtype(self)
    }

    fn shape(&self) -> &Shape {
        C::shape(self)
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        C::write_to(self, sink)
    }
}

/// The lengths of the strings of a tensor, in the form that is stored and in the form that is checksummed.
struct Lengths {
    encoded: Vec<u8>,
    checked: Vec<u8>,
    /// Masked checksum of `checked`.
    checksum: [u8; 4],
}

impl Lengths {
    fn of(strings: &[Bytes]) -> Lengths {
        let mut lengths = Lengths { encoded: Vec::new(), checked: Vec::new(), checksum: [0; 4] };
        for string in strings {
            lengths.push(string.len() as u64);
        }
        lengths.close();
        lengths
    }

    fn push(&mut self, length: u64) {
        put_varint(&mut self.encoded, length);
        match u32::try_from(length) {
            Ok(short) => self.checked.extend_from_slice(&short.to_le_bytes()),
            Err(_) => self.checked.extend_from_slice(&length.to_le_bytes()),
        }
    }

    fn close(&mut self) {
        let mut checksum = Checksum::default();
        checksum.add(&self.checked);
        self.checksum = checksum.masked().to_le_bytes();
    }
}

/// The reason why a tensor's bytes are invalid.
pub(super) enum ContentError {
    Layout(&'static str),
    Checksum { stored: u32, actual: u32 },
    Tensor(graph::Error),
    Unsupported(crate::error::Error),
}

impl From<graph::Error> for ContentError {
    fn from(error: graph::Error) -> ContentError {
        ContentError::Tensor(error)
    }
}

/// Decodes a tensor of strings from its stored bytes and the masked checksum `stored` in its index entry.
pub(super) fn strings(bytes: Bytes, shape: &Shape, stored: u32) -> Result<Tensor, ContentError> {
    let count = shape.num_elements();
    // Each string's length takes at least one byte, so that an invalid count cannot make the vectors larger than the
    // data.
    if count > bytes.len() {
        return Err(ContentError::Layout("has fewer bytes than strings"));
    }
    let mut rest = &bytes[..];
    let mut lengths = Lengths { encoded: Vec::new(), checked: Vec::new(), checksum: [0; 4] };
    let mut ends = Vec::with_capacity(count);
    for _ in 0..count {
        let length = take_varint(&mut rest).ok_or(ContentError::Layout("has a malformed length"))?;
        lengths.push(length);
        ends.push(
            usize::try_from(length).map_err(|_| ContentError::Layout("has a string that is too long"))?,
        );
    }
    lengths.close();
    let (checksum, content) =
        rest.split_first_chunk::<4>().ok_or(ContentError::Layout("is cut off in its lengths"))?;
    if *checksum != lengths.checksum {
        return Err(ContentError::Checksum {
            stored: u32::from_le_bytes(*checksum),
            actual: u32::from_le_bytes(lengths.checksum),
        });
    }
    let mut actual = Checksum::default();
    actual.add(&lengths.checked);
    actual.add(&lengths.checksum);
    actual.add(content);
    if actual.masked() != stored {
        return Err(ContentError::Checksum { stored, actual: actual.masked() });
    }
    let mut at = bytes.len() - content.len();
    let mut strings = Vec::with_capacity(count);
    for length in ends {
        let end = at.checked_add(length).filter(|&end| end <= bytes.len());
        let end = end.ok_or(ContentError::Layout("is shorter than its strings"))?;
        // Each string is copied, so that it does not keep the bytes of the whole tensor alive.
        strings.push(Bytes::copy_from_slice(&bytes[at..end]));
        at = end;
    }
    if at != bytes.len() {
        return Err(ContentError::Layout("is longer than its strings"));
    }
    Ok(Tensor::strings(strings, shape.clone())?)
}

/// Decodes a tensor of variants from its stored bytes and the masked checksum `stored` in its index entry.
pub(super) fn variants(bytes: &Bytes, shape: &Shape, stored: u32) -> Result<Tensor, ContentError> {
    let mut rest = &bytes[..];
    let mut checksum = Checksum::default();
    let mut variants = Vec::new();
    for _ in 0..shape.num_elements() {
        let length = take_varint(&mut rest).ok_or(ContentError::Layout("has a malformed length"))?;
        let parts = usize::try_from(length).ok().and_then(|length| rest.split_at_checked(length));
        let (message, after) = parts.ok_or(ContentError::Layout("is shorter than its variants"))?;
        let (own, after) =
            after.split_first_chunk::<4>().ok_or(ContentError::Layout("is shorter than its variants"))?;
        checksum.add(&length.to_le_bytes());
        checksum.add(message);
        if *own != checksum.masked().to_le_bytes() {
            return Err(ContentError::Checksum {
                stored: u32::from_le_bytes(*own),
                actual: checksum.masked(),
            });
        }
        checksum.add(own);
        variants.push(variant::decoded(&bytes.slice_ref(message))?);
        rest = after;
    }
    if !rest.is_empty() {
        return Err(ContentError::Layout("is longer than its variants"));
    }
    if checksum.masked() != stored {
        return Err(ContentError::Checksum { stored, actual: checksum.masked() });
    }
    Ok(Tensor::variants(variants, shape.clone())?)
}
