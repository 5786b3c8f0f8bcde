//! Replicated parameter servers (`--ps-replicas 2`): when the primary dies, the standby continues with all of its state.

use crate::support::Fallible;
use crate::support::cluster::Cluster;
use crate::support::folder::Folder;
use crate::support::relay::{LinkState, Relay};
use crate::support::replica::{replica, train_through_master};
use crate::support::rpc::Rpc;
use anabranch::client::{Session, SessionOptions};
use anabranch::graph::{Code, DType, NodeId, Output, PartialShape, Scope, Tensor};
use anabranch::proto::pb;
use anabranch::train::{Aggregation, SyncMode, latest_checkpoint};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

const LONG: Duration = Duration::from_secs(60);

/// Text that a standby logs once it has received the whole state of its primary.
const STANDBY_LOG: &str = " is a standby of ";

/// Starts `servers` parameter servers, a standby for each (task indices from `servers` on), and `workers` workers.
fn start(servers: usize, workers: usize) -> Fallible<Cluster> {
    let mut cluster = Cluster::reserve(&[("ps", 2 * servers), ("worker", workers)])?;
    start_in(&mut cluster, servers, workers)?;
    Ok(cluster)
}

/// Starts the processes of a cluster made by [`Cluster::reserve`], and waits until all standbys are ready.
fn start_in(cluster: &mut Cluster, servers: usize, workers: usize) -> Fallible {
    ["--connect-deadline", "5", "--ps-replicas", "2"].into_iter().for_each(|flag| cluster.add_flag(flag));
    for (job, count) in [("ps", 2 * servers), ("worker", workers)] {
        (0..count).try_for_each(|index| cluster.spawn(job, index))?;
    }
    (0..servers).try_for_each(|index| cluster.wait_until_listening("ps", index))?;
    (0..workers).try_for_each(|index| cluster.wait_until_listening("worker", index))?;
    (servers..2 * servers).try_for_each(|index| wait_for_standby(cluster, index, 1))
}

/// Waits until `condition` returns true; `name` describes the condition in the error.
fn until(name: &str, mut condition: impl FnMut() -> Fallible<bool>) -> Fallible {
    let deadline = Instant::now() + LONG;
    while !condition()? {
        if Instant::now() > deadline {
            return Err(format!("{name}: not within {LONG:?}").into());
        }
        thread::park_timeout(Duration::from_millis(2));
    }
    Ok(())
}

/// Waits until the log of ps task `index` says at least `times` times that the process has become a standby.
fn wait_for_standby(cluster: &Cluster, index: usize, times: usize) -> Fallible {
    let stands_by = until(&format!("ps {index} stands by"), || {
        Ok(cluster.log("ps", index)?.matches(STANDBY_LOG).count() >= times)
    });
    stands_by.map_err(|e| {
        let log = cluster.log("ps", index).unwrap_or_else(|e| e.to_string());
        format!("{e}; its log: {log}").into()
    })
}

const WORKERS: usize = 2;
const STEPS: i64 = 60;

/// Trains while `disturb` kills or restarts processes. Returns the final variables, and the number of times that
/// replicas recovered in a new session.
fn train(
    aggregation: Aggregation,
    folder: Option<&Path>,
    disturb: impl FnOnce(&mut Cluster, &dyn Fn(i64) -> Fallible) -> Fallible,
) -> Fallible<(Vec<Tensor>, u32)> {
    let replicas_to_aggregate = WORKERS as u32;
    let sync = SyncMode::Sync { replicas_to_aggregate, backup: 0, aggregation };
    let mut cluster = start(2, WORKERS)?;
    let targets: Vec<String> = (0..WORKERS).map(|w| cluster.target("worker", w)).collect();
    let observer = replica(0, sync)?;
    let open = || Session::connect(&targets[0], observer.graph.clone(), SessionOptions::default());
    let recoveries = thread::scope(|scope| -> Fallible<u32> {
        let train = |(worker, target)| {
            scope.spawn(move || {
                train_through_master(worker as u32, target, folder, sync, STEPS)
                    .map_err(|e| format!("worker {worker}: {e}"))
            })
        };
        let workers: Vec<_> = targets.iter().map(String::as_str).enumerate().map(train).collect();
        let until_step = |step: i64| {
            until(&format!("step {step}"), || {
                let Ok(session) = open() else { return Ok(false) };
                let read = session.step().fetch(observer.training.global_step).timeout(LONG).run();
                Ok(read.is_ok_and(|read| read.values[0].item::<i64>().is_ok_and(|now| now >= step)))
            })
        };
        disturb(&mut cluster, &until_step)?;
        let mut recoveries = 0;
        for worker in workers {
            recoveries += worker.join().map_err(|_| "a worker panicked")??;
        }
        Ok(recoveries)
    })?;
    Ok((open()?.run(&[], &observer.values, &[])?, recoveries))
}

/// The job trains without checkpoints, so only the standbys can restore the state.
#[test]
fn standby_takes_over_the_whole_state_of_a_dead_parameter_server() -> Fallible {
    let undisturbed = train(Aggregation::InOrder, None, |_, _| Ok(()))?;
    assert_eq!(undisturbed.1, 0);
    let disturbed = train(Aggregation::InOrder, None, |cluster, until_step| {
        until_step(10)?;
        // The death of a standby disturbs no replica.
        cluster.kill("ps", 3)?;
        cluster.spawn("ps", 3)?;
        wait_for_standby(cluster, 3, 2)?;
        until_step(20)?;
        cluster.kill("ps", 0)?;
        until_step(25)?;
        cluster.kill("ps", 1)?;
        cluster.spawn("ps", 0)?;
        wait_for_standby(cluster, 0, 1)?;
        until_step(40)?;
        // The restarted process of ps 0 is now the standby of ps 2, and takes over when ps 2 is killed.
        cluster.kill("ps", 2)
    })?;
    assert!(disturbed.1 >= WORKERS as u32, "{}", disturbed.1);
    assert_eq!(disturbed.0, undisturbed.0);
    Ok(())
}

#[test]
fn standby_takes_over_gradients_in_accumulators() -> Fallible {
    let (values, recoveries) = train(Aggregation::Accumulators, None, |cluster, until_step| {
        until_step(10)?;
        cluster.kill("ps", 0)?;
        until_step(20)?;
        cluster.kill("ps", 1)
    })?;
    assert!(recoveries >= WORKERS as u32, "{recoveries}");
    for value in values.iter().filter(|v| v.dtype() == DType::Float) {
        assert!(value.values::<f32>()?.iter().all(|v| v.is_finite()), "{value:?}");
    }
    Ok(())
}

#[test]
fn checkpoints_are_saved_with_replicated_parameter_servers() -> Fallible {
    let folder = Folder::new("of-replicas")?;
    train(Aggregation::InOrder, Some(folder.path()), |_, _| Ok(()))?;
    assert!(latest_checkpoint(folder.path())?.is_some());
    Ok(())
}

/// A session with a variable and a queue on the parameter server; one step adds 1 to both.
struct Counter {
    session: Session,
    initialize: NodeId,
    count: NodeId,
    counted: [Output; 2],
}

fn counter(cluster: &Cluster) -> Fallible<Counter> {
    counter_of(cluster, 0)
}

/// Opens a [`Counter`] through the worker with index `worker`.
fn counter_of(cluster: &Cluster, worker: usize) -> Fallible<Counter> {
    let scope = Scope::new();
    let at = scope.device("/job:ps/task:0");
    let handle = at.var_handle("count", DType::Int64, PartialShape::scalar());
    let initialize = at.assign_variable(handle, at.constant(0i64));
    let queue = at
        .op("FIFOQueueV2")
        .attr("component_types", vec![DType::Int64])
        .attr("shapes", vec![PartialShape::scalar()])
        .attr("capacity", -1i64)
        .attr("shared_name", "counts")
        .output();
    let added = at.assign_add_variable(handle, at.constant(1i64));
    let then = at.control(&[added]);
    let count = then.op("QueueEnqueueV2").input(queue).input(vec![at.constant(1i64)]).node();
    let size = at.cast(at.op("QueueSizeV2").input(queue).output(), DType::Int64);
    let counted = [at.read_variable(handle, DType::Int64), size];
    let target = cluster.target("worker", worker);
    let session = Session::connect(&target, scope.finish()?, SessionOptions::default())?;
    Ok(Counter { session, initialize, count, counted })
}

impl Counter {
    /// Returns the variable's value and the queue's size.
    fn counted(&self) -> Fallible<[i64; 2]> {
        let [variable, queue] = self.counted;
        let values = self.session.step().fetch(variable).fetch(queue).timeout(LONG).run()?.values;
        Ok([values[0].item()?, values[1].item()?])
    }
}

#[test]
fn answered_steps_survive_and_an_unanswered_step_is_applied_once_or_not_at_all() -> Fallible {
    let mut cluster = start(1, 1)?;
    let mut counter = counter(&cluster)?;
    counter.session.run(&[], &[], &[counter.initialize])?;
    let mut answered = 0;
    for (dies, comes) in [(0, 1), (1, 0), (0, 1)] {
        for _ in 0..200 {
            counter.session.run(&[], &[], &[counter.count])?;
            answered += 1;
        }
        let counting = thread::scope(|scope| {
            let counting = scope.spawn(|| {
                let mut more = 0;
                while counter.session.run(&[], &[], &[counter.count]).is_ok() {
                    more += 1;
                }
                more
            });
            cluster.kill("ps", dies).map(|()| counting.join())
        })?;
        answered += counting.map_err(|_| "the client panicked")?;
        cluster.wait_until_listening("ps", comes)?;
        counter = self::counter(&cluster)?;
        let [variable, queue] = counter.counted()?;
        assert!((answered..=answered + 1).contains(&variable), "{variable} after {answered}");
        // The standby has both changes of a step, to the variable and to the queue, or neither change.
        assert_eq!(queue, variable);
        answered = variable;
        let before = cluster.log("ps", dies)?.matches(STANDBY_LOG).count();
        cluster.spawn("ps", dies)?;
        wait_for_standby(&cluster, dies, before + 1)?;
    }
    Ok(())
}

#[test]
fn stopped_standby_blocks_steps_and_dead_standby_does_not() -> Fallible {
    let mut cluster = start(1, 1)?;
    let counter = counter(&cluster)?;
    counter.session.run(&[], &[], &[counter.initialize])?;
    cluster.signal("ps", 1, "STOP")?;
    let step = counter.session.step().target(counter.count).timeout(Duration::from_secs(2));
    let failed = step.run().err().ok_or("the step succeeded")?;
    assert_eq!(failed.code(), Code::DeadlineExceeded, "{failed}");
    assert!(failed.to_string().contains("/job:ps/replica:0/task:0"), "{failed}");
    cluster.signal("ps", 1, "CONT")?;
    counter.session.run(&[], &[], &[counter.count])?;
    assert_eq!(counter.counted()?, [2, 2]);
    cluster.kill("ps", 1)?;
    for _ in 0..20 {
        counter.session.run(&[], &[], &[counter.count])?;
    }
    assert_eq!(counter.counted()?, [22, 22]);
    // A standby that starts later receives the whole state of its primary.
    cluster.spawn("ps", 1)?;
    wait_for_standby(&cluster, 1, 2)?;
    cluster.kill("ps", 0)?;
    cluster.wait_until_listening("ps", 1)?;
    assert_eq!(self::counter(&cluster)?.counted()?, [22, 22]);
    Ok(())
}

/// The state is so large that it is sent in several messages, while steps change it. A Reset request is replicated to
/// the standby, too.
#[test]
fn standby_joins_while_steps_change_a_large_variable() -> Fallible {
    // Number of elements of the variable: 36 MB of 32-bit integers.
    const ELEMENTS: i32 = 9_000_000;
    let mut cluster = start(1, 1)?;
    let target = cluster.target("worker", 0);
    let scope = Scope::new();
    let at = scope.device("/job:ps/task:0");
    let shape = PartialShape::from([ELEMENTS as usize]);
    let large = at.var_handle("large", DType::Int32, shape);
    let zeros = at.fill(at.constant_vector(&[ELEMENTS]), at.constant(0i32));
    let initialize = at.assign_variable(large, zeros);
    let ones = at.fill(at.constant_vector(&[ELEMENTS]), at.constant(1i32));
    let add = at.assign_add_variable(large, ones);
    let value = at.read_variable(large, DType::Int32);
    let ends = [at.reduce_min(value, &[0], false), at.reduce_max(value, &[0], false)];
    let graph = scope.finish()?;
    let open = || Session::connect(&target, graph.clone(), SessionOptions::default());
    let session = open()?;
    session.run(&[], &[], &[initialize])?;
    cluster.kill("ps", 1)?;
    cluster.spawn("ps", 1)?;
    let mut added = 0;
    let has_joined =
        |cluster: &Cluster| -> Fallible<bool> { Ok(cluster.log("ps", 1)?.matches(STANDBY_LOG).count() == 2) };
    // Some steps run before the standby joins, some while it receives the state, and one afterwards.
    until("ps 1 stands by again", || {
        session.run(&[], &[], &[add])?;
        added += 1;
        has_joined(&cluster)
    })?;
    cluster.kill("ps", 0)?;
    cluster.wait_until_listening("ps", 1)?;
    let ends = open()?.run(&[], &ends, &[])?;
    assert_eq!([ends[0].item::<i32>()?, ends[1].item::<i32>()?], [added; 2]);

    cluster.spawn("ps", 0)?;
    wait_for_standby(&cluster, 0, 1)?;
    Runtime::new()?.block_on(async {
        let mut master = Rpc::connect(&cluster, "worker", 0).await?.master;
        master.reset(pb::ResetRequest::default()).await?;
        Fallible::Ok(())
    })?;
    cluster.kill("ps", 1)?;
    cluster.wait_until_listening("ps", 0)?;
    let absent = open()?.run(&[], &[value], &[]).err().ok_or("the variable still exists")?;
    assert_eq!(absent.code(), Code::FailedPrecondition, "{absent}");
    Ok(())
}

/// The standby connects to its primary through a relay. While the relay is down, the primary finds that the standby's
/// process still runs, so it waits for the standby and answers no step.
#[test]
fn standby_that_loses_its_connection_resumes() -> Fallible {
    let mut cluster = Cluster::reserve(&[("ps", 2), ("worker", 1)])?;
    let runtime = Runtime::new()?;
    let relay = Relay::start(runtime.handle(), cluster.address("ps", 0))?;
    cluster.set_route(("ps", 1), ("ps", 0), relay.address);
    start_in(&mut cluster, 1, 1)?;
    let counter = counter(&cluster)?;
    counter.session.run(&[], &[], &[counter.initialize])?;
    for cut in [LinkState::Down, LinkState::Stalled, LinkState::Down] {
        counter.session.run(&[], &[], &[counter.count])?;
        relay.set(cut);
        let step = || counter.session.step().target(counter.count).timeout(Duration::from_secs(1)).run();
        // The relay may still have passed the changes of this step to the standby before it interrupted the connection,
        // so this step may succeed. The changes of the next step cannot reach the standby, so the primary does not
        // answer that step.
        let _ = step();
        let failed = step().err().ok_or("the step succeeded")?;
        assert_eq!(failed.code(), Code::DeadlineExceeded, "{failed}");
        assert!(failed.to_string().contains("/job:ps/replica:0/task:0"), "{failed}");
        let finished = thread::scope(|scope| -> Fallible {
            let waits =
                scope.spawn(|| counter.session.run(&[], &[], &[counter.count]).map_err(|e| e.to_string()));
            relay.set(LinkState::Up);
            waits.join().map_err(|_| "the client panicked")??;
            Ok(())
        });
        finished?;
    }
    let counted = counter.counted()?;
    // The standby has resumed without receiving the whole state a second time.
    assert_eq!(cluster.log("ps", 1)?.matches(STANDBY_LOG).count(), 1);
    cluster.kill("ps", 0)?;
    // The standby takes over only when its connections are refused, and the relay would accept them.
    drop(relay);
    cluster.wait_until_listening("ps", 1)?;
    assert_eq!(self::counter(&cluster)?.counted()?, counted);
    Ok(())
}

/// A worker without a connection to the stopped primary finds the standby at once; a worker with a connection finds it
/// when the connection breaks.
#[test]
fn standby_replaces_a_stopped_primary_which_ends_when_it_continues() -> Fallible {
    let mut cluster = Cluster::reserve(&[("ps", 2), ("worker", 2)])?;
    start_in(&mut cluster, 1, 1)?;
    let counter = counter(&cluster)?;
    counter.session.run(&[], &[], &[counter.initialize])?;
    counter.session.run(&[], &[], &[counter.count])?;
    cluster.signal("ps", 0, "STOP")?;
    until("ps 1 takes over", || Ok(cluster.log("ps", 1)?.contains(" listens on ")))?;
    cluster.spawn("worker", 1)?;
    cluster.wait_until_listening("worker", 1)?;
    let (other, counted) = until_open(&cluster, 1)?;
    assert_eq!(counted, [1, 1]);
    other.session.run(&[], &[], &[other.count])?;
    assert_eq!(other.counted()?, [2, 2]);
    cluster.signal("ps", 0, "CONT")?;
    assert!(!cluster.wait("ps", 0)?.success());
    assert!(cluster.log("ps", 0)?.contains("restart this process as its standby"));
    // The old primary answers no requests that it received while it was stopped.
    assert_eq!(other.counted()?, [2, 2]);
    cluster.spawn("ps", 0)?;
    wait_for_standby(&cluster, 0, 1)
}

/// The primary restarts before the standby has noticed its death.
#[test]
fn restarted_primary_without_state_yields_to_its_standby() -> Fallible {
    let mut cluster = start(1, 1)?;
    let counter = counter(&cluster)?;
    counter.session.run(&[], &[], &[counter.initialize])?;
    counter.session.run(&[], &[], &[counter.count])?;
    cluster.signal("ps", 1, "STOP")?;
    cluster.kill("ps", 0)?;
    cluster.spawn("ps", 0)?;
    cluster.wait_until_listening("ps", 0)?;
    let (_, counted) = thread::scope(|scope| -> Fallible<(Counter, [i64; 2])> {
        let opens = scope.spawn(|| until_open(&cluster, 0));
        until("ps 1 is stopped while ps 0 serves nothing", || {
            Ok(cluster.log("ps", 0)?.matches(" is served here").count() == 2)
        })?;
        cluster.signal("ps", 1, "CONT")?;
        Ok(opens.join().map_err(|_| "the client panicked")??)
    })?;
    assert_eq!(counted, [1, 1]);
    Ok(())
}

/// Repeatedly opens a [`Counter`] and reads it until both succeed; returns the counter and its values.
fn until_open(cluster: &Cluster, worker: usize) -> Result<(Counter, [i64; 2]), String> {
    let deadline = Instant::now() + LONG;
    loop {
        match counter_of(cluster, worker)
            .and_then(|counter| counter.counted().map(|counted| (counter, counted)))
        {
            Ok(opened) => return Ok(opened),
            Err(error) if Instant::now() > deadline => return Err(error.to_string()),
            Err(_) => {}
        }
    }
}

#[test]
fn state_that_cannot_be_replicated_is_refused_with_its_name() -> Fallible {
    let cluster = start(1, 1)?;
    let scope = Scope::new();
    let at = scope.device("/job:ps/task:0");
    let table = at.op("HashTableV2").attr("key_dtype", DType::Int64).attr("value_dtype", DType::Int64);
    let table = table.attr("shared_name", "words").output();
    let session = Session::connect(&cluster.target("worker", 0), scope.finish()?, SessionOptions::default())?;
    let failed = session.run(&[], &[], &[table.node]).err().ok_or("the table was created")?;
    assert_eq!(failed.code(), Code::Unimplemented, "{failed}");
    assert!(failed.to_string().contains("'words'"), "{failed}");
    Ok(())
}
