//! The model of a pipeline for clients: a `ModelProto` message with a node for each dataset, of which the root has the
//! counts of the elements that the iterator returned.

use checkpoint::proto::Writer;
use std::collections::VecDeque;
use std::sync::Arc;

/// A dataset in the tree below a dataset.
#[derive(Debug)]
pub(super) struct PipelineNode {
    /// The name of the dataset's kind.
    pub(super) name: &'static str,
    pub(super) inputs: Vec<Arc<PipelineNode>>,
}

/// The counts of what an iterator returned.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Produced {
    pub(super) elements: i64,
    pub(super) bytes: i64,
}

/// The number of the node of the iterator itself.
const ROOT: i64 = 1;

/// Returns the `ModelProto` message of an iterator over a dataset. The nodes are numbered from the root on.
pub(super) fn model(dataset: &Arc<PipelineNode>, produced: Produced) -> Vec<u8> {
    let mut out = Writer::new();
    let mut node = |id: i64, name: &str, inputs: std::ops::Range<i64>, produced: Produced| {
        out.message(1, |entry| {
            entry.int(1, id).message(2, |node| {
                node.int(1, id).string(2, name.as_bytes());
                node.int(7, produced.bytes).int(8, produced.elements);
                if !inputs.is_empty() {
                    node.packed_ints(14, inputs);
                }
            });
        });
    };
    node(ROOT, "Root", ROOT + 1..ROOT + 2, produced);
    let mut waiting = VecDeque::from([dataset]);
    let (mut id, mut next) = (ROOT + 1, ROOT + 2);
    while let Some(dataset) = waiting.pop_front() {
        let end = next + dataset.inputs.len() as i64;
        node(id, dataset.name, next..end, Produced::default());
        waiting.extend(&dataset.inputs);
        (id, next) = (id + 1, end);
    }
    out.int(2, ROOT).int(3, next);
    out.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use checkpoint::proto::{Fields, Malformed};

    #[test]
    fn nodes_are_numbered_from_the_root_and_name_their_inputs() -> Result<(), Malformed> {
        let leaf = Arc::new(PipelineNode { name: "Range", inputs: Vec::new() });
        let zip = Arc::new(PipelineNode { name: "Zip", inputs: vec![leaf.clone(), leaf] });
        let message = model(&zip, Produced { elements: 3, bytes: 48 });
        let mut found = Vec::new();
        for field in Fields::of(&message) {
            let (1, entry) = field? else { continue };
            for field in entry.fields()? {
                let (2, node) = field? else { continue };
                let (mut name, mut inputs, mut elements) = (Vec::new(), Vec::new(), 0);
                for field in node.fields()? {
                    match field? {
                        (2, value) => name = value.bytes()?.to_vec(),
                        (8, value) => elements = value.int()?,
                        (14, value) => value.ints(|id| inputs.push(id))?,
                        _ => {}
                    }
                }
                found.push((String::from_utf8_lossy(&name).into_owned(), inputs, elements));
            }
        }
        let of = |name: &str, inputs: &[i64], elements| (name.to_owned(), inputs.to_vec(), elements);
        assert_eq!(
            found,
            [of("Root", &[2], 3), of("Zip", &[3, 4], 0), of("Range", &[], 0), of("Range", &[], 0)]
        );
        Ok(())
    }
}
