//! Tests of a step of an all-reduce job that is cancelled between the updates of two variables. The job continues with
//! variables that are all of one step, from another worker or a checkpoint, and ends with the same bits as an
//! undisturbed job.

use super::Fallible;
use super::all_reduce::{COLUMNS, ROWS, Workers, batch, config};
use super::sessions::Folder;
use anabranch_train::{
    Average, Coordinator, Hook, HookContext, Initializer, Master, MonitoredConfig, MonitoredSession,
    Optimizer, Period, Retention, RunArgs, Saver, Strategy, Tables, Training, Uneven, Variables, Wire, hooks,
};
use client::{Server, Session};
use graph::{Bool8, Code, DType, Graph, Node, NodeId, Output, PartialShape, Scope, Tensor};
use parking_lot::Mutex;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

/// The number of steps before the one that is cancelled.
const BEFORE: usize = 3;
const STEPS: i64 = 7;
/// Number of elements that let a gate open for the rest of a job, which is more than enough.
const MANY: usize = 100;
const PATIENCE: Duration = Duration::from_secs(30);

/// The node of a worker's step that waits until the worker's gate, a queue, has an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    /// The first node of the update: all gradients have arrived, and no variable is updated yet.
    Update,
    /// The update of the variable `w`; the update of `b` does not wait.
    OneVariable,
}

/// A replica whose step contains a gate, which is a queue of its task.
struct Replica {
    graph: Graph,
    training: Training,
    saver: Arc<Saver>,
    inputs: [Output; 2],
    values: Vec<Output>,
    names: Vec<String>,
    tokens: Output,
    let_pass: NodeId,
}

fn strategy(worker: u32) -> Strategy {
    let (average, wire, uneven) = (Average::Mean, Wire::F32, Uneven::Fail);
    Strategy::AllReduce { worker, workers: 2, least: 2, average, wire, uneven, tables: Tables::Replicated }
}

impl Replica {
    fn build(worker: u32, gate: Gate) -> Fallible<Replica> {
        let root = Scope::new();
        let (scope, for_variables) = strategy(worker).scopes(&root);
        let queue = scope.op("FIFOQueueV2").attr("component_types", vec![DType::Bool]);
        let queue = queue.attr("shared_name", "gate").output();
        let pass = scope.op("QueueDequeueV2").input(queue).attr("component_types", vec![DType::Bool]).node();
        let tokens = scope.placeholder("tokens", DType::Bool, PartialShape::from([None]));
        let let_pass = scope.op("QueueEnqueueManyV2").input(queue).input(vec![tokens]).node();
        let variables = Variables::new(&for_variables);
        let x = scope.placeholder("x", DType::Float, PartialShape::from([None, Some(COLUMNS)]));
        let y = scope.placeholder("y", DType::Float, PartialShape::from([None, Some(1)]));
        let optimizer = Optimizer::momentum(0.02, 0.9);
        let training = strategy(worker).minimize(
            &scope,
            &variables,
            &optimizer,
            &[x, y],
            |scope, variables, batch| {
                let w = variables.get("w", DType::Float, &[COLUMNS, 1], &Initializer::Constant(0.5));
                let b = variables.get("b", DType::Float, &[1], &Initializer::Zeros);
                let guess = scope.add(scope.matmul(batch[0], w.value), b.value);
                scope.mean(scope.square(scope.sub(guess, batch[1])), &[0, 1], false)
            },
        )?;
        let all = variables.all();
        let saver = Arc::new(Saver::new(&root, &all, Retention::default()));
        let graph = gated(&root.finish()?, gate, pass)?;
        let (values, names) = all.into_iter().map(|v| (v.value, v.name)).unzip();
        Ok(Replica { graph, training, saver, inputs: [x, y], values, names, tokens, let_pass })
    }

    /// Lets `steps` further steps pass the gate.
    fn let_pass(&self, session: &Session, steps: usize) -> Fallible {
        let tokens = Tensor::vector(&vec![Bool8::from(true); steps])?;
        session.run(&[(self.tokens, tokens)], &[], &[self.let_pass])?;
        Ok(())
    }

    fn on(&self, server: &Arc<Server>) -> Fallible<Session> {
        Ok(Session::on_server(server, self.graph.clone(), Default::default())?)
    }
}

/// Returns a copy of the graph in which the node of the gate waits for `pass`.
fn gated(graph: &Graph, gate: Gate, pass: NodeId) -> Fallible<Graph> {
    let is_gated = |id: NodeId, node: &Node| {
        let handle = graph.input(id, 0).map_or("", |input| &*graph.node(input.node).name);
        match (gate, node.op.name()) {
            (Gate::Update, "AssignVariableOp") => node.name.starts_with("update/tear/"),
            (Gate::OneVariable, "ResourceApplyMomentum") => handle == "w",
            _ => false,
        }
    };
    let (mut copy, mut gates) = (Graph::new(), 0);
    for (id, node) in graph.nodes() {
        let mut control = graph.control_inputs(id);
        if is_gated(id, node) {
            gates += 1;
            control.push(pass);
        }
        assert_eq!(copy.add(node.clone(), &graph.inputs(id), &control)?, id);
    }
    assert_eq!(gates, 1, "{gate:?}");
    Ok(copy)
}

/// The present session of a worker, with its coordinator.
type Place = Arc<Mutex<Option<(Arc<Session>, Coordinator)>>>;

/// A hook that records the session of its worker.
struct Remembers(Place);

impl Hook for Remembers {
    fn before_run(&mut self, context: &HookContext<'_>) -> anabranch_train::Result<RunArgs> {
        *self.0.lock() = Some((context.session.clone(), context.coordinator.clone()));
        Ok(RunArgs::default())
    }
}

/// Ends the session of a worker in the middle of its step, as a lost connection does.
fn cut(place: &Place) -> Fallible {
    let (session, coordinator) = place.lock().clone().ok_or("no session")?;
    coordinator.fail(client::Error::Status(proto::Status::new(Code::Unavailable, "the link is cut")).into());
    session.close()?;
    Ok(())
}

/// Waits until a variable has changed, which means that the worker's step has reached its gate.
fn until_changed(session: &Session, variable: Output, before: &Tensor) -> Fallible {
    let started = Instant::now();
    while &session.run(&[], &[variable], &[])?[0] == before {
        assert!(started.elapsed() < PATIENCE, "no variable was updated");
        thread::park_timeout(Duration::from_millis(5));
    }
    Ok(())
}

/// A job of two workers. With gates, each worker is stopped at its gate in the step after [`BEFORE`], and then its
/// session is ended; `None` means an undisturbed job.
struct Job {
    gates: Option<[Gate; 2]>,
    folder: Option<Folder>,
}

impl Job {
    /// Trains to the last step. Returns the variables and the number of recoveries of each worker.
    fn train(&self) -> Fallible<Vec<(Vec<Tensor>, u32)>> {
        let (workers, stopped) = (Workers::start(2)?, Barrier::new(2));
        workers.run(|worker, server| {
            let gate = self.gates.map_or(Gate::OneVariable, |gates| gates[worker as usize]);
            let replica = Replica::build(worker, gate)?;
            let place = Place::default();
            let mut session = self.open(server, &replica, worker, &place)?;
            replica.let_pass(session.session(), if self.gates.is_some() { BEFORE } else { MANY })?;
            for _ in 0..BEFORE {
                step(&mut session, &replica, worker)?;
            }
            let b = replica.names.iter().position(|name| name == "b").ok_or("no variable")?;
            let (reader, b) = (replica.on(server)?, replica.values[b]);
            let before = reader.run(&[], &[b], &[])?.swap_remove(0);
            let disturb = || -> Fallible {
                if gate == Gate::OneVariable {
                    until_changed(&reader, b, &before)?;
                }
                stopped.wait();
                cut(&place)
            };
            thread::scope(|scope| -> Fallible {
                let disturbed =
                    self.gates.map(|_| scope.spawn(|| disturb().map_err(|error| error.to_string())));
                while step(&mut session, &replica, worker)? {}
                disturbed.map_or(Ok(Ok(())), thread::ScopedJoinHandle::join).map_err(|_| "a panic")??;
                Ok(())
            })?;
            let values = session.session().run(&[], &replica.values, &[])?;
            let recoveries = session.recoveries();
            session.finish()?;
            Ok((values, recoveries))
        })
    }

    fn open(
        &self,
        server: &Arc<Server>,
        replica: &Replica,
        worker: u32,
        place: &Place,
    ) -> anabranch_train::Result<MonitoredSession> {
        let (graph, training) = (replica.graph.clone(), replica.training.clone());
        let checkpoint_folder = self.folder.as_ref().map(|folder| folder.0.clone());
        let mut all: Vec<Box<dyn Hook>> = vec![
            Box::new(Remembers(place.clone())),
            Box::new(OpensGate { let_pass: replica.let_pass, tokens: replica.tokens, sessions: 0 }),
            Box::new(hooks::StopAtStep { last_step: STEPS }),
        ];
        if let Some(folder) = &checkpoint_folder {
            let (saver, step) = (replica.saver.clone(), training.global_step);
            all.push(Box::new(hooks::CheckpointSaver::new(saver, folder, step, Period::Steps(2))));
        }
        let config = MonitoredConfig { checkpoint_folder, ..config(worker) };
        let (master, saver) = (Master::InProcess(server.clone()), Some(replica.saver.clone()));
        MonitoredSession::new(master, graph, training, saver, all, config)
    }
}

/// A hook that opens the worker's gate in its second session.
struct OpensGate {
    let_pass: NodeId,
    tokens: Output,
    sessions: u32,
}

impl Hook for OpensGate {
    fn after_create_session(&mut self, context: &HookContext<'_>) -> anabranch_train::Result<()> {
        self.sessions += 1;
        if self.sessions > 1 {
            let tokens = Tensor::vector(&[Bool8::from(true); MANY])?;
            context.session.run(&[(self.tokens, tokens)], &[], &[self.let_pass])?;
        }
        Ok(())
    }
}

/// Runs a step on the worker's half of the batch. Returns false if training has ended.
fn step(session: &mut MonitoredSession, replica: &Replica, worker: u32) -> Fallible<bool> {
    let half = ROWS / 2;
    let from = half * worker as usize;
    let [x, y] = batch(from, from + half, 0)?;
    let feeds = [(replica.inputs[0], x), (replica.inputs[1], y)];
    Ok(session.run(&feeds, &[], &[replica.training.train])?.is_some())
}

/// Trains a job. Returns the variables, which are the same on all workers.
fn trained(job: &Job) -> Fallible<Vec<Tensor>> {
    let mut all = job.train()?;
    assert_eq!(all[0].0, all[1].0);
    for (_, recoveries) in &all {
        assert_eq!(*recoveries > 0, job.gates.is_some());
    }
    Ok(all.swap_remove(0).0)
}

fn undisturbed() -> Fallible<Vec<Tensor>> {
    trained(&Job { gates: None, folder: None })
}

#[test]
fn a_torn_worker_gets_the_variables_of_another_of_the_same_step() -> Fallible {
    let gates = Some([Gate::OneVariable, Gate::Update]);
    assert_eq!(trained(&Job { gates, folder: None })?, undisturbed()?);
    Ok(())
}

#[test]
fn workers_that_are_all_torn_go_back_to_the_checkpoint() -> Fallible {
    let (gates, folder) = (Some([Gate::OneVariable; 2]), Some(Folder::new("torn-updates")));
    assert_eq!(trained(&Job { gates, folder })?, undisturbed()?);
    Ok(())
}

#[test]
fn workers_that_are_all_torn_without_a_checkpoint_go_on_from_the_chief() -> Fallible {
    let torn = trained(&Job { gates: Some([Gate::OneVariable; 2]), folder: None })?;
    let undisturbed = undisturbed()?;
    for (torn, undisturbed) in torn.iter().zip(&undisturbed) {
        // The global step is not affected; the variable `b` got the interrupted step's update twice.
        if torn.dtype() == DType::Int64 {
            assert_eq!(torn, undisturbed);
            continue;
        }
        for (torn, undisturbed) in torn.values::<f32>()?.iter().zip(undisturbed.values::<f32>()?) {
            assert!((torn - undisturbed).abs() < 1.0, "{torn}, {undisturbed}");
        }
    }
    assert_ne!(torn, undisturbed);
    Ok(())
}
