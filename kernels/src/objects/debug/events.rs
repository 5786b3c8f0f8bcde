//! The `Event` messages of watched tensors and graphs. Debuggers get large tensors and graphs in chunks, because servers of
//! gRPC refuse messages of more than 4 MiB unless they are told otherwise.

use super::WatchKey;
use checkpoint::proto::Writer;
use checkpoint::tensor;
use device::Result;
use graph::{DType, Tensor};
use std::sync::Arc;

/// The largest size of a chunk's elements, strings or encoded nodes, bytes.
const CHUNK: usize = 3 << 20;

/// The value of a watched tensor.
#[derive(Clone, Copy, Debug)]
pub enum Watched<'a> {
    Value(&'a Tensor),
    /// A variable of this type, which has no value yet.
    Uninitialized(DType),
}

/// Returns the event of a tensor, as one message.
pub(super) fn tensor_event(key: &WatchKey, watched: Watched<'_>, now: u64) -> Result<Vec<u8>> {
    let tensor = match value_of(watched) {
        Ok(value) => tensor::encode(value)?,
        Err(dtype) => encode_type(dtype),
    };
    Ok(event_of(key, &tensor, 0, 1, now))
}

/// The event of a tensor, in as many messages as needed.
#[derive(Clone, Debug)]
pub(super) struct TensorChunks {
    key: WatchKey,
    chunks: Arc<[Vec<u8>]>,
    next: usize,
    now: u64,
}

impl Iterator for TensorChunks {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let chunk = self.chunks.get(self.next)?;
        let event = event_of(&self.key, chunk, self.next, self.chunks.len(), self.now);
        self.next += 1;
        Some(event)
    }
}

/// Returns the event of a tensor, in as many messages as needed.
pub(super) fn tensor_chunks(key: &WatchKey, watched: Watched<'_>, now: u64) -> Result<TensorChunks> {
    let chunks = match value_of(watched) {
        Ok(value) => tensor::encode_chunks(value, CHUNK)?,
        Err(dtype) => vec![encode_type(dtype)],
    };
    Ok(TensorChunks { key: key.clone(), chunks: chunks.into(), next: 0, now })
}

/// Returns the tensor, or the type of one that a message cannot hold: a variable without a value, a resource, a variant.
fn value_of(watched: Watched<'_>) -> Result<&Tensor, DType> {
    match watched {
        Watched::Value(value) if value.dtype() != DType::String && value.dtype().size().is_none() => {
            Err(value.dtype())
        }
        Watched::Value(value) => Ok(value),
        Watched::Uninitialized(dtype) => Err(dtype),
    }
}

/// Returns a TensorProto that has only a type.
fn encode_type(dtype: DType) -> Vec<u8> {
    let mut tensor = Writer::new();
    tensor.int(1, dtype.number().into());
    tensor.finish()
}

/// Returns the event of a chunk of a tensor.
fn event_of(key: &WatchKey, tensor: &[u8], index: usize, count: usize, now: u64) -> Vec<u8> {
    let metadata = format!(
        "{{\"device\":\"{}\",\"outputSlot\":{},\"numChunks\":{count},\"chunkIndex\":{index}}}",
        key.device.replace('\\', "\\\\").replace('"', "\\\""),
        key.slot
    );
    let mut event = Writer::new();
    event.double(1, now as f64);
    event.message(5, |summary| {
        summary.message(1, |value| {
            value.string(1, key.node.as_bytes());
            value.string(7, key.name().as_bytes());
            value.bytes(8, tensor);
            value.message(9, |of_value| {
                of_value.message(1, |plugin| {
                    plugin.string(1, b"debugger").string(2, metadata.as_bytes());
                });
            });
        });
    });
    event.finish()
}

/// Returns the event of a graph, as one message.
pub(super) fn graph_event(graph: &[u8], now: u64) -> Vec<u8> {
    let mut event = Writer::new();
    event.double(1, now as f64).string(4, graph);
    event.finish()
}

/// Returns the event of a graph for a debugger. Each message says which chunk of which graph it holds.
pub(super) fn graph_chunks(device: &str, graph: &[u8], now: u64) -> Vec<Vec<u8>> {
    let hash = device::handle::hash_of(device) ^ graph.len() as u64;
    let count = graph.len().div_ceil(CHUNK).max(1);
    let chunk = |index: usize| {
        let content = &graph[index * CHUNK..graph.len().min((index + 1) * CHUNK)];
        let header = format!("{hash},{device},{now}|{index}|{count}|");
        graph_event(&[header.as_bytes(), content].concat(), now)
    };
    (0..count).map(chunk).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::Shape;

    fn key() -> WatchKey {
        WatchKey { device: "d".into(), node: "n".into(), slot: 1, op: "DebugIdentity".into(), port: None }
    }

    #[test]
    fn large_tensors_and_graphs_are_sent_in_chunks_below_the_limit_of_grpc() -> Result<()> {
        let elements = Tensor::zeros(DType::Float, Shape::new(&[CHUNK / 4 * 2 + 1])?)?;
        let strings = Tensor::strings(vec![vec![b'a'; CHUNK / 2 + 1].into(); 3], Shape::new(&[3])?)?;
        for tensor in [elements, strings] {
            let chunks: Vec<Vec<u8>> = tensor_chunks(&key(), Watched::Value(&tensor), 5)?.collect();
            assert_eq!(chunks.len(), 3);
            assert!(chunks.iter().all(|chunk| chunk.len() < 4 << 20));
        }
        let graph = vec![7; CHUNK + 9];
        let chunks = graph_chunks("d", &graph, 5);
        assert_eq!(chunks.len(), 2);
        assert!(chunks[1].ends_with(&[&b"|1|2|"[..], &[7; 9]].concat()));
        assert_eq!(tensor_chunks(&key(), Watched::Uninitialized(DType::Float), 5)?.count(), 1);
        Ok(())
    }
}
