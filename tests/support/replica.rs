//! A replica of a small synchronous job: a linear model on two parameter servers. A replica is a client on a thread of
//! the test, or a process that is both a task of the cluster and the client that trains on it.

use super::Fallible;
use anabranch::client::{Server, ServerConfig, SessionOptions};
use anabranch::graph::{DType, Graph, Output, Scope, Shape, Tensor};
use anabranch::proto::Cluster;
use anabranch::serve::log_to_stderr;
use anabranch::train::{
    FileStore, Hook, Initializer, Master, MonitoredConfig, MonitoredSession, Optimizer, Partitioner, Period,
    Retention, Role, Saver, Strategy, SyncMode, Training, Variables, hooks,
};
use anabranch::worker::Transport;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

const COLUMNS: usize = 3;

/// The environment variable that makes a process a replica; holds a [`ReplicaConfig`] as text.
pub const CONFIG_VARIABLE: &str = "ANABRANCH_REPLICA";

/// The graph of one replica.
pub struct Replica {
    pub graph: Graph,
    pub training: Training,
    pub saver: Arc<Saver>,
    pub values: Vec<Output>,
    /// Names of the variables, in the order of `values`.
    pub names: Vec<String>,
}

/// Builds the linear model of one worker that trains with two parameter servers.
pub fn replica(worker: u32, sync: SyncMode) -> Fallible<Replica> {
    let strategy = Strategy::ParameterServer { ps_tasks: 2, worker, placement: Default::default(), sync };
    replica_under(&strategy, worker)
}

/// Builds the linear model of one worker. The batch of a step depends only on the global step, so a repeated step
/// computes the same.
pub fn replica_under(strategy: &Strategy, worker: u32) -> Fallible<Replica> {
    replica_of(strategy, worker, |_, variables| {
        variables.get("b", DType::Float, &[COLUMNS], &Initializer::Zeros).value
    })
}

/// Builds the model of [`replica_under`] with the bias looked up in a table of two parts.
pub fn replica_with_table(strategy: &Strategy, worker: u32) -> Fallible<Replica> {
    replica_of(strategy, worker, |scope, variables| {
        let cut = Partitioner::fixed_size(2);
        let b = variables.get_partitioned("b", DType::Float, &[COLUMNS], &Initializer::Zeros, cut);
        let ids: Vec<i32> = (0..).take(COLUMNS).collect();
        variables.embedding_lookup(scope, &b.parts, scope.constant_vector(&ids), Default::default())
    })
}

fn replica_of(
    strategy: &Strategy,
    worker: u32,
    bias: impl Fn(&Scope, &Variables) -> Output,
) -> Fallible<Replica> {
    let root = Scope::new();
    let (scope, for_variables) = strategy.scopes(&root);
    let variables = Variables::new(&for_variables);
    let numbers: Vec<f32> = (0..7 * COLUMNS).map(|i| ((i * 5 + worker as usize) % 11) as f32 / 7.0).collect();
    let data = scope.constant(Tensor::from_slice(&numbers, Shape::new(&[7, COLUMNS])?)?);
    let optimizer = Optimizer::momentum(0.01, 0.9);
    let training = strategy.minimize(&scope, &variables, &optimizer, &[], |scope, variables, _| {
        let step = variables.global_step().value;
        let row = scope.gather(data, scope.floor_mod(step, scope.constant(7i64)), 0);
        let w = variables.get("w", DType::Float, &[COLUMNS], &Initializer::Constant(0.5));
        let b = bias(scope, variables);
        let error = scope.sub(scope.add(scope.mul(row, w.value), b), scope.constant(1.0f32));
        scope.sum(scope.square(error), &[0], false)
    })?;
    let all = variables.all();
    let saver = Arc::new(Saver::new(&root, &all, Retention::default()));
    let values = all.iter().map(|v| v.value).collect();
    let names = all.into_iter().map(|v| v.name).collect();
    Ok(Replica { graph: root.finish()?, training, saver, values, names })
}

/// Trains up to `last_step` through the master at `target`; returns the number of times that it recovered in a new
/// session. Worker 0 is the chief, which saves a checkpoint every ten steps if `folder` is given.
pub fn train_through_master(
    worker: u32,
    target: &str,
    folder: Option<&Path>,
    sync: SyncMode,
    last_step: i64,
) -> Fallible<u32> {
    let replica = replica(worker, sync)?;
    let is_chief = worker == 0;
    let config = MonitoredConfig {
        role: Role::fixed(is_chief),
        checkpoint_folder: folder.map(Path::to_owned),
        ..long_deadlines()
    };
    let mut all: Vec<Box<dyn Hook>> = vec![Box::new(hooks::StopAtStep { last_step })];
    let step = replica.training.global_step;
    if let Some(folder) = folder.filter(|_| is_chief) {
        let saver = hooks::CheckpointSaver::new(replica.saver.clone(), folder, step, Period::Steps(10));
        all.push(Box::new(saver.asynchronous()));
    }
    let (graph, training) = (replica.graph.clone(), replica.training.clone());
    let saver = folder.map(|_| replica.saver.clone());
    let mut session =
        MonitoredSession::new(Master::Remote(target.to_owned()), graph, training, saver, all, config)?;
    while session.run(&[], &[], &[replica.training.train])?.is_some() {
        // The pause slows training down, so that tests can kill tasks in the middle of it.
        thread::park_timeout(Duration::from_millis(5));
    }
    let recoveries = session.recoveries();
    session.finish()?;
    Ok(recoveries)
}

/// Returns a configuration with deadlines long enough for processes to be restarted.
pub fn long_deadlines() -> MonitoredConfig {
    MonitoredConfig {
        session: SessionOptions { deadline: Some(Duration::from_secs(10)), ..SessionOptions::default() },
        ready_deadline: PATIENCE,
        step_deadline: PATIENCE,
        recovery_deadline: PATIENCE,
        stop_grace: PATIENCE,
        ..MonitoredConfig::default()
    }
}

/// The configuration of a replica process.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// The folder of checkpoints and of the election's files.
    pub folder: PathBuf,
    /// Number of replicas that train synchronously.
    pub workers: u32,
    pub last_step: i64,
    pub lease: Duration,
    /// Pause after each step, so that tests can disturb the job in the middle of training.
    pub pause: Duration,
    pub transport: Transport,
}

/// Longest time that a start, a step or an end of a replica may take.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The name of the election of the chief.
pub const ELECTION: &str = "chief";

impl ReplicaConfig {
    /// Returns the synchronisation of the job: each step aggregates the gradients of all workers.
    pub fn sync(&self) -> SyncMode {
        SyncMode::Sync { replicas_to_aggregate: self.workers, backup: 0, aggregation: Default::default() }
    }

    /// Returns the configuration as JSON, for [`CONFIG_VARIABLE`].
    pub fn to_text(&self) -> String {
        let folder = self.folder.display().to_string();
        let [lease, pause] = [self.lease, self.pause].map(|time| time.as_millis() as u64);
        serde_json::json!([folder, self.workers, self.last_step, lease, pause, self.transport.to_string()])
            .to_string()
    }

    fn from_text(text: &str) -> Fallible<ReplicaConfig> {
        type Fields = (PathBuf, u32, i64, u64, u64, String);
        let (folder, workers, last_step, lease, pause, transport): Fields = serde_json::from_str(text)?;
        let [lease, pause] = [lease, pause].map(Duration::from_millis);
        Ok(ReplicaConfig { folder, workers, last_step, lease, pause, transport: transport.parse()? })
    }
}

/// Runs a replica and exits the process if [`CONFIG_VARIABLE`] is set; returns at once otherwise.
pub fn run_if_replica_process() -> Fallible {
    let Some(text) = std::env::var_os(CONFIG_VARIABLE) else { return Ok(()) };
    let config = ReplicaConfig::from_text(&text.to_string_lossy())?;
    log_to_stderr();
    serve_and_train(&config).inspect_err(|error| tracing::error!("this replica failed: {error}"))?;
    std::process::exit(0)
}

/// Serves the task that `TF_CONFIG` names, and trains on it.
fn serve_and_train(replica_config: &ReplicaConfig) -> Fallible {
    let (cluster, task) = Cluster::from_tf_config(&std::env::var("TF_CONFIG")?)?;
    let task = task.ok_or("TF_CONFIG names no task")?;
    let address = cluster.address(&task).ok_or("TF_CONFIG has no address of the task")?.to_owned();
    let runtime = Runtime::new()?;
    let listener = runtime.block_on(TcpListener::bind(address))?;
    let config = ServerConfig {
        task: task.clone(),
        cluster,
        threads: 2,
        transport: replica_config.transport,
        connect_deadline: Duration::from_secs(2),
        ..ServerConfig::default()
    };
    let server = {
        let _in_runtime = runtime.enter();
        Arc::new(Server::in_runtime(config)?)
    };
    let served = server.clone();
    runtime.spawn(async move { served.serve(listener, std::future::pending(), Duration::ZERO).await });
    train(task.task, Master::InProcess(server), replica_config)
}

/// Trains to the last step with an elected chief, which saves a checkpoint every ten steps.
fn train(worker: u32, master: Master, replica_config: &ReplicaConfig) -> Fallible {
    let replica = replica(worker, replica_config.sync())?;
    let store = FileStore::new(&replica_config.folder, ELECTION, replica_config.lease)?;
    let config = MonitoredConfig {
        role: Role::Elected(Arc::new(store)),
        checkpoint_folder: Some(replica_config.folder.clone()),
        ..long_deadlines()
    };
    let (saver, step) = (replica.saver.clone(), replica.training.global_step);
    let save = hooks::CheckpointSaver::new(saver.clone(), &replica_config.folder, step, Period::Steps(10));
    let all: Vec<Box<dyn Hook>> = vec![
        Box::new(hooks::StopAtStep { last_step: replica_config.last_step }),
        Box::new(hooks::ChiefOnly::new(save.asynchronous())),
    ];
    let (graph, training) = (replica.graph.clone(), replica.training.clone());
    let mut session = MonitoredSession::new(master, graph, training, Some(saver), all, config)?;
    while session.run(&[], &[], &[replica.training.train])?.is_some() {
        thread::park_timeout(replica_config.pause);
    }
    session.finish()?;
    Ok(())
}
