//! The builder of a single step of a session.

use crate::error::Result;
use crate::runtime;
use crate::session::Session;
use graph::{NodeId, Output, Tensor};
use proto::link::{MasterLink, RunStep};
use proto::pb;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A tensor of the session's graph, by handle or by `name:port`.
#[derive(Clone, Debug, PartialEq)]
pub enum TensorRef {
    Output(Output),
    Name(String),
}

impl From<Output> for TensorRef {
    fn from(output: Output) -> TensorRef {
        TensorRef::Output(output)
    }
}

impl From<&str> for TensorRef {
    fn from(name: &str) -> TensorRef {
        TensorRef::Name(name.to_owned())
    }
}

/// The builder of a step. An invalid name is reported when the step runs.
#[derive(Debug)]
pub struct Step<'a> {
    session: &'a Session,
    request: Result<RunStep>,
    timeout: Option<Duration>,
}

/// The results of a step.
#[derive(Clone, Debug, Default)]
pub struct StepOutcome {
    /// The fetched values, in the order of the fetches.
    pub values: Vec<Tensor>,
    /// The records that the run options requested, such as a trace of the step.
    pub metadata: Option<pb::RunMetadata>,
}

impl<'a> Step<'a> {
    pub(crate) fn new(session: &'a Session) -> Step<'a> {
        let request = RunStep { session: session.handle().clone(), ..RunStep::default() };
        Step { session, request: Ok(request), timeout: None }
    }

    /// Adds a feed: in this step, `value` replaces the computed value of the tensor.
    pub fn feed(self, tensor: impl Into<TensorRef>, value: impl Into<Tensor>) -> Step<'a> {
        let value = value.into();
        self.with_name(tensor.into(), |request, name| request.feeds.push((name, value)))
    }

    /// Adds a fetch: the step returns the value of the tensor.
    pub fn fetch(self, tensor: impl Into<TensorRef>) -> Step<'a> {
        self.with_name(tensor.into(), |request, name| request.fetches.push(name))
    }

    /// Adds a node to run without returning its outputs.
    pub fn target(self, node: impl Into<Target>) -> Step<'a> {
        match node.into() {
            Target::Node(node) => self.with_name(TensorRef::Output(node.into()), |request, name| {
                let bare = name.rsplit_once(':').map_or(name.as_str(), |(node, _)| node);
                request.targets.push(bare.to_owned());
            }),
            Target::Name(name) => self.with_name(TensorRef::Name(name), |r, name| r.targets.push(name)),
        }
    }

    /// Sets a time limit, after which the step fails with `DeadlineExceeded`.
    pub fn timeout(mut self, timeout: Duration) -> Step<'a> {
        self.timeout = Some(timeout);
        self
    }

    /// Sets TensorFlow's options of a run.
    pub fn options(mut self, options: pb::RunOptions) -> Step<'a> {
        if let Ok(request) = &mut self.request {
            request.options = options;
        }
        self
    }

    /// Runs the step and blocks until it ends.
    pub fn run(self) -> Result<StepOutcome> {
        let mut request = self.request?;
        request.deadline = self.timeout.map(|t| Instant::now() + t);
        let master = self.session.master()?;
        runtime::wait(async move { run(master, request).await })?
    }

    /// Runs the step from asynchronous code of any runtime; dropping the future cancels the step.
    pub async fn run_async(self) -> Result<StepOutcome> {
        let mut request = self.request?;
        request.deadline = self.timeout.map(|t| Instant::now() + t);
        runtime::run(run(self.session.master()?, request)).await?
    }

    fn with_name(mut self, tensor: TensorRef, add: impl FnOnce(&mut RunStep, String)) -> Step<'a> {
        match (self.session.name_of(&tensor), &mut self.request) {
            (Ok(name), Ok(request)) => add(request, name),
            (Err(error), Ok(_)) => self.request = Err(error),
            (_, Err(_)) => {}
        }
        self
    }
}

/// A node to run, by handle or by name.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    Node(NodeId),
    Name(String),
}

impl From<NodeId> for Target {
    fn from(node: NodeId) -> Target {
        Target::Node(node)
    }
}

impl From<Output> for Target {
    fn from(output: Output) -> Target {
        Target::Node(output.node)
    }
}

impl From<&str> for Target {
    fn from(name: &str) -> Target {
        Target::Name(name.to_owned())
    }
}

async fn run(master: Arc<dyn MasterLink>, request: RunStep) -> Result<StepOutcome> {
    let outcome = master.run_step(request).await?;
    Ok(StepOutcome {
        values: outcome.fetches.into_iter().map(|(_, value)| value).collect(),
        metadata: outcome.metadata,
    })
}
