//! Workers without parameter servers recover from a worker whose task and client are killed and restarted: they go on
//! from the survivors' step, without a checkpoint, to the same bits as a job without failures.

use crate::support::Fallible;
use crate::support::cluster::Cluster;
use crate::support::replica::{PATIENCE, Replica, long_deadlines, replica_under};
use anabranch::graph::Tensor;
use anabranch::train::{
    Average, Hook, Master, MonitoredConfig, MonitoredSession, Role, Strategy, Uneven, Wire, hooks,
};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

const STEPS: i64 = 40;
/// The step after which a worker is killed.
const KILLED_AT: i64 = 15;

/// The client of a worker, on a thread of its own.
#[derive(Default)]
struct Client {
    /// The global step after the client's last step.
    step: AtomicI64,
    /// Set to end the client as if its process were killed.
    is_killed: AtomicBool,
}

/// The results of a client: the global step after each of its steps, and the variables at the end.
type Trained = (Vec<i64>, Vec<Tensor>);

fn replica(worker: u32, workers: u32) -> Fallible<Replica> {
    let (average, wire, uneven) = (Average::Mean, Wire::F32, Uneven::Fail);
    replica_under(&Strategy::AllReduce { worker, workers, average, wire, uneven }, worker)
}

impl Client {
    fn train(&self, worker: u32, workers: u32, target: &str) -> Fallible<Trained> {
        let replica = replica(worker, workers)?;
        let config = MonitoredConfig { role: Role::fixed(worker == 0), ..long_deadlines() };
        let all: Vec<Box<dyn Hook>> = vec![Box::new(hooks::StopAtStep { last_step: STEPS })];
        let (graph, training) = (replica.graph.clone(), replica.training.clone());
        let master = Master::Remote(target.to_owned());
        let session = MonitoredSession::new(master, graph, training, None, all, config)?;
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

/// Trains with `workers` workers. If there is a victim, its client and its task are killed and restarted in the middle.
/// Returns the results of each worker, those of the victim's second client in place of the first.
fn train(workers: u32, victim: Option<u32>) -> Fallible<Vec<Trained>> {
    let mut cluster = Cluster::start_with(&[("worker", workers as usize)], &["--connect-deadline", "2"])?;
    let targets: Vec<String> = (0..workers).map(|worker| cluster.target("worker", worker as usize)).collect();
    let clients: Vec<Client> = (0..workers).map(|_| Client::default()).collect();
    let restarted = Client::default();
    thread::scope(|scope| {
        let mut running: Vec<ScopedJoinHandle<'_, Result<Trained, String>>> = Vec::new();
        for (worker, client) in (0..).zip(&clients) {
            let target = &targets[worker as usize];
            running.push(scope.spawn(move || named(worker, client.train(worker, workers, target))));
        }
        if let Some(victim) = victim {
            let index = victim as usize;
            clients[index].until_step(KILLED_AT)?;
            clients[index].is_killed.store(true, Ordering::Release);
            joined(running.remove(index))?;
            cluster.kill("worker", index)?;
            cluster.spawn("worker", index)?;
            cluster.wait_until_listening("worker", index)?;
            let (restarted, target) = (&restarted, &targets[index]);
            let again = scope.spawn(move || named(victim, restarted.train(victim, workers, target)));
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
    let undisturbed = train(3, None)?;
    for (_, values) in &undisturbed {
        assert_eq!(values, &undisturbed[0].1);
    }
    // Worker 0 is the chief, and its task leads the group.
    for victim in [2, 0] {
        let all = train(3, Some(victim))?;
        for (worker, (steps, values)) in (0..).zip(&all) {
            assert_eq!(values, &undisturbed[0].1, "victim {victim}, worker {worker}");
            assert_eq!(steps.last(), Some(&STEPS));
            // Nobody goes back, and the new client begins where the survivors are. A worker may skip a step that only
            // another worker has completed.
            assert!(steps.windows(2).all(|two| two[1] > two[0]), "victim {victim}, {worker}: {steps:?}");
            let first = if worker == victim { KILLED_AT } else { 0 };
            assert!(steps[0] > first, "victim {victim}, {worker}: {steps:?}");
        }
    }
    Ok(())
}
