//! Files of elements in version 1 of the format: a block for each element, or with Snappy two blocks, of the shapes of the
//! components and of their bytes.

use crate::objects::dataset::Element;
use crate::objects::io::{BlockReader, BlockWriter, Compression};
use checkpoint::proto::{Fields, Malformed, Writer};
use checkpoint::tensor::{decode, encode_content, read_shape, write_shape};
use device::{Error, Result};
use graph::{Code, DType, Shape, Tensor};
use std::path::Path;

/// The compression of the file around the blocks; Snappy compresses elements instead.
fn of_file(compression: Compression) -> Compression {
    match compression {
        Compression::Snappy => Compression::None,
        other => other,
    }
}

/// The most bytes that Snappy decompresses a byte to.
const MAX_RATIO: usize = 64;

/// A reader of a file of elements.
pub(super) struct ElementReader {
    blocks: BlockReader,
    is_snappy: bool,
    dtypes: Vec<DType>,
}

impl ElementReader {
    /// Opens a file of elements whose components have these dtypes.
    pub(super) fn open(path: &Path, compression: Compression, dtypes: Vec<DType>) -> Result<ElementReader> {
        let blocks = BlockReader::open(path, of_file(compression))?;
        Ok(ElementReader { blocks, is_snappy: compression == Compression::Snappy, dtypes })
    }

    /// Returns the position of the next element, in decompressed bytes.
    pub(super) fn offset(&self) -> u64 {
        self.blocks.offset()
    }

    /// Moves forward to the element that starts at `offset`, in decompressed bytes.
    pub(super) fn advance_to(&mut self, offset: u64) -> Result<()> {
        self.blocks.advance_to(offset)
    }

    /// Returns the next element, or `None` at the end.
    ///
    /// # Errors
    /// `DataLoss` for a damaged file.
    pub(super) fn next_element(&mut self) -> Result<Option<Element>> {
        let Some(block) = self.blocks.next_block()? else { return Ok(None) };
        let element = if self.is_snappy {
            let Some(packed) = self.blocks.next_block()? else { return Err(self.damaged()) };
            unpacked(&block, &packed, &self.dtypes)
        } else {
            Fields::of(&block)
                .filter_map(|field| match field {
                    Ok((1, tensor)) => Some(tensor.bytes().and_then(decode)),
                    Ok(_) => None,
                    Err(malformed) => Some(Err(malformed)),
                })
                .collect()
        };
        match element {
            Ok(element) if element.iter().map(Tensor::dtype).eq(self.dtypes.iter().copied()) => {
                Ok(Some(element))
            }
            _ => Err(self.damaged()),
        }
    }

    fn damaged(&self) -> Error {
        let path = self.blocks.path().display();
        Error::new(Code::DataLoss, format!("{path} has a block that is no element of the dataset"))
    }
}

/// Returns the components of which `shapes` has the shapes and sizes, and `packed` the compressed bytes.
fn unpacked(shapes: &[u8], packed: &[u8], dtypes: &[DType]) -> Result<Element, Malformed> {
    let mut parts: Vec<(Shape, usize)> = Vec::new();
    for field in Fields::of(shapes) {
        let (1, part) = field? else { continue };
        let (mut shape, mut size) = (Shape::scalar(), 0);
        for field in part.fields()? {
            match field? {
                (2, value) => shape = read_shape(value.fields()?)?,
                (3, value) => size = value.int()?,
                _ => {}
            }
        }
        parts.push((shape, usize::try_from(size).map_err(|_| Malformed)?));
    }
    let length = snap::raw::decompress_len(packed).map_err(|_| Malformed)?;
    let total = parts.iter().try_fold(0usize, |sum, (_, size)| sum.checked_add(*size));
    if parts.len() != dtypes.len() || total != Some(length) || length / MAX_RATIO > packed.len() {
        return Err(Malformed);
    }
    let bytes = snap::raw::Decoder::new().decompress_vec(packed).map_err(|_| Malformed)?;
    let mut rest = &bytes[..];
    let mut components = Element::new();
    for ((shape, size), dtype) in parts.into_iter().zip(dtypes) {
        let (part, after) = rest.split_at_checked(size).ok_or(Malformed)?;
        rest = after;
        components.push(match dtype.size() {
            Some(_) => Tensor::from_bytes(*dtype, shape, part).map_err(|_| Malformed)?,
            None => decode(part)?,
        });
    }
    Ok(components)
}

/// A writer of a file of elements.
pub(super) struct ElementWriter {
    blocks: BlockWriter,
    is_snappy: bool,
    /// Number of bytes of the elements written so far, before compression.
    pub(super) size: u64,
}

impl ElementWriter {
    /// Creates the file; an existing file is replaced.
    pub(super) fn create(path: &Path, compression: Compression) -> Result<ElementWriter> {
        let blocks = BlockWriter::create(path, of_file(compression))?;
        Ok(ElementWriter { blocks, is_snappy: compression == Compression::Snappy, size: 0 })
    }

    /// Appends an element.
    ///
    /// # Errors
    /// `Unimplemented` if a component is an object; `ResourceExhausted` if the element is too large to be compressed.
    pub(super) fn write(&mut self, element: &Element) -> Result<()> {
        if !self.is_snappy {
            let mut record = Writer::new();
            for component in element {
                record.bytes(1, &encode_content(component)?);
            }
            let record = record.finish();
            self.size += record.len() as u64;
            return self.blocks.write(&record);
        }
        let (mut shapes, mut bytes) = (Writer::new(), Vec::new());
        for component in element {
            let before = bytes.len();
            match component.dtype().size() {
                Some(_) => bytes.extend_from_slice(component.bytes()?),
                None => bytes.extend_from_slice(&encode_content(component)?),
            }
            let size = bytes.len() - before;
            shapes.message(1, |part| {
                part.message(2, |shape| write_shape(shape, component.shape())).int(3, size as i64);
            });
        }
        let packed = snap::raw::Encoder::new().compress_vec(&bytes).map_err(|_| {
            let message = format!("an element of {} bytes is too large to be compressed", bytes.len());
            Error::new(Code::ResourceExhausted, message)
        })?;
        self.size += bytes.len() as u64;
        self.blocks.write(&shapes.finish())?;
        self.blocks.write(&packed)
    }

    /// Writes the remaining bytes, and returns once the file outlasts a loss of power.
    pub(super) fn finish(self) -> Result<()> {
        self.blocks.finish_stored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    fn all(path: &Path, compression: Compression) -> Result<Vec<Element>> {
        let dtypes = vec![DType::Int64, DType::String];
        let mut reader = ElementReader::open(path, compression, dtypes)?;
        let mut elements = Vec::new();
        while let Some(element) = reader.next_element()? {
            elements.push(element);
        }
        Ok(elements)
    }

    #[test]
    fn damaged_files_are_data_loss() -> Result<()> {
        let dir = TempDir::new()?;
        for compression in [Compression::None, Compression::Snappy] {
            let path = dir.path().join(format!("{compression:?}"));
            let mut writer = ElementWriter::create(&path, compression)?;
            let element = vec![Tensor::vector(&[3i64, 4])?, Tensor::string("text")];
            writer.write(&element)?;
            writer.write(&element)?;
            writer.finish()?;
            assert_eq!(all(&path, compression)?, [element.clone(), element.clone()]);
            let bytes = std::fs::read(&path).unwrap_or_default();
            for cut in 1..bytes.len() {
                dir.write("damaged", &bytes[..cut])?;
                let read = all(&dir.path().join("damaged"), compression);
                match read {
                    Ok(elements) => assert_eq!(elements, std::slice::from_ref(&element), "{cut} bytes"),
                    Err(error) => assert_eq!(error.code(), Code::DataLoss, "{cut} bytes"),
                }
            }
            for at in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[at] ^= 0x44;
                dir.write("damaged", &changed)?;
                if let Err(error) = all(&dir.path().join("damaged"), compression) {
                    assert_eq!(error.code(), Code::DataLoss, "byte {at}");
                }
            }
        }
        Ok(())
    }
}
