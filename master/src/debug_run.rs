//! A run whose tensors a client watches: the debugger first learns the run's names and numbers, by a file beside the folders
//! of the devices on the machine of the master, or by an event of a stream, which ends with the run.

use crate::session::on_blocking_thread;
use graph::Code;
use proto::event_stream::{EventStream, EventStreams, SCHEME, path_of};
use proto::link::RunStep;
use proto::{Status, pb};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::runtime::Handle;

/// The prefix of the file's name, which the number of the run follows.
const PREFIX: &str = "_tfdbg_core_metadata_sessionrun";

/// A run with its streams to debuggers. They are closed when it is dropped.
#[derive(Debug)]
pub(crate) struct DebugRun {
    streams: Vec<Arc<EventStream>>,
    runtime: Handle,
}

impl DebugRun {
    /// Writes the names and numbers of a run to the folders of its debug URLs, and sends them to its debuggers. `number` is
    /// the number of earlier runs of the step's plan.
    ///
    /// # Errors
    /// An error that names the path of a file that cannot be written, or the URL of a debugger that cannot be reached.
    pub(crate) async fn begin(
        step: &RunStep,
        options: &pb::DebugOptions,
        number: u64,
        streams: &EventStreams,
        runtime: Handle,
    ) -> Result<DebugRun, Status> {
        let urls = options.debug_tensor_watch_opts.iter().flat_map(|watch| &watch.debug_urls);
        let urls: BTreeSet<&str> = urls.map(String::as_str).collect();
        // Workers refuse URLs of other schemes.
        let folders: Vec<PathBuf> =
            urls.iter().filter_map(|url| url.strip_prefix("file://")).map(PathBuf::from).collect();
        if !folders.is_empty() {
            let text = metadata(step, options, number, None);
            on_blocking_thread(move || write_files(&folders, &text, number)).await?;
        }
        let mut run = DebugRun { streams: Vec::new(), runtime };
        for url in urls.into_iter().filter(|url| url.starts_with(SCHEME)) {
            let stream = streams.stream(url)?;
            run.streams.push(stream.clone());
            let text = metadata(step, options, number, Some(path_of(url)));
            stream.begin_run(event_of(&text, microseconds())).await?;
        }
        Ok(run)
    }

    /// Ends the streams of the run, and waits for the last replies of the debuggers, which may change what later runs send.
    pub(crate) async fn end(mut self) {
        // The streams are closed even if nobody waits for it.
        let closing = self.runtime.spawn(close(std::mem::take(&mut self.streams)));
        if let Err(error) = closing.await {
            tracing::error!("streams to debuggers were not closed: {error}");
        }
    }
}

impl Drop for DebugRun {
    fn drop(&mut self) {
        let streams = std::mem::take(&mut self.streams);
        if !streams.is_empty() {
            self.runtime.spawn(close(streams));
        }
    }
}

async fn close(streams: Vec<Arc<EventStream>>) {
    let ends = futures::future::join_all(streams.iter().map(|stream| stream.end_run())).await;
    for status in ends.into_iter().filter_map(Result::err) {
        tracing::warn!("{}", status.message);
    }
}

/// Returns the names and numbers of a run as JSON, with the path of the URL of a debugger.
fn metadata(step: &RunStep, options: &pb::DebugOptions, number: u64, path: Option<&str>) -> String {
    let inputs = step.feeds.iter().map(|feed| &feed.0);
    let path = path.map(|path| format!(",\"grpc_path\":{}", json_string(path)));
    format!(
        "{{\"global_step\":{},\"session_run_index\":{number},\"executor_step_index\":{number},\"input_names\":{},\
         \"output_names\":{},\"target_nodes\":{}{}}}",
        options.global_step,
        json_list(inputs),
        json_list(&step.fetches),
        json_list(&step.targets),
        path.unwrap_or_default()
    )
}

/// Writes the file of a run to each folder.
fn write_files(folders: &[PathBuf], text: &str, number: u64) -> Result<(), Status> {
    let now = microseconds();
    let event = event_of(text, now);
    for folder in folders {
        let failed = |path: &Path, error: &std::io::Error| {
            let text = format!("the debugger's file {} cannot be written: {error}", path.display());
            Status::new(Code::FailedPrecondition, text)
        };
        fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
        let path = folder.join(format!("{PREFIX}{number:014}_{now}"));
        fs::write(&path, &event).map_err(|error| failed(&path, &error))?;
    }
    Ok(())
}

/// Returns the time in microseconds since 1970.
fn microseconds() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros())
}

/// Returns an `Event` message with the text as a log message.
fn event_of(text: &str, time: u128) -> Vec<u8> {
    let mut message = vec![0x12];
    put_length(&mut message, text.len());
    message.extend_from_slice(text.as_bytes());
    let mut event = vec![0x09];
    event.extend_from_slice(&(time as f64).to_le_bytes());
    event.push(0x32);
    put_length(&mut event, message.len());
    event.extend(message);
    event
}

/// Returns the names as a list in JSON.
fn json_list<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| json_string(name)).collect();
    format!("[{}]", names.join(","))
}

/// Returns a text as a string in JSON.
fn json_string(text: &str) -> String {
    let mut out = "\"".to_owned();
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
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
        let event = event_of(&metadata(&step, &options, 1, None), 1);
        let text = b"{\"global_step\":7,\"session_run_index\":1,\"executor_step_index\":1,\
                     \"input_names\":[\"x:0\"],\"output_names\":[\"y:0\"],\"target_nodes\":[]}";
        assert!(metadata(&step, &options, 1, Some("/a\"")).ends_with("[],\"grpc_path\":\"/a\\\"\"}"));
        assert_eq!(json_list(&["a\"\\\n".to_owned(), "b".to_owned()]), "[\"a\\\"\\\\\\u000a\",\"b\"]");
        assert_eq!(event[9..], [b"\x32\x80\x01\x12\x7e", &text[..]].concat());
    }
}
