//! Steps that run in parts: what has been fed and fetched of what was announced, and what may come next.

use crate::signature::without_zero_port;
use crate::step::Step;
use graph::{Graph, Output, Topology, parse_output_name};
use parking_lot::Mutex;
use proto::Status;
use proto::link::{Extent, PartialRunSetup};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// A step that runs in parts.
#[derive(Debug)]
pub(crate) struct PartialRun {
    pub(crate) step: Step,
    /// The session's graph at the time of the set-up.
    graph: Arc<Graph>,
    pending: Mutex<Pending>,
}

/// What was announced, and whether it has come. Endpoints are spelled without `:0`.
#[derive(Clone, Debug, Default)]
struct Pending {
    feeds: FxHashMap<String, bool>,
    fetches: FxHashMap<String, bool>,
}

impl PartialRun {
    pub(crate) fn new(step: Step, graph: Arc<Graph>, setup: &PartialRunSetup) -> PartialRun {
        let none =
            |names: &[String]| names.iter().map(|n| (without_zero_port(n).to_owned(), false)).collect();
        let pending = Pending { feeds: none(&setup.feeds), fetches: none(&setup.fetches) };
        PartialRun { step, graph, pending: Mutex::new(pending) }
    }

    /// Notes what a part feeds and fetches; says whether it is the last.
    ///
    /// # Errors
    /// `InvalidArgument` for what was not announced, has come already, or needs a feed that has not; then nothing
    /// is noted.
    pub(crate) fn advance<'a>(
        &self,
        feeds: impl Iterator<Item = &'a str>,
        fetches: &[String],
    ) -> Result<Extent, Status> {
        let mut pending = self.pending.lock();
        let mut next = pending.clone();
        for feed in feeds {
            mark(&mut next.feeds, feed, "feed", "fed")?;
        }
        for fetch in fetches {
            mark(&mut next.fetches, fetch, "fetch", "fetched")?;
        }
        self.check_computable(&next, fetches)?;
        *pending = next;
        let is_last = pending.feeds.values().chain(pending.fetches.values()).all(|come| *come);
        Ok(if is_last { Extent::LastPart } else { Extent::Part })
    }

    fn check_computable(&self, pending: &Pending, fetches: &[String]) -> Result<(), Status> {
        let output = |name: &str| {
            let (node, index) = parse_output_name(name).unwrap_or((name, 0));
            self.graph.find(node).map(|node| Output { node, index })
        };
        let feeds = || pending.feeds.iter().filter_map(|(name, come)| Some((output(name)?, *come)));
        let feeds: FxHashMap<Output, bool> = feeds().collect();
        let topology = Topology::new(&self.graph);
        let mut seen = FxHashSet::default();
        let mut open: Vec<_> = fetches.iter().filter_map(|f| output(f)).map(|o| o.node).collect();
        while let Some(node) = open.pop() {
            if !seen.insert(node) {
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

fn mark(of: &mut FxHashMap<String, bool>, name: &str, what: &str, done: &str) -> Result<(), Status> {
    match of.get_mut(without_zero_port(name)) {
        None => Err(Status::invalid(format!("The {what} {name} was not specified in partial_run_setup."))),
        Some(true) => Err(Status::invalid(format!("The {what} {name} has already been {done}."))),
        Some(come) => {
            *come = true;
            Ok(())
        }
    }
}
