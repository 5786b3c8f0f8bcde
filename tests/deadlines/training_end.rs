//! Tests of the end of training without parameter servers: a worker that has ended waits for workers in their last
//! step, but not for workers that continue training or are lost.

use crate::support::Fallible;
use crate::support::cluster::Cluster;
use crate::support::replica::{Replica, long_deadlines, replica_under};
use anabranch::graph::{DType, Scope, Tensor};
use anabranch::train::{
    Average, Dataset, Hook, HookContext, Initializer, Master, MonitoredConfig, MonitoredSession, Optimizer,
    Result as TrainResult, Retention, Role, RunValues, Saver, Strategy, Tables, Uneven, Variables, Wire,
    hooks,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The last step of the jobs.
const LAST: i64 = 20;
/// The time by which a worker ends its last step later than the others.
const LATE: Duration = Duration::from_millis(1500);
/// The longest time from the end of a worker to the first step of the others without it, or to the end of its wait
/// while the others continue training. In contrast, the wait for a worker in its last step is limited by `stop_grace`,
/// a minute.
const SOON: Duration = Duration::from_secs(15);

fn strategy(worker: u32, workers: u32, least: u32, uneven: Uneven) -> Strategy {
    let (average, wire) = (Average::Mean, Wire::F32);
    Strategy::AllReduce { worker, workers, least, average, wire, uneven, tables: Tables::Replicated }
}

/// A hook that delays a worker: after the step `LAST` it waits until `goes_on` is true.
struct Delay {
    is_reached: Arc<AtomicBool>,
    goes_on: Arc<AtomicBool>,
}

impl Hook for Delay {
    fn after_run(&mut self, _: &HookContext<'_>, run: &RunValues<'_>) -> TrainResult<()> {
        if run.global_step == Some(LAST) {
            self.is_reached.store(true, Ordering::Release);
            while !self.goes_on.load(Ordering::Acquire) {
                thread::park_timeout(Duration::from_millis(1));
            }
        }
        Ok(())
    }
}

/// The client of a worker.
#[derive(Default)]
struct Client {
    /// The global step after its last step.
    step: AtomicI64,
    /// True once the client has reached its last step. `goes_on` is true once it may continue after that step.
    is_reached: Arc<AtomicBool>,
    goes_on: Arc<AtomicBool>,
}

/// The end of a client's training.
#[derive(Debug)]
struct Ended {
    steps: Vec<i64>,
    /// The time of the end of its last step. `closed` is the time of the end of its session.
    trained: Instant,
    closed: Instant,
    recoveries: u32,
}

impl Client {
    /// Trains until a hook, the input, or the step `until` ends training, and ends the session.
    fn train(
        &self,
        replica: Replica,
        (worker, until): (u32, i64),
        mut all: Vec<Box<dyn Hook>>,
        target: &str,
    ) -> Fallible<Ended> {
        let config = MonitoredConfig { role: Role::fixed(worker == 0), ..long_deadlines() };
        all.push(Box::new(Delay { is_reached: self.is_reached.clone(), goes_on: self.goes_on.clone() }));
        let (master, training) = (Master::Remote(target.to_owned()), replica.training.clone());
        let mut session = MonitoredSession::new(master, replica.graph, training, None, all, config)?;
        let (mut steps, mut trained) = (Vec::new(), Instant::now());
        while !session.should_stop() {
            let done = session.run(&[], &[replica.training.step_done], &[replica.training.train])?;
            let Some(done) = done else { break };
            let step = done[0].item::<i64>()?;
            (trained, _) = (Instant::now(), steps.push(step));
            self.step.store(step, Ordering::Release);
            if step == until {
                session.request_stop();
            }
        }
        let recoveries = session.recoveries();
        session.finish()?;
        Ok(Ended { steps, trained, closed: Instant::now(), recoveries })
    }

    fn until_reached(&self) -> Fallible {
        let started = Instant::now();
        while !self.is_reached.load(Ordering::Acquire) {
            if started.elapsed() > SOON {
                return Err(format!("step {LAST} was not reached").into());
            }
            thread::park_timeout(Duration::from_millis(1));
        }
        Ok(())
    }

    fn go_on(&self) {
        self.goes_on.store(true, Ordering::Release);
    }
}

fn cluster(workers: usize) -> Fallible<(Cluster, Vec<String>)> {
    let cluster = Cluster::start_with(&[("worker", workers)], &["--connect-deadline", "2"])?;
    let targets = (0..workers).map(|worker| cluster.target("worker", worker)).collect();
    Ok((cluster, targets))
}

type Running<'scope> = thread::ScopedJoinHandle<'scope, Result<Ended, String>>;

fn ended(client: Running<'_>) -> Fallible<Ended> {
    Ok(client.join().map_err(|_| "a client panicked")??)
}

/// Returns the replica of a worker whose input has `batches` batches, and the hook of the input.
fn replica_with_input(strategy: &Strategy, batches: usize) -> Fallible<(Replica, Box<dyn Hook>)> {
    let root = Scope::new();
    let (scope, for_variables) = strategy.scopes(&root);
    let variables = Variables::new(&for_variables);
    let numbers: Vec<f32> = (0..batches).map(|i| i as f32 / batches as f32).collect();
    let data = Dataset::from_tensors(&scope, &[Tensor::vector(&numbers)?]);
    let input = data.batch(1, true).input("numbers");
    let optimizer = Optimizer::gradient_descent(0.1);
    let training =
        strategy.minimize(&scope, &variables, &optimizer, &input.next, |scope, variables, batch| {
            let w = variables.get("w", DType::Float, &[], &Initializer::Zeros);
            scope.mean(scope.square(scope.sub(batch[0], w.value)), &[0], false)
        })?;
    let hook = input.hook();
    let all = variables.all();
    let saver = Arc::new(Saver::new(&root, &all, Retention::default()));
    let values = all.iter().map(|v| v.value).collect();
    let names = all.into_iter().map(|v| v.name).collect();
    Ok((Replica { graph: root.finish()?, training, saver, values, names }, hook))
}

#[test]
fn a_worker_whose_input_has_ended_waits_for_one_in_its_last_step() -> Fallible {
    for uneven in [Uneven::Fail, Uneven::Join] {
        let (_cluster, targets) = cluster(2)?;
        let clients = [Client::default(), Client::default()];
        clients[0].go_on();
        let [first, second] = thread::scope(|scope| -> Fallible<_> {
            let start = |worker: u32| {
                let (client, target) = (&clients[worker as usize], &targets[worker as usize]);
                scope.spawn(move || -> Result<Ended, String> {
                    let strategy = strategy(worker, 2, 2, uneven);
                    let (replica, hook) =
                        replica_with_input(&strategy, LAST as usize).map_err(|e| e.to_string())?;
                    let trained = client.train(replica, (worker, i64::MAX), vec![hook], target);
                    trained.map_err(|error| format!("worker {worker}: {error}"))
                })
            };
            let running = [0, 1].map(start);
            clients[1].until_reached()?;
            thread::park_timeout(LATE);
            clients[1].go_on();
            let [first, second] = running.map(ended);
            Ok([first?, second?])
        })?;
        for ended in [&first, &second] {
            assert_eq!((ended.recoveries, ended.steps.last()), (0, Some(&LAST)), "{uneven:?}: {ended:?}");
        }
        // The session of the first worker is open until the second one has ended.
        assert!(first.closed - first.trained >= LATE, "{uneven:?}: {first:?}");
        assert!(first.closed - first.trained < SOON, "{uneven:?}: {first:?}");
    }
    Ok(())
}

/// Trains with two workers of a job that can train with one. Each worker requests the end of training after its entry
/// of `lasts`.
fn train_until(lasts: [i64; 2], late: Duration) -> Fallible<[Ended; 2]> {
    let (_cluster, targets) = cluster(2)?;
    let clients = [Client::default(), Client::default()];
    clients[0].go_on();
    thread::scope(|scope| {
        let start = |worker: u32| {
            let (client, target) = (&clients[worker as usize], &targets[worker as usize]);
            scope.spawn(move || -> Result<Ended, String> {
                let strategy = strategy(worker, 2, 1, Uneven::Fail);
                let replica = replica_under(&strategy, worker).map_err(|e| e.to_string())?;
                let trained = client.train(replica, (worker, lasts[worker as usize]), Vec::new(), target);
                trained.map_err(|error| format!("worker {worker}: {error}"))
            })
        };
        let running = [0, 1].map(start);
        clients[1].until_reached()?;
        thread::park_timeout(late);
        clients[1].go_on();
        let [first, second] = running.map(ended);
        Ok([first?, second?])
    })
}

#[test]
fn workers_that_end_by_request_after_the_same_step_wait_for_each_other() -> Fallible {
    let [first, second] = train_until([LAST, LAST], LATE)?;
    for ended in [&first, &second] {
        let expected: Vec<i64> = (1..=LAST).collect();
        assert_eq!((ended.recoveries, &ended.steps), (0, &expected), "{ended:?}");
    }
    assert!(first.closed - first.trained >= LATE, "{first:?}");
    assert!(first.closed - first.trained < SOON, "{first:?}");
    Ok(())
}

#[test]
fn a_worker_that_ends_by_request_blocks_no_worker_that_trains_on() -> Fallible {
    let [first, second] = train_until([LAST, LAST + 10], Duration::ZERO)?;
    assert_eq!((first.recoveries, first.steps.last()), (0, Some(&LAST)), "{first:?}");
    assert!(first.closed - first.trained < SOON, "{first:?}");
    assert_eq!(second.steps, (1..=LAST + 10).collect::<Vec<_>>(), "{second:?}");
    assert!(second.recoveries > 0 && second.trained - first.trained < SOON, "{first:?}, {second:?}");
    Ok(())
}

#[test]
fn workers_that_have_ended_stay_no_longer_than_needed_when_the_leader_is_lost() -> Fallible {
    let (mut cluster, targets) = cluster(3)?;
    let clients = [Client::default(), Client::default(), Client::default()];
    clients[0].go_on();
    clients[1].go_on();
    let killed = thread::scope(|scope| -> Fallible<_> {
        let start = |worker: u32| {
            let (client, target) = (&clients[worker as usize], &targets[worker as usize]);
            scope.spawn(move || -> Result<Ended, String> {
                let strategy = strategy(worker, 3, 3, Uneven::Fail);
                let replica = replica_under(&strategy, worker).map_err(|e| e.to_string())?;
                let stop: Box<dyn Hook> = Box::new(hooks::StopAtStep { last_step: LAST });
                let trained = client.train(replica, (worker, i64::MAX), vec![stop], target);
                trained.map_err(|error| format!("worker {worker}: {error}"))
            })
        };
        let running = [0, 1, 2].map(start);
        clients[2].until_reached()?;
        thread::park_timeout(LATE);
        let still_wait = running[..2].iter().all(|client| !client.is_finished());
        cluster.kill("worker", 0)?;
        let killed = Instant::now();
        clients[2].go_on();
        let all = running.map(ended).into_iter().collect::<Fallible<Vec<Ended>>>()?;
        assert!(still_wait, "{all:?}");
        for ended in &all {
            assert_eq!((ended.recoveries, ended.steps.last()), (0, Some(&LAST)), "{ended:?}");
        }
        Ok(killed)
    })?;
    assert!(killed.elapsed() < SOON, "{:?}", killed.elapsed());
    Ok(())
}
