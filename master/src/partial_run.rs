//! Partial runs: steps whose feeds and fetches arrive in several calls, and the checks of each call before it
//! runs.

use crate::signature::without_zero_port;
use crate::step::Step;
use graph::{Graph, Output, Topology, parse_output_name};
use parking_lot::Mutex;
use proto::Status;
use proto::link::{Extent, PartialRunSetup};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// A step that runs in parts, and the state of its feeds and fetches.
#[derive(Debug)]
pub(crate) struct PartialRun {
    pub(crate) step: Step,
    /// The placed graph of the session at the time when the partial run was set up.
    graph: Arc<Graph>,
    state: Mutex<PartialRunState>,
}

/// The feeds and fetches announced at set-up, by name without `:0`; the value is true once the tensor has
/// been fed or fetched.
#[derive(Clone, Debug, Default)]
struct PartialRunState {
    feeds: FxHashMap<String, bool>,
    fetches: FxHashMap<String, bool>,
}

impl PartialRun {
    /// Returns a partial run with the feeds and fetches of `setup`, none of which has been used.
    pub(crate) fn new(step: Step, graph: Arc<Graph>, setup: &PartialRunSetup) -> PartialRun {
        let unused =
            |names: &[String]| names.iter().map(|n| (without_zero_port(n).to_owned(), false)).collect();
        let state = PartialRunState { feeds: unused(&setup.feeds), fetches: unused(&setup.fetches) };
        PartialRun { step, graph, state: Mutex::new(state) }
    }

    /// Records the feeds and fetches of one part. Returns whether it is the last part.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that was not announced or has been used already, or for a fetch that
    /// needs a missing feed; on an error, nothing is recorded.
    pub(crate) fn advance<'a>(
        &self,
        feeds: impl Iterator<Item = &'a str>,
        fetches: &[String],
    ) -> Result<Extent, Status> {
        let mut state = self.state.lock();
        let mut next = state.clone();
        for feed in feeds {
            mark(&mut next.feeds, feed, "feed", "fed")?;
        }
        for fetch in fetches {
            mark(&mut next.fetches, fetch, "fetch", "fetched")?;
        }
        self.check_computable(&next, fetches)?;
        *state = next;
        let is_last = state.feeds.values().chain(state.fetches.values()).all(|is_done| *is_done);
        Ok(if is_last { Extent::LastPart } else { Extent::Part })
    }

    /// Checks that `fetches` depend only on feeds that have been fed.
    fn check_computable(&self, state: &PartialRunState, fetches: &[String]) -> Result<(), Status> {
        let output = |name: &str| {
            let (node, index) = parse_output_name(name).unwrap_or((name, 0));
            self.graph.find(node).map(|node| Output { node, index })
        };
        let feeds = || state.feeds.iter().filter_map(|(name, is_done)| Some((output(name)?, *is_done)));
        let feeds: FxHashMap<Output, bool> = feeds().collect();
        let topology = Topology::new(&self.graph);
        let mut visited = FxHashSet::default();
        let mut open: Vec<_> = fetches.iter().filter_map(|f| output(f)).map(|o| o.node).collect();
        while let Some(node) = open.pop() {
            if !visited.insert(node) {
                continue;
            }
            for producer in topology.producers(node) {
                let source = producer.source();
                match feeds.get(&source).filter(|_| !producer.is_control()) {
                    Some(true) => {}
                    Some(false) => {
                        let feed = &self.graph.node(source.node).name;
                        return Err(Status::invalid(format!(
                            "Fetch {feed}:{} can't be computed from the feeds that have been fed so far.",
                            source.index
                        )));
                    }
                    None => open.push(producer.node),
                }
            }
        }
        Ok(())
    }
}

/// Marks the feed or fetch `name` as used. Fails if it was not announced at set-up or has been used before.
fn mark(names: &mut FxHashMap<String, bool>, name: &str, kind: &str, done: &str) -> Result<(), Status> {
    match names.get_mut(without_zero_port(name)) {
        None => Err(Status::invalid(format!("The {kind} {name} was not specified in partial_run_setup."))),
        Some(true) => Err(Status::invalid(format!("The {kind} {name} has already been {done}."))),
        Some(is_done) => {
            *is_done = true;
            Ok(())
        }
    }
}
