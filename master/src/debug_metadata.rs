//! The file that the debugger reads first in a dump: the step's names and numbers, written beside the folders of the
//! devices on the machine of the master.

use graph::Code;
use proto::link::RunStep;
use proto::{Status, pb};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The prefix of the file's name, which the number of the run follows.
const PREFIX: &str = "_tfdbg_core_metadata_sessionrun";

/// The file of a step whose tensors are watched.
#[derive(Debug)]
pub(crate) struct DebugMetadata {
    folders: BTreeSet<PathBuf>,
    /// Number of earlier runs of the step's plan.
    run: u64,
    text: String,
}

impl DebugMetadata {
    /// Returns the file of the run with number `run` of a step, whose options watch tensors.
    pub(crate) fn of(step: &RunStep, options: &pb::DebugOptions, run: u64) -> DebugMetadata {
        let urls = options.debug_tensor_watch_opts.iter().flat_map(|watch| &watch.debug_urls);
        // Workers refuse URLs that are no files.
        let folders = urls.filter_map(|url| url.strip_prefix("file://")).map(PathBuf::from).collect();
        let inputs = step.feeds.iter().map(|feed| &feed.0);
        let text = format!(
            "{{\"global_step\":{},\"session_run_index\":{run},\"executor_step_index\":{run},\"input_names\":{},\
             \"output_names\":{},\"target_nodes\":{}}}",
            options.global_step,
            json_list(inputs),
            json_list(&step.fetches),
            json_list(&step.targets)
        );
        DebugMetadata { folders, run, text }
    }

    /// Writes the file to the folder of each debug URL.
    ///
    /// # Errors
    /// An error that names the path, if it cannot be written.
    pub(crate) fn write(&self) -> Result<(), Status> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
        let event = self.event(now as f64);
        for folder in &self.folders {
            let failed = |path: &Path, error: &std::io::Error| {
                let text = format!("the debugger's file {} cannot be written: {error}", path.display());
                Status::new(Code::FailedPrecondition, text)
            };
            fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
            let path = folder.join(format!("{PREFIX}{:014}_{now}", self.run));
            fs::write(&path, &event).map_err(|error| failed(&path, &error))?;
        }
        Ok(())
    }

    /// Returns an `Event` message with the text as a log message.
    fn event(&self, time: f64) -> Vec<u8> {
        let mut message = vec![0x12];
        put_length(&mut message, self.text.len());
        message.extend_from_slice(self.text.as_bytes());
        let mut event = vec![0x09];
        event.extend_from_slice(&time.to_le_bytes());
        event.push(0x32);
        put_length(&mut event, message.len());
        event.extend(message);
        event
    }
}

/// Returns the names as a list in JSON.
fn json_list<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    let mut out = "[".to_owned();
    for name in names {
        out.push_str(if out.len() > 1 { ",\"" } else { "\"" });
        for c in name.chars() {
            match c {
                '"' | '\\' => out.extend(['\\', c]),
                c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
                c => out.push(c),
            }
        }
        out.push('"');
    }
    out.push(']');
    out
}

/// Appends a length in the form of protocol buffers.
fn put_length(out: &mut Vec<u8>, mut length: usize) {
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes after the time are those of TensorFlow 2.21.
    #[test]
    fn the_message_is_that_of_tensorflow() {
        let step = RunStep {
            feeds: vec![("x:0".to_owned(), graph::Tensor::scalar(3f32))],
            fetches: vec!["y:0".to_owned()],
            ..RunStep::default()
        };
        let options = pb::DebugOptions { global_step: 7, ..Default::default() };
        let event = DebugMetadata::of(&step, &options, 1).event(1.0);
        let text = b"{\"global_step\":7,\"session_run_index\":1,\"executor_step_index\":1,\
                     \"input_names\":[\"x:0\"],\"output_names\":[\"y:0\"],\"target_nodes\":[]}";
        assert_eq!(json_list(&["a\"\\\n".to_owned(), "b".to_owned()]), "[\"a\\\"\\\\\\u000a\",\"b\"]");
        assert_eq!(event[9..], [b"\x32\x80\x01\x12\x7e", &text[..]].concat());
    }
}
