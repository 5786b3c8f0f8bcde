//! Files of watched tensors and graphs, in the layout of TensorFlow's debugger: a folder for each device below the folder
//! of a debug URL, and in it a file for each tensor, named `<node>_<slot>_<op>_<microseconds>`, with an `Event` message.

use bytes::Bytes;
use checkpoint::proto::Writer;
use device::kernel::KernelInit;
use device::{Error, Result};
use graph::{Code, DType, Tensor};
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The prefix of the names of folders and files that hold no tensors.
pub const METADATA_PREFIX: &str = "_tfdbg_";
const FILE_SCHEME: &str = "file://";
/// The largest number of files of one tensor with the same time in their names.
const MOST_OF_A_TIME: usize = 10_000;

/// The value of a watched tensor.
#[derive(Clone, Copy, Debug)]
pub enum Watched<'a> {
    Value(&'a Tensor),
    /// A variable of this type, which has no value yet.
    Uninitialized(DType),
}

/// The files to which a debug op writes.
#[derive(Debug)]
pub struct DumpTarget {
    device: String,
    node: String,
    slot: i64,
    op: String,
    folders: Vec<PathBuf>,
}

impl DumpTarget {
    /// Returns the dump target that the attributes of a debug op describe.
    ///
    /// # Errors
    /// `InvalidArgument` for a malformed tensor name, `Unimplemented` for a URL that is not a file's.
    pub fn of_node(init: &KernelInit<'_>, op: &str) -> Result<DumpTarget> {
        let tensor = init.attr::<String>("tensor_name")?;
        let (node, slot) = match tensor.split_once(':') {
            None => (tensor.as_str(), (!tensor.is_empty()).then_some(0)),
            Some((node, slot)) => (node, slot.parse().ok()),
        };
        let Some(slot) = slot else { device::invalid!("Failed to parse tensor name: \"{tensor}\"") };
        let urls = init.attr::<Vec<Bytes>>("debug_urls")?;
        let device = match init.attr::<String>("device_name")? {
            unnamed if unnamed.is_empty() => init.device.name().to_string(),
            named => named,
        };
        let folders =
            urls.iter().map(|url| Ok(folder_of(&String::from_utf8_lossy(url))?.join(device_folder(&device))));
        let folders = folders.collect::<Result<_>>()?;
        Ok(DumpTarget { device, node: node.to_owned(), slot, op: op.to_owned(), folders })
    }

    /// Returns whether the node has no URLs.
    pub fn is_empty(&self) -> bool {
        self.folders.is_empty()
    }

    /// Writes a tensor to all folders.
    ///
    /// # Errors
    /// An error that names the path of a file that cannot be written.
    pub fn publish(&self, watched: Watched<'_>) -> Result<()> {
        if self.folders.is_empty() {
            return Ok(());
        }
        let now = microseconds();
        let event = self.event(watched, now)?;
        let name = format!("{}_{}_{}", self.node, self.slot, self.op);
        self.folders.iter().try_for_each(|folder| write_new(&folder.join(&name), now, &event))
    }

    /// Returns the `Event` message of a tensor.
    fn event(&self, watched: Watched<'_>, now: u64) -> Result<Vec<u8>> {
        let tensor = match watched {
            // A message cannot hold resources and variants.
            Watched::Value(value) if value.dtype() != DType::String && value.dtype().size().is_none() => {
                of_type(value.dtype())
            }
            Watched::Value(value) => checkpoint::tensor::encode(value)?,
            Watched::Uninitialized(dtype) => of_type(dtype),
        };
        let metadata = metadata_of(&self.device, self.slot);
        let mut event = Writer::new();
        event.double(1, now as f64);
        event.message(5, |summary| {
            summary.message(1, |value| {
                value.string(1, self.node.as_bytes());
                value.string(7, format!("{}:{}:{}", self.node, self.slot, self.op).as_bytes());
                value.bytes(8, &tensor);
                value.message(9, |of_value| {
                    of_value.message(1, |plugin| {
                        plugin.string(1, b"debugger").string(2, metadata.as_bytes());
                    });
                });
            });
        });
        Ok(event.finish())
    }
}

/// Returns a TensorProto that has only a type.
fn of_type(dtype: DType) -> Vec<u8> {
    let mut tensor = Writer::new();
    tensor.int(1, dtype.number().into());
    tensor.finish()
}

/// Returns the metadata of an event as JSON; a device's name needs no escapes.
fn metadata_of(device: &str, slot: i64) -> String {
    format!("{{\"device\":\"{device}\",\"outputSlot\":{slot},\"numChunks\":1,\"chunkIndex\":0}}")
}

/// Writes the graph of a device, as the bytes of a GraphDef, to the folders of debug URLs.
///
/// # Errors
/// The errors of [`DumpTarget::publish`], and `Unimplemented` for a URL that is not a file's.
pub fn publish_graph<'a>(device: &str, graph: &[u8], urls: impl IntoIterator<Item = &'a str>) -> Result<()> {
    let now = microseconds();
    let mut event = Writer::new();
    event.double(1, now as f64).string(4, graph);
    let event = event.finish();
    let hash = device::handle::hash_of(device) ^ graph.len() as u64;
    for url in urls {
        let path =
            folder_of(url)?.join(device_folder(device)).join(format!("{METADATA_PREFIX}graph_hash{hash}"));
        write_new(&path, now, &event)?;
    }
    Ok(())
}

/// Returns the folder of a debug URL.
///
/// # Errors
/// `Unimplemented` for a URL that is not a file's.
pub fn folder_of(url: &str) -> Result<PathBuf> {
    match url.strip_prefix(FILE_SCHEME) {
        Some(path) => Ok(path.into()),
        None => Err(Error::unimplemented(format!(
            "the debug URL {url}: this server writes watched tensors to {FILE_SCHEME} URLs only"
        ))),
    }
}

/// Returns the name of a device's folder.
fn device_folder(device: &str) -> String {
    format!("{METADATA_PREFIX}device_{}", device.replace('/', ",").replace(':', "_"))
}

/// Returns the time in microseconds since 1970.
fn microseconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// Writes an event to a new file, whose name is `path` with the time and, if that name is taken, a number.
fn write_new(path: &Path, now: u64, event: &[u8]) -> Result<()> {
    let failed = |path: &Path, error: &std::io::Error| {
        let code = match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Code::PermissionDenied,
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Code::ResourceExhausted,
            _ => Code::FailedPrecondition,
        };
        Error::new(code, format!("the debugger's file {} cannot be written: {error}", path.display()))
    };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    }
    for number in 0..MOST_OF_A_TIME {
        let mut named = path.as_os_str().to_owned();
        named.push(match number {
            0 => format!("_{now}"),
            _ => format!("_{now}-{number}"),
        });
        let named = PathBuf::from(named);
        match OpenOptions::new().write(true).create_new(true).open(&named) {
            Ok(mut file) => return file.write_all(event).map_err(|error| failed(&named, &error)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(&named, &error)),
        }
    }
    Err(Error::new(
        Code::FailedPrecondition,
        format!("the debugger has too many files like {}", path.display()),
    ))
}
