//! Checkpoints of the first format (V1): each file is one table, whose values are protocol-buffer messages that contain
//! the tensors.

mod reader;
mod writer;

pub use reader::Reader;
pub use writer::{Item, write};

/// The key under which the table of a file has the metadata of all its tensors.
const META_KEY: &[u8] = b"";

#[cfg(test)]
mod tests;
