//! Files of watched tensors and graphs, in the layout of TensorFlow's debugger: a folder for each device below the folder
//! of a debug URL, and in it a file for each tensor, named `<node>_<slot>_<op>_<microseconds>`, with an `Event` message.
//! Inputs and outputs of nodes are in folders of steps.

use super::events::graph_event;
use super::{WatchKey, failed};
use device::{Error, Result};
use graph::Code;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Component, Path, PathBuf};

/// The prefix of the names of folders and files that hold no tensors.
pub const METADATA_PREFIX: &str = "_tfdbg_";
/// The largest number of files of one tensor with the same time in their names.
const MOST_OF_A_TIME: usize = 10_000;

/// Writes the event of a tensor to a file below `folder`.
pub(super) fn write_tensor(folder: &Path, key: &WatchKey, step: i64, now: u64, event: &[u8]) -> Result<()> {
    let path = match &key.port {
        None => device_folder(folder, &key.device).join(format!("{}_{}_{}", key.node, key.slot, key.op)),
        Some(port) => folder.join("node-io-dump").join(format!("step-{step}")).join(port.replace('/', "-")),
    };
    let below = path.strip_prefix(folder).is_ok_and(|below| below.components().all(is_plain));
    if !below {
        device::invalid!(
            "the tensor \"{}:{}\" names a file outside of {}",
            key.node,
            key.slot,
            folder.display()
        );
    }
    write_new(&path, now, event)
}

fn is_plain(component: Component<'_>) -> bool {
    matches!(component, Component::Normal(_))
}

/// Writes the graph of a device to a file below `folder`.
pub(super) fn write_graph(folder: &Path, device: &str, graph: &[u8], now: u64) -> Result<()> {
    let hash = device::handle::hash_of(device) ^ graph.len() as u64;
    let path = device_folder(folder, device).join(format!("{METADATA_PREFIX}graph_hash{hash}"));
    write_new(&path, now, &graph_event(graph, now))
}

/// Returns a device's folder.
fn device_folder(folder: &Path, device: &str) -> PathBuf {
    folder.join(format!("{METADATA_PREFIX}device_{}", device.replace('/', ",").replace(':', "_")))
}

/// Writes an event to a new file, whose name is `path` with the time and, if that name is taken, a number.
fn write_new(path: &Path, now: u64, event: &[u8]) -> Result<()> {
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
