//! File access: streaming readers of TFRecords, lines and fixed-length records, a writer of TFRecords, and the threads
//! that run file operations, so that blocking calls do not occupy the compute threads.

mod fixed;
mod inflate;
mod line;
mod record;
mod snappy;
mod source;
mod threads;
mod write_behind;

pub use fixed::{FixedFormat, FixedReader};
pub use line::{CarriageReturns, LineReader};
pub use record::{RecordReader, RecordWriter};
pub use source::{Compression, Source, path_of};
pub use threads::{begin_on_file_thread, blocking, spawn};
pub use write_behind::write_behind;
