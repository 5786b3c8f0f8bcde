//! File access: streaming readers of TFRecords, blocks, lines and fixed-length records, writers of TFRecords and blocks,
//! and the threads that run file operations, so that blocking calls do not occupy the compute threads.

mod block;
mod fixed;
mod inflate;
mod line;
mod record;
mod sink;
mod snappy;
mod source;
mod threads;
mod write_behind;

pub use block::{BlockReader, BlockWriter};
pub use fixed::{FixedFormat, FixedReader};
pub use line::{CarriageReturns, LineReader};
pub use record::{RecordReader, RecordWriter};
pub use source::{Compression, Source, path_of};
pub use threads::{begin_on_file_thread, blocking, spawn};
pub use write_behind::write_behind;
