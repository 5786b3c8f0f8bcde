//! The ids of steps with collectives whose other members are in sessions of other masters: all masters must run one
//! step under one id, which the leader of the groups assigns.

use crate::step::Step;
use graph::{Graph, Node, NodeId, Tensor};
use parking_lot::Mutex;
use proto::Status;
use proto::link::WorkerLink;
use proto::step_ids::{SequenceEnd, next_step_id};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// The first value of the hash of a graph's instance keys.
const SEED: u64 = 0x8774_aa60_5c72_9c72;
/// The constant of the hash's combination, `Hash64Combine` of TensorFlow.
const INCREMENT: u64 = 0x9e37_79b9_7f4a_7800;
/// Time after the end of a session for which members in other sessions may fetch tensors of its last steps.
const RELEASE_DELAY: Duration = Duration::from_secs(10);

/// The number that is added to the key of a communicator's group, so that it differs from the keys of other groups.
const COMMUNICATORS: i64 = 1 << 40;

/// A node that takes part in a collective or in a communicator: its group's key and size, if they are attributes or constants.
struct Participant {
    group_key: Option<i64>,
    group_size: Option<i64>,
}

/// The collectives of a step's graph.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GraphKey {
    /// The requested key, or the hash of the instance keys, as TensorFlow's masters compute it.
    pub(crate) key: i64,
    /// True if members of the groups are in the graphs of other masters, which must run the step under the same id.
    pub(crate) is_shared: bool,
}

/// Returns the graph key of a step; `None` if the graph has no collectives.
pub(crate) fn graph_key(graph: &Graph, requested: i64) -> Option<GraphKey> {
    let mut members: FxHashMap<i64, (i64, i64)> = FxHashMap::default();
    let mut instances = BTreeSet::new();
    let (mut is_shared, mut has_collectives) = (false, false);
    let mut groups_of_devices = BTreeSet::new();
    for (id, node) in graph.nodes() {
        let Some(participant) = participant(graph, id, node) else { continue };
        has_collectives = true;
        if let Ok(key) = node.attr::<i64>("instance_key") {
            instances.insert(key);
        }
        let (Some(key), Some(size)) = (participant.group_key, participant.group_size) else {
            is_shared = true;
            continue;
        };
        if groups_of_devices.insert((key, node.device.clone())) {
            let entry = members.entry(key).or_insert((0, size));
            entry.0 += 1;
        }
    }
    is_shared |= members.values().any(|(count, size)| count < size);
    has_collectives.then(|| match requested {
        0 => {
            let key = instances.into_iter().fold(SEED, |hash, key| combine(key as u64, hash)) as i64;
            GraphKey { key, is_shared }
        }
        key => GraphKey { key, is_shared },
    })
}

fn combine(key: u64, hash: u64) -> u64 {
    key ^ hash.wrapping_add(INCREMENT).wrapping_add(key << 10).wrapping_add(key >> 4)
}

/// Returns the group of a node that takes part in a collective; `None` for other nodes.
fn participant(graph: &Graph, id: NodeId, node: &Node) -> Option<Participant> {
    if node.op.attr_spec("instance_key").is_some() {
        let (group_key, group_size) = (node.attr("group_key").ok(), node.attr("group_size").ok());
        return Some(Participant { group_key, group_size });
    }
    let slot = |name: &str| node.op.inputs.iter().position(|input| input.name == name);
    // The group of a communicator is distinct from an ordinary group with the same key.
    let is_communicator = slot("instance_key").is_none();
    slot("group_key")?;
    let constant = |name: &str| {
        let source = graph.input(id, slot(name)?)?;
        let value: Tensor = graph.node(source.node).attr("value").ok()?;
        value.item::<i32>().ok().map(i64::from)
    };
    let group_key = constant("group_key").map(|key| if is_communicator { key + COMMUNICATORS } else { key });
    Some(Participant { group_key, group_size: constant("group_size") })
}

/// The next step id of each graph key in a session.
#[derive(Debug, Default)]
pub(crate) struct StepSequences {
    next: Mutex<FxHashMap<i64, i64>>,
}

impl StepSequences {
    /// Returns the id of the next step under a graph key. The leader of the groups is called for the first id, and for
    /// the id after a failure.
    ///
    /// # Errors
    /// Those of the call to the leader.
    pub(crate) async fn next(
        &self,
        graph_key: i64,
        leader: &Arc<dyn WorkerLink>,
        deadline: Option<Instant>,
    ) -> Result<i64, Status> {
        let known = self.next.lock().get(&graph_key).copied();
        match known {
            Some(id) => Ok(id),
            None => {
                let id = leader.next_step_id(graph_key, deadline).await?;
                Ok(*self.next.lock().entry(graph_key).or_insert(id))
            }
        }
    }

    /// Records the end of the step with this id. After a failure the sequence is ended, so that all masters get an id
    /// of a new sequence from the leader.
    pub(crate) async fn end(
        &self,
        session: &Arc<str>,
        graph_key: i64,
        id: i64,
        failure: Option<&Status>,
        leader: Option<&Arc<dyn WorkerLink>>,
    ) {
        self.advance(graph_key, id, failure.is_none());
        if let (Some(failure), Some(leader)) = (failure, leader) {
            let (session, failure) = (session.clone(), Some(failure.clone()));
            report_end(leader, SequenceEnd { session, graph_key, step_id: id, failure }).await;
        }
    }

    fn advance(&self, graph_key: i64, id: i64, is_success: bool) {
        let mut next = self.next.lock();
        if next.get(&graph_key) != Some(&id) {
            return;
        }
        match is_success {
            true => drop(next.insert(graph_key, next_step_id(id))),
            false => drop(next.remove(&graph_key)),
        }
    }

    /// Ends all sequences, because their session ends.
    pub(crate) async fn close(&self, session: &Arc<str>, leader: &Arc<dyn WorkerLink>) {
        let ended = std::mem::take(&mut *self.next.lock());
        for (graph_key, step_id) in ended {
            report_end(leader, SequenceEnd { session: session.clone(), graph_key, step_id, failure: None })
                .await;
        }
    }
}

async fn report_end(leader: &Arc<dyn WorkerLink>, end: SequenceEnd) {
    let step_id = end.step_id;
    if let Err(status) = leader.end_step_ids(end).await {
        tracing::debug!("the leader of collectives was not told the end of step {step_id}: {status}");
    }
}

/// The last step of each graph key. A worker keeps the tensors of such a step until the next step has ended, because
/// members in other sessions may not have fetched them when this master's part of the step ends.
#[derive(Debug, Default)]
pub(crate) struct RetainedSteps {
    by_key: Mutex<FxHashMap<i64, Step>>,
}

impl RetainedSteps {
    /// Keeps a step that has ended, and removes the step before it from the workers. A step without a graph key is
    /// removed at once.
    pub(crate) fn retain(&self, step: Step) {
        let ended = match step.graph_key() {
            Some(graph_key) => self.by_key.lock().insert(graph_key, step),
            None => Some(step),
        };
        drop(ended);
    }

    /// Removes all steps from the workers after [`RELEASE_DELAY`].
    pub(crate) fn release(&self, runtime: &Handle) {
        let steps = std::mem::take(&mut *self.by_key.lock());
        if !steps.is_empty() {
            runtime.spawn(async move {
                tokio::time::sleep(RELEASE_DELAY).await;
                drop(steps);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value was observed at a TensorFlow master.
    #[test]
    fn the_graph_key_is_that_of_tensorflow() {
        let hash = [100u64, 101].into_iter().fold(SEED, |hash, key| combine(key, hash));
        assert_eq!(hash as i64, -4331444885509197753);
        assert_eq!(SEED as i64, -8686130450446246798);
    }

    #[test]
    fn ids_follow_each_other_until_a_step_fails() {
        let sequences = StepSequences::default();
        sequences.next.lock().insert(7, 8);
        sequences.advance(7, 8, true);
        assert_eq!(sequences.next.lock().get(&7), Some(&9));
        sequences.advance(7, 5, false);
        assert_eq!(sequences.next.lock().get(&7), Some(&9));
        sequences.advance(7, 9, false);
        assert_eq!(sequences.next.lock().get(&7), None);
    }
}
