//! Workers without parameter servers recover from a worker whose task and client are killed and restarted: they
//! continue from the survivors' step, without a checkpoint, and end with the same bits as a job without failures.

use crate::support::Fallible;
use crate::support::cluster::Cluster;
use crate::support::folder::Folder;
use crate::support::replica::{PATIENCE, Replica, long_deadlines, replica_under, replica_with_table};
use anabranch::graph::{DType, Tensor};
use anabranch::train::{
    Average, Hook, Master, MonitoredConfig, MonitoredSession, Period, Role, Strategy, Tables, Uneven, Wire,
    hooks,
};
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

const STEPS: i64 = 40;
/// The step after which a worker is killed.
const KILLED_AT: i64 = 15;

/// The client of a worker, which runs on a separate thread.
#[derive(Default)]
struct Client {
    /// The global step after the client's last step.
    step: AtomicI64,
    /// Set to end the client as if its process were killed.
    is_killed: AtomicBool,
}

/// The results of a client: the global steps after its steps, and the variables at the end.
type Trained = (Vec<i64>, Vec<Tensor>);

/// The settings of a job of all-reduce.
#[derive(Clone, Default)]
struct Job {
    workers: u32,
    /// The number of parameter servers, which hold the bias of the model if there are any.
    ps_tasks: u32,
    /// The folder in which the chief saves a checkpoint every ten steps.
    folder: Option<PathBuf>,
}

impl Job {
    fn replica(&self, worker: u32) -> Fallible<Replica> {
        let (workers, ps_tasks) = (self.workers, self.ps_tasks);
        let (average, wire, uneven) = (Average::Mean, Wire::F32, Uneven::Fail);
        let strategy =
            |tables| Strategy::AllReduce { worker, workers, least: workers, average, wire, uneven, tables };
        if ps_tasks == 0 {
            return replica_under(&strategy(Tables::Replicated), worker);
        }
        let tables = Tables::OnParameterServers { ps_tasks, placement: Default::default() };
        replica_with_table(&strategy(tables), worker)
    }

    fn cluster(&self) -> Fallible<Cluster> {
        let all = [("ps", self.ps_tasks as usize), ("worker", self.workers as usize)];
        let jobs: Vec<(&str, usize)> = all.into_iter().filter(|(_, tasks)| *tasks > 0).collect();
        Cluster::start_with(&jobs, &["--connect-deadline", "2"])
    }
}

impl Client {
    fn train(&self, worker: u32, job: &Job, target: &str) -> Fallible<Trained> {
        let replica = job.replica(worker)?;
        let (role, checkpoint_folder) = (Role::fixed(worker == 0), job.folder.clone());
        let config = MonitoredConfig { role, checkpoint_folder, ..long_deadlines() };
        let mut all: Vec<Box<dyn Hook>> = vec![Box::new(hooks::StopAtStep { last_step: STEPS })];
        if let Some(folder) = &job.folder {
            let (saver, step) = (replica.saver.clone(), replica.training.global_step);
            all.push(Box::new(hooks::CheckpointSaver::new(saver, folder, step, Period::Steps(10))));
        }
        let (graph, training) = (replica.graph.clone(), replica.training.clone());
        let (master, saver) = (Master::Remote(target.to_owned()), Some(replica.saver.clone()));
        let session = MonitoredSession::new(master, graph, training, saver, all, config)?;
        // A killed client does not close its session.
        let mut session = ManuallyDrop::new(session);
        let mut steps = Vec::new();
        while !self.is_killed.load(Ordering::Acquire) {
            let done = session.run(&[], &[replica.training.step_done], &[replica.training.train])?;
            let Some(done) = done else {
                let values = session.session().run(&[], &replica.values, &[])?;
                ManuallyDrop::into_inner(session).finish()?;
                return Ok((steps, values));
            };
            let step = done[0].item::<i64>()?;
            steps.push(step);
            self.step.store(step, Ordering::Release);
            // The pause slows training down, so that the test can kill a task in the middle of it.
            thread::park_timeout(Duration::from_millis(5));
        }
        Ok((steps, Vec::new()))
    }

    fn until_step(&self, step: i64) -> Fallible {
        let started = Instant::now();
        while self.step.load(Ordering::Acquire) < step {
            if started.elapsed() > PATIENCE {
                return Err(format!("step {step} was not reached").into());
            }
            thread::park_timeout(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// The task that is killed and restarted; a worker is killed together with its client.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Worker(u32),
    Server(usize),
}

/// Trains a job. If there is a victim, it is killed and restarted in the middle. Returns the results of each worker;
/// those of a victim are the results of its second client.
fn train(job: &Job, victim: Option<Victim>) -> Fallible<Vec<Trained>> {
    let mut cluster = job.cluster()?;
    let targets: Vec<String> =
        (0..job.workers).map(|worker| cluster.target("worker", worker as usize)).collect();
    let clients: Vec<Client> = (0..job.workers).map(|_| Client::default()).collect();
    let restarted = Client::default();
    thread::scope(|scope| {
        let mut running: Vec<ScopedJoinHandle<'_, Result<Trained, String>>> = Vec::new();
        for (worker, client) in (0..).zip(&clients) {
            let target = &targets[worker as usize];
            running.push(scope.spawn(move || named(worker, client.train(worker, job, target))));
        }
        if let Some(Victim::Server(index)) = victim {
            clients[0].until_step(KILLED_AT)?;
            cluster.kill("ps", index)?;
            cluster.spawn("ps", index)?;
            cluster.wait_until_listening("ps", index)?;
        }
        if let Some(Victim::Worker(victim)) = victim {
            let index = victim as usize;
            clients[index].until_step(KILLED_AT)?;
            clients[index].is_killed.store(true, Ordering::Release);
            joined(running.remove(index))?;
            cluster.kill("worker", index)?;
            cluster.spawn("worker", index)?;
            cluster.wait_until_listening("worker", index)?;
            let (restarted, target) = (&restarted, &targets[index]);
            let again = scope.spawn(move || named(victim, restarted.train(victim, job, target)));
            running.insert(index, again);
        }
        running.into_iter().map(joined).collect()
    })
}

fn named(worker: u32, trained: Fallible<Trained>) -> Result<Trained, String> {
    trained.map_err(|error| format!("worker {worker}: {error}"))
}

fn joined(client: ScopedJoinHandle<'_, Result<Trained, String>>) -> Fallible<Trained> {
    Ok(client.join().map_err(|_| "a client panicked")??)
}

#[test]
fn a_killed_worker_gets_the_variables_of_the_survivors() -> Fallible {
    let job = Job { workers: 3, ..Job::default() };
    let undisturbed = train(&job, None)?;
    for (_, values) in &undisturbed {
        assert_eq!(values, &undisturbed[0].1);
    }
    // Worker 0 is the chief, and its task leads the group.
    for victim in [2, 0] {
        let all = train(&job, Some(Victim::Worker(victim)))?;
        for (worker, (steps, values)) in (0..).zip(&all) {
            assert_eq!(values, &undisturbed[0].1, "victim {victim}, worker {worker}");
            assert_eq!(steps.last(), Some(&STEPS));
            // No worker repeats a step, and the new client begins at the step of the survivors. A worker may skip a
            // step that only another worker has completed.
            assert!(steps.windows(2).all(|two| two[1] > two[0]), "victim {victim}, {worker}: {steps:?}");
            let first = if worker == victim { KILLED_AT } else { 0 };
            assert!(steps[0] > first, "victim {victim}, {worker}: {steps:?}");
        }
    }
    Ok(())
}

/// Returns the largest difference between the numbers of two lists of tensors.
fn difference(a: &[Tensor], b: &[Tensor]) -> Fallible<f32> {
    let mut most = 0.0f32;
    for (a, b) in a.iter().zip(b).filter(|(a, _)| a.dtype() == DType::Float) {
        for (a, b) in a.values::<f32>()?.iter().zip(b.values::<f32>()?) {
            most = most.max((a - b).abs());
        }
    }
    Ok(most)
}

#[test]
fn a_killed_worker_goes_on_with_tables_on_parameter_servers() -> Fallible {
    let job = Job { workers: 2, ps_tasks: 2, folder: None };
    let undisturbed = train(&job, None)?;
    assert_eq!(undisturbed[0].1, undisturbed[1].1);
    // Worker 0 is the chief, and its task leads the group.
    for victim in [1, 0] {
        let all = train(&job, Some(Victim::Worker(victim)))?;
        assert_eq!(all[0].1, all[1].1, "victim {victim}");
        for (steps, values) in &all {
            assert_eq!(steps.last(), Some(&STEPS));
            assert!(steps.windows(2).all(|two| two[1] > two[0]), "victim {victim}: {steps:?}");
            // The interrupted step is repeated, although it may have updated one of the two parts, so the result
            // differs a little.
            let difference = difference(values, &undisturbed[0].1)?;
            assert!(difference < 0.01, "{difference}: {values:?}, undisturbed {:?}", undisturbed[0].1);
        }
    }
    Ok(())
}

#[test]
fn a_killed_parameter_server_sends_all_workers_back_to_the_checkpoint() -> Fallible {
    let folder = Folder::new("hybrid")?;
    let job = Job { workers: 2, ps_tasks: 2, folder: None };
    let undisturbed = train(&job, None)?;
    let with_checkpoints = Job { folder: Some(folder.path().to_owned()), ..job.clone() };
    for (steps, values) in train(&with_checkpoints, Some(Victim::Server(1)))? {
        assert_eq!(values, undisturbed[0].1, "{steps:?}");
        assert_eq!(steps.last(), Some(&STEPS));
        assert!(steps.windows(2).any(|two| two[1] <= two[0]), "{steps:?}");
    }
    let lost = train(&job, Some(Victim::Server(1))).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(lost.contains("have lost their values: b/part_1"), "{lost}");
    Ok(())
}
