//! Workers without parameter servers whose number varies: one of four is killed with its task, the others continue
//! training without it, and it joins them again after its restart. Each step has the mean gradient of the present
//! workers.

mod digits;

use crate::support::Fallible;
use crate::support::cluster::Cluster;
use crate::support::replica::{PATIENCE, Replica, long_deadlines, replica_under};
use anabranch::graph::Tensor;
use anabranch::train::{
    Average, Error, Hook, Master, MonitoredConfig, MonitoredSession, Role, Strategy, Tables, Uneven, Wire,
    hooks,
};
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const WORKERS: u32 = 4;
const STEPS: i64 = 300;
/// A pause after each step, so that the test can kill a task in the middle of training.
const PAUSE: Duration = Duration::from_millis(20);
/// The longest time from the death of a worker to the first step without it.
const RECOVERY_LIMIT: Duration = Duration::from_secs(10);

/// A function that builds the replica of a worker, with the hooks of its model.
type Build = fn(&Strategy, u32) -> Fallible<(Replica, Vec<Box<dyn Hook>>)>;

fn linear_under(strategy: &Strategy, worker: u32) -> Fallible<(Replica, Vec<Box<dyn Hook>>)> {
    Ok((replica_under(strategy, worker)?, Vec::new()))
}

/// A step that a client has run: the global step after it, its end, and the workers that ran it.
#[derive(Clone, Debug)]
struct Done {
    step: i64,
    at: Instant,
    workers: Vec<usize>,
}

/// The client of a worker, which runs on a separate thread.
#[derive(Default)]
struct Client {
    done: Mutex<Vec<Done>>,
    /// Set to end the client as if its process were killed.
    is_killed: AtomicBool,
}

impl Client {
    /// Trains to the last step. Returns the variables, unless the client is killed.
    fn train(
        &self,
        worker: u32,
        (build, least): (Build, u32),
        config: MonitoredConfig,
        target: &str,
    ) -> Fallible<Vec<Tensor>> {
        let (average, wire, uneven) = (Average::Mean, Wire::F32, Uneven::Fail);
        let strategy = Strategy::AllReduce {
            worker,
            workers: WORKERS,
            least,
            average,
            wire,
            uneven,
            tables: Tables::Replicated,
        };
        let (replica, mut all) = build(&strategy, worker)?;
        all.push(Box::new(hooks::StopAtStep { last_step: STEPS }));
        let (graph, training) = (replica.graph.clone(), replica.training.clone());
        let master = Master::Remote(target.to_owned());
        let session = MonitoredSession::new(master, graph, training, None, all, config)?;
        // A killed client does not close its session.
        let mut session = ManuallyDrop::new(session);
        while !self.is_killed.load(Ordering::Acquire) {
            let done = session.run(&[], &[replica.training.step_done], &[replica.training.train])?;
            let Some(done) = done else {
                let values = session.session().run(&[], &replica.values, &[])?;
                ManuallyDrop::into_inner(session).finish()?;
                return Ok(values);
            };
            let (step, workers) = (done[0].item::<i64>()?, session.membership().map(|found| found.workers));
            let done = Done { step, at: Instant::now(), workers: workers.unwrap_or_default() };
            self.done.lock().map_err(|_| "poisoned")?.push(done);
            thread::park_timeout(PAUSE);
        }
        Ok(Vec::new())
    }

    fn done(&self) -> Vec<Done> {
        self.done.lock().map(|done| done.clone()).unwrap_or_default()
    }

    /// Waits until the client has run a step for which `suits` returns true. Returns the step.
    fn until(&self, suits: impl Fn(&Done) -> bool) -> Fallible<Done> {
        let started = Instant::now();
        loop {
            if let Some(done) = self.done().into_iter().find(|done| suits(done)) {
                return Ok(done);
            }
            if started.elapsed() > PATIENCE {
                return Err(format!("a step was not reached: {:?}", self.done().last()).into());
            }
            thread::park_timeout(Duration::from_millis(1));
        }
    }
}

fn config(worker: u32) -> MonitoredConfig {
    MonitoredConfig { role: Role::fixed(worker == 0), ..long_deadlines() }
}

/// Computes the expected variables `w` and `b` after steps with the given workers: momentum is applied to the mean
/// gradient of the workers of each step.
fn expected(steps: &BTreeMap<i64, Vec<usize>>) -> [[f32; 3]; 2] {
    let (mut values, mut moments) = ([[0.5f32; 3], [0.0; 3]], [[0.0f32; 3]; 2]);
    for (step, workers) in steps {
        let row = ((step - 1) % 7) as usize;
        for column in 0..3 {
            let mut sums = [0.0f32; 2];
            for worker in workers {
                let x = (((row * 3 + column) * 5 + worker) % 11) as f32 / 7.0;
                let error = x * values[0][column] + values[1][column] - 1.0;
                sums[0] += 2.0 * error * x;
                sums[1] += 2.0 * error;
            }
            for i in 0..2 {
                moments[i][column] = 0.9 * moments[i][column] + sums[i] / workers.len() as f32;
                values[i][column] -= 0.01 * moments[i][column];
            }
        }
    }
    values
}

/// Returns the workers of each step; fails if the clients do not agree on them.
fn workers_by_step(clients: &[&Client]) -> Fallible<BTreeMap<i64, Vec<usize>>> {
    let mut steps = BTreeMap::new();
    for done in clients.iter().flat_map(|client| client.done()) {
        let known = steps.entry(done.step).or_insert_with(|| done.workers.clone());
        if *known != done.workers {
            return Err(format!("step {} was run by {known:?} and by {:?}", done.step, done.workers).into());
        }
    }
    Ok(steps)
}

/// The results of a job of which one worker was killed with its task and restarted.
struct Disturbed {
    /// The variables of each worker at the end.
    values: Vec<Vec<Tensor>>,
    /// The clients with which the job began.
    clients: Vec<Client>,
    /// The second client of the victim.
    restarted: Client,
    /// The time at which the victim was killed, and the time at which it was started again.
    killed: Instant,
    spawned: Instant,
}

/// Trains with four workers, of which `least` are enough. One worker is killed, and is started again when `while_dead`
/// has returned.
fn train_disturbed(
    victim: u32,
    (build, least): (Build, u32),
    while_dead: impl FnOnce(&[Client]) -> Fallible,
) -> Fallible<Disturbed> {
    let mut cluster = Cluster::start_with(&[("worker", WORKERS as usize)], &["--connect-deadline", "2"])?;
    let targets: Vec<String> = (0..WORKERS).map(|worker| cluster.target("worker", worker as usize)).collect();
    let clients: Vec<Client> = (0..WORKERS).map(|_| Client::default()).collect();
    let restarted = Client::default();
    let train = |client: &Client, worker: u32| {
        let trained = client.train(worker, (build, least), config(worker), &targets[worker as usize]);
        trained.map_err(|error| format!("worker {worker}: {error}"))
    };
    let (killed, spawned, values) = thread::scope(|scope| -> Fallible<_> {
        let start = |worker: u32| {
            let (client, train) = (&clients[worker as usize], &train);
            scope.spawn(move || train(client, worker))
        };
        let mut running: Vec<_> = (0..WORKERS).map(start).collect();
        let index = victim as usize;
        clients[index].until(|done| done.workers.len() == 4 && done.step >= 15)?;
        clients[index].is_killed.store(true, Ordering::Release);
        running.remove(index).join().map_err(|_| "a client panicked")??;
        let killed = Instant::now();
        cluster.kill("worker", index)?;
        while_dead(&clients)?;
        let spawned = Instant::now();
        cluster.spawn("worker", index)?;
        cluster.wait_until_listening("worker", index)?;
        let (restarted, train) = (&restarted, &train);
        running.push(scope.spawn(move || train(restarted, victim)));
        let join = |client: thread::ScopedJoinHandle<'_, Result<Vec<Tensor>, String>>| {
            client.join().map_err(|_| "a client panicked".to_owned())?
        };
        let values: Result<Vec<Vec<Tensor>>, String> = running.into_iter().map(join).collect();
        Ok((killed, spawned, values?))
    })?;
    for other in &values {
        assert_eq!(other, &values[0]);
    }
    Ok(Disturbed { values, clients, restarted, killed, spawned })
}

#[test]
fn the_others_train_on_without_a_killed_worker_until_it_is_back() -> Fallible {
    let job = train_disturbed(3, (linear_under, 2), |clients| {
        let without = clients[0].until(|done| done.workers == [0, 1, 2])?;
        clients[0].until(|done| done.workers.len() == 3 && done.step > without.step + 20)?;
        Ok(())
    })?;
    let without = job.clients[0].until(|done| done.workers == [0, 1, 2])?;
    let recovery = without.at - job.killed;
    eprintln!("the first step without the killed worker ended {recovery:.2?} after its death");
    assert!(recovery < RECOVERY_LIMIT, "{recovery:?}");
    let with = job.restarted.until(|done| done.workers.len() == 4)?;
    eprintln!("the first step with the restarted worker ended {:.2?} after its start", with.at - job.spawned);
    assert!(with.step > without.step + 20, "{with:?}");

    let steps = workers_by_step(&[&job.clients[0], &job.clients[1], &job.clients[2], &job.restarted])?;
    assert_eq!(steps.keys().copied().collect::<Vec<_>>(), (1..=STEPS).collect::<Vec<_>>());
    let replica = replica_under(&Strategy::Local, 0)?;
    for (name, expected) in ["w", "b"].iter().zip(expected(&steps)) {
        let i = replica.names.iter().position(|other| other == name).ok_or("no variable")?;
        for (value, expected) in job.values[0][i].values::<f32>()?.iter().zip(expected) {
            assert!((value - expected).abs() < 1e-4, "{name}: {value}, not {expected}");
        }
    }
    Ok(())
}

#[test]
fn the_others_wait_for_the_task_that_leads_and_go_on_with_it() -> Fallible {
    let job = train_disturbed(0, (linear_under, 1), |clients| {
        let before = clients[1].until(|done| done.step >= 15)?;
        thread::park_timeout(Duration::from_secs(3));
        let last = clients[1].done().pop().ok_or("no step")?;
        assert!(last.step <= before.step + 20 && last.at.elapsed() > Duration::from_secs(2), "{last:?}");
        Ok(())
    })?;
    for client in job.clients[1..].iter().chain([&job.restarted]) {
        let last = client.done().pop().ok_or("no step")?;
        assert_eq!((last.step, last.workers), (STEPS, vec![0, 1, 2, 3]));
    }
    // The survivors continue from their own step.
    let steps: Vec<i64> = job.clients[1].done().iter().map(|done| done.step).collect();
    assert!(steps.windows(2).all(|two| two[1] > two[0]), "{steps:?}");
    Ok(())
}

#[test]
fn too_few_survivors_end_with_an_error_that_names_the_missing() -> Fallible {
    let mut cluster = Cluster::start_with(&[("worker", WORKERS as usize)], &["--connect-deadline", "2"])?;
    let targets: Vec<String> = (0..WORKERS).map(|worker| cluster.target("worker", worker as usize)).collect();
    let clients = [Client::default(), Client::default()];
    type Trained = Result<Vec<Tensor>, Option<Error>>;
    let results: Vec<Trained> = thread::scope(|scope| {
        let start = |worker: u32| {
            let (client, targets) = (&clients[worker as usize], &targets);
            scope.spawn(move || {
                let config = MonitoredConfig { ready_deadline: Duration::from_secs(6), ..config(worker) };
                let trained = client.train(worker, (linear_under, 2), config, &targets[worker as usize]);
                trained.map_err(|error| error.downcast::<Error>().ok().map(|error| *error))
            })
        };
        let running: Vec<_> = (0..2).map(start).collect();
        clients[1].until(|done| done.step >= 5)?;
        clients[1].is_killed.store(true, Ordering::Release);
        cluster.kill("worker", 1)?;
        let join = |client: thread::ScopedJoinHandle<'_, Trained>| {
            client.join().map_err(|_| "a client panicked".into())
        };
        running.into_iter().map(join).collect::<Fallible<Vec<_>>>()
    })?;
    let Some(Err(Some(error))) = results.into_iter().next() else {
        return Err("a worker has trained alone".into());
    };
    assert!(matches!(&error, Error::WorkersMissing { worker: 0, workers: 4, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("have 1, need 2 workers: 0 have come, 1, 2, 3 are missing"), "{text}");
    Ok(())
}
