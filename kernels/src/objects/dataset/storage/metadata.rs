//! The metadata of a stored dataset, a `SnapshotMetadataRecord` message.

use super::METADATA;
use bytes::Bytes;
use checkpoint::proto::{Field, Fields, Malformed, Writer};
use checkpoint::store;
use device::{Error, Result};
use graph::{Code, DType};
use std::path::Path;

/// The version of the format: files of records.
const VERSION: i64 = 2;

/// The metadata of a stored dataset.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Metadata {
    /// The name of the folder with the files of the last run.
    pub(crate) run: String,
    /// The time at which the run began, in microseconds since 1970.
    pub(crate) created: i64,
    pub(crate) version: i64,
    pub(crate) dtypes: Vec<DType>,
    pub(crate) elements: i64,
    /// True once all elements are written.
    pub(crate) is_final: bool,
}

impl Metadata {
    /// Returns the metadata of a run that has not written elements yet.
    pub(super) fn new(run: String, created: i64, dtypes: Vec<DType>) -> Metadata {
        Metadata { run, created, version: VERSION, dtypes, elements: 0, is_final: false }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.string(2, self.run.as_bytes()).int(3, self.created).int(4, self.version);
        out.packed_ints(5, self.dtypes.iter().map(|dtype| dtype.number().into()));
        out.int(6, self.elements).int(1000, self.is_final.into());
        out.finish()
    }

    fn decode(bytes: &[u8]) -> Result<Metadata, Malformed> {
        let mut metadata = Metadata::default();
        for field in Fields::of(bytes) {
            match field? {
                (2, value) => {
                    metadata.run = String::from_utf8(value.bytes()?.to_vec()).map_err(|_| Malformed)?;
                }
                (3, value) => metadata.created = value.int()?,
                (4, value) => metadata.version = value.int()?,
                (5, value) => {
                    let mut numbers = Vec::new();
                    match value {
                        Field::Varint(number) => numbers.push(number as i64),
                        packed => packed.ints(|number| numbers.push(number))?,
                    }
                    for number in numbers {
                        let dtype = i32::try_from(number).ok().and_then(DType::from_number);
                        metadata.dtypes.push(dtype.ok_or(Malformed)?);
                    }
                }
                (6, value) => metadata.elements = value.int()?,
                (1000, value) => metadata.is_final = value.int()? != 0,
                _ => {}
            }
        }
        Ok(metadata)
    }

    /// Reads the metadata in a folder.
    ///
    /// # Errors
    /// `NotFound` if the folder has no stored dataset; `DataLoss` if the file is damaged; `Unimplemented` for another
    /// version of the format.
    pub(crate) fn read(folder: &Path) -> Result<Metadata> {
        let path = folder.join(METADATA);
        let bytes: Bytes = match store::read(&path) {
            Ok(bytes) => bytes.into(),
            Err(error) if error.code() == Code::NotFound => {
                let message = format!("Could not find metadata file [{}]", folder.display());
                return Err(Error::new(Code::NotFound, message));
            }
            Err(error) => return Err(error.into()),
        };
        let metadata = Metadata::decode(&bytes)
            .map_err(|_| Error::from(checkpoint::Error::corrupt(&path, "malformed metadata")))?;
        // The name of the run is joined to the folder, so it must not lead out of it.
        if metadata.run.is_empty() || metadata.run.contains('/') || metadata.run.starts_with('.') {
            return Err(checkpoint::Error::corrupt(&path, "malformed name of a run").into());
        }
        if metadata.version != VERSION {
            return Err(Error::unimplemented(format!(
                "{} has a dataset in version {} of the format; version {VERSION} is supported",
                folder.display(),
                metadata.version
            )));
        }
        Ok(metadata)
    }

    /// Writes the metadata to a folder.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        Ok(store::write(folder.join(METADATA), &self.encode())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes are those that TensorFlow 2.21 wrote.
    #[test]
    fn the_message_is_that_of_tensorflow() -> Result<(), Malformed> {
        let bytes = b"\x12\x1412248632786905160870\x18\x99\x82\x93\x8e\x91\xb0\x98\x03 \x02*\x03\t\x07\x010\x05\xc0>\x01";
        let metadata = Metadata::decode(bytes)?;
        assert_eq!(
            (metadata.run.as_str(), metadata.elements, metadata.is_final),
            ("12248632786905160870", 5, true)
        );
        assert_eq!(metadata.dtypes, [DType::Int64, DType::String, DType::Float]);
        assert_eq!(metadata.encode(), bytes);
        assert_eq!(Metadata::decode(&bytes[..bytes.len() - 1]), Err(Malformed));
        Ok(())
    }
}
