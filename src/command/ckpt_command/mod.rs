//! `anabranch ckpt`: inspects checkpoints, compares them, and converts them to other formats and back.

mod archive;
mod convert;
mod diff;
mod inspect;
mod list;
mod safetensors;

use checkpoint::bundle::Reader;
use clap::{Args, Subcommand};
use std::error::Error;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub(crate) struct CkptFlags {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the checkpoints of a folder, and whether each is complete
    List { folder: PathBuf },
    /// Print the tensors of a checkpoint: names, types, shapes, sizes
    Inspect {
        /// The checkpoint's prefix (`model.ckpt-100`) or its index file
        checkpoint: PathBuf,
        /// Also print the values of the tensor with this name
        #[arg(long)]
        values: Option<String>,
        /// Read all data and verify its checksums
        #[arg(long)]
        verify: bool,
    },
    /// Compare two checkpoints tensor by tensor; the exit status is 1 if they differ
    Diff { first: PathBuf, second: PathBuf },
    /// Convert a checkpoint to `.safetensors` or `.npz`, or one of these to a checkpoint
    Convert { from: PathBuf, to: PathBuf },
}

type Fallible<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// Runs the command. Returns `false` if compared checkpoints differ.
pub(crate) fn run(flags: &CkptFlags) -> Fallible<bool> {
    match &flags.command {
        Command::List { folder } => list::run(folder).map(|()| true),
        Command::Inspect { checkpoint, values, verify } => {
            inspect::run(checkpoint, values.as_deref(), *verify).map(|()| true)
        }
        Command::Diff { first, second } => diff::run(first, second),
        Command::Convert { from, to } => convert::run(from, to).map(|()| true),
    }
}

/// Opens a checkpoint by its prefix or by the name of its index file.
fn open(path: &Path) -> Fallible<Reader> {
    let prefix =
        if path.extension().is_some_and(|e| e == "index") { path.with_extension("") } else { path.into() };
    Ok(Reader::open(prefix)?)
}

/// Returns the names of a checkpoint's tensors.
fn names(reader: &Reader) -> Vec<Vec<u8>> {
    reader.tensors().map(|(name, _, _)| name.to_owned()).collect()
}

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

fn bytes_text(bytes: u64) -> String {
    let mut size = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if size < 1024.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{size:.1} {unit}") };
        }
        size /= 1024.0;
    }
    format!("{size:.1} TiB")
}
