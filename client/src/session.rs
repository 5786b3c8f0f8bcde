//! A session: a graph, and the master that runs it.

use crate::callable::Callable;
use crate::error::{Error, Result};
use crate::partial_run::PartialRun;
use crate::remote::RemoteMaster;
use crate::runtime;
use crate::server::{Server, ServerConfig};
use crate::step::{Step, TensorRef};
use graph::{DeviceAttributes, Graph, NodeId, Output, Tensor};
use parking_lot::{Mutex, MutexGuard};
use proto::convert::new_nodes_to_bytes;
use proto::link::{CreateSession, ExtendSession, MasterLink};
use proto::pb;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Options for the start of a session.
#[derive(Clone, Debug, Default)]
pub struct SessionOptions {
    /// TensorFlow's session options.
    pub config: pb::ConfigProto,
    /// Time limit for connecting to the master, and for the master to connect to its workers. If absent, the master's
    /// own limit applies (60 s unless configured).
    pub deadline: Option<Duration>,
}

/// A client's session, which runs steps of one graph.
///
/// Variables are stored on the devices by container and name, and outlive the session.
pub struct Session {
    master: Arc<dyn MasterLink>,
    handle: Arc<str>,
    state: Mutex<SessionState>,
    /// The lock that serialises extensions of the graph; steps can run during an extension.
    extending: Mutex<()>,
    /// The server of an in-process session, which lives as long as the session.
    _server: Option<Arc<Server>>,
}

struct SessionState {
    graph: Arc<Graph>,
    version: i64,
    closed: bool,
}

impl Session {
    /// Opens a session in this process, whose master has one local worker with one CPU device.
    ///
    /// # Errors
    /// The placement errors of the graph, by node.
    pub fn local(graph: Graph) -> Result<Session> {
        Session::local_with(graph, ServerConfig::default(), SessionOptions::default())
    }

    /// Opens a session in this process with a server configuration and session options.
    pub fn local_with(graph: Graph, server: ServerConfig, options: SessionOptions) -> Result<Session> {
        Session::on_server(&Arc::new(Server::new(server)?), graph, options)
    }

    /// Opens a session on a server of this process. Sessions of one server share its variables.
    pub fn on_server(server: &Arc<Server>, graph: Graph, options: SessionOptions) -> Result<Session> {
        Session::open(server.master(), String::new(), graph, options, Some(server.clone()))
    }

    /// Opens a session on a cluster through the master at `grpc://host:port`.
    ///
    /// # Errors
    /// `Unavailable` naming task and address if the master, or a worker that it needs, does not respond in
    /// time.
    pub fn connect(target: &str, graph: Graph, options: SessionOptions) -> Result<Session> {
        let master = Arc::new(RemoteMaster::new(target)?);
        Session::open(master, target.to_owned(), graph, options, None)
    }

    fn open(
        master: Arc<dyn MasterLink>,
        target: String,
        graph: Graph,
        options: SessionOptions,
        server: Option<Arc<Server>>,
    ) -> Result<Session> {
        let deadline = options.deadline.map(|d| Instant::now() + d);
        let request = CreateSession { graph: graph.clone(), config: options.config, target, deadline };
        let link = master.clone();
        let created = runtime::wait(async move { link.create_session(request).await })??;
        let state = SessionState { graph: Arc::new(graph), version: created.graph_version, closed: false };
        Ok(Session {
            master,
            handle: created.session,
            state: Mutex::new(state),
            extending: Mutex::new(()),
            _server: server,
        })
    }

    /// Adds the nodes that `graph` has in addition to the session's graph. `graph` must be the session's
    /// graph with nodes appended.
    pub fn extend(&self, graph: Graph) -> Result<()> {
        let _one = self.extending.lock();
        let (known, graph_version) = {
            let state = self.open_state()?;
            (state.graph.len(), state.version)
        };
        if graph.len() <= known {
            return Ok(());
        }
        let nodes = new_nodes_to_bytes(&graph, known);
        let request = ExtendSession { session: self.handle.clone(), nodes, graph_version };
        let link = self.master.clone();
        let version = runtime::wait(async move { link.extend_session(request).await })??;
        let mut state = self.state.lock();
        state.version = version;
        state.graph = Arc::new(graph);
        Ok(())
    }

    /// Runs one step: feeds values, runs targets, and returns the fetched values in the order of `fetches`.
    ///
    /// # Errors
    /// The root cause of the failure, with the node's name.
    pub fn run(
        &self,
        feeds: &[(Output, Tensor)],
        fetches: &[Output],
        targets: &[NodeId],
    ) -> Result<Vec<Tensor>> {
        let step = feeds.iter().fold(self.step(), |step, (output, value)| step.feed(*output, value.clone()));
        let step = fetches.iter().fold(step, |step, output| step.fetch(*output));
        Ok(targets.iter().fold(step, |step, node| step.target(*node)).run()?.values)
    }

    /// Starts to build a step, which [`Step::run`] runs.
    pub fn step(&self) -> Step<'_> {
        Step::new(self)
    }

    /// Prepares a step with fixed feeds, fetches and targets. The master plans the step with the current
    /// graph.
    pub fn callable(&self, feeds: &[Output], fetches: &[Output], targets: &[NodeId]) -> Result<Callable<'_>> {
        Callable::new(self, feeds, fetches, targets)
    }

    /// Starts a partial run with all feeds and fetches of its parts, and the nodes `targets`, which run
    /// without returning outputs.
    ///
    /// # Errors
    /// The errors of a step with the same feeds and fetches.
    pub fn partial_run(
        &self,
        feeds: &[Output],
        fetches: &[Output],
        targets: &[NodeId],
    ) -> Result<PartialRun<'_>> {
        PartialRun::new(self, feeds, fetches, targets)
    }

    /// Lists the devices that the session may use.
    pub fn list_devices(&self) -> Result<Vec<DeviceAttributes>> {
        drop(self.open_state()?);
        let (link, handle) = (self.master.clone(), self.handle.clone());
        let mut listed = runtime::wait(async move { link.list_devices(Some(&handle)).await })??;
        listed.local.append(&mut listed.remote);
        Ok(listed.local)
    }

    /// Closes the session; steps in progress are cancelled, and later steps are rejected. Dropping the
    /// session does the same without reporting errors.
    pub fn close(&self) -> Result<()> {
        if std::mem::replace(&mut self.state.lock().closed, true) {
            return Ok(());
        }
        let (link, handle) = (self.master.clone(), self.handle.clone());
        Ok(runtime::wait(async move { link.close_session(&handle).await })??)
    }

    /// Returns whether the client has closed the session.
    pub fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Returns the session's master, or an error if the session is closed.
    pub(crate) fn master(&self) -> Result<Arc<dyn MasterLink>> {
        drop(self.open_state()?);
        Ok(self.master.clone())
    }

    fn open_state(&self) -> Result<MutexGuard<'_, SessionState>> {
        let state = self.state.lock();
        if state.closed { Err(Error::Closed) } else { Ok(state) }
    }

    pub(crate) fn handle(&self) -> &Arc<str> {
        &self.handle
    }

    pub(crate) fn names_of(&self, outputs: &[Output]) -> Result<Vec<String>> {
        outputs.iter().map(|o| self.name_of(&(*o).into())).collect()
    }

    /// Returns the names of target nodes, for a request to the master.
    pub(crate) fn targets_of(&self, nodes: &[NodeId]) -> Result<Vec<String>> {
        let bare = |name: String| name.rsplit_once(':').map_or(name.clone(), |(node, _)| node.to_owned());
        nodes.iter().map(|n| Ok(bare(self.name_of(&TensorRef::Output((*n).into()))?))).collect()
    }

    /// Returns the name of a tensor of the session's graph, for a request to the master.
    pub(crate) fn name_of(&self, tensor: &TensorRef) -> Result<String> {
        let state = self.open_state()?;
        match tensor {
            TensorRef::Name(name) => Ok(name.clone()),
            TensorRef::Output(output) if output.node.index() < state.graph.len() => {
                Ok(state.graph.output_name(*output))
            }
            TensorRef::Output(output) => Err(Error::Graph(graph::Error::invalid(format!(
                "{output:?} is not of the session's graph; nodes added since need Session::extend"
            )))),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A destructor cannot report the error.
        let _ = self.close();
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({}, {:?})", self.handle, self.master)
    }
}
