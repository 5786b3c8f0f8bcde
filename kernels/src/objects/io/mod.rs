//! Files: readers of records, lines and blocks that stream, and the threads that file operations run on, so that
//! none blocks a thread that computes.

mod behind;
mod fixed;
mod inflate;
mod line;
mod record;
mod source;
mod threads;

pub use behind::behind;
pub use fixed::{FixedFormat, FixedReader};
pub use line::{LineReader, Returns};
pub use record::{RecordReader, RecordWriter};
pub use source::{Compression, Source, path_of};
pub use threads::{blocking, spawn};
