//! Parameter servers that two processes hold (`--ps-replicas 2`): what one has died with, the other has.

mod support;

use anabranch::client::{Session, SessionOptions};
use anabranch::graph::{Code, DType, NodeId, Output, PartialShape, Scope, Tensor};
use anabranch::proto::pb;
use anabranch::train::{Aggregation, SyncMode, latest_checkpoint};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use support::Fallible;
use support::cluster::Cluster;
use support::folder::Folder;
use support::relay::{Link, Relay};
use support::replica::{replica, work};
use support::rpc::Rpc;
use tokio::runtime::Runtime;

const LONG: Duration = Duration::from_secs(60);

/// What a standby logs once it has been told everything.
const STANDS_BY: &str = " is a standby of ";

/// So many parameter servers with a standby each, numbered after all of them, and so many workers.
fn start(servers: usize, workers: usize) -> Fallible<Cluster> {
    let mut cluster = Cluster::reserve(&[("ps", 2 * servers), ("worker", workers)])?;
    start_in(&mut cluster, servers, workers)?;
    Ok(cluster)
}

fn start_in(cluster: &mut Cluster, servers: usize, workers: usize) -> Fallible {
    ["--connect-deadline", "5", "--ps-replicas", "2"].into_iter().for_each(|flag| cluster.flag(flag));
    for (job, count) in [("ps", 2 * servers), ("worker", workers)] {
        (0..count).try_for_each(|index| cluster.spawn(job, index))?;
    }
    (0..servers).try_for_each(|index| cluster.wait_until_listening("ps", index))?;
    (0..workers).try_for_each(|index| cluster.wait_until_listening("worker", index))?;
    (servers..2 * servers).try_for_each(|index| until_it_stands_by(cluster, index, 1))
}

fn until(what: &str, mut is_so: impl FnMut() -> Fallible<bool>) -> Fallible {
    let deadline = Instant::now() + LONG;
    while !is_so()? {
        if Instant::now() > deadline {
            return Err(format!("{what}: not within {LONG:?}").into());
        }
        thread::park_timeout(Duration::from_millis(2));
    }
    Ok(())
}

/// Waits until the processes of this place have become standbys so many times.
fn until_it_stands_by(cluster: &Cluster, index: usize, times: usize) -> Fallible {
    let stands_by = until(&format!("ps {index} stands by"), || {
        Ok(cluster.log("ps", index)?.matches(STANDS_BY).count() >= times)
    });
    stands_by.map_err(|e| {
        let said = cluster.log("ps", index).unwrap_or_else(|e| e.to_string());
        format!("{e}; it said: {said}").into()
    })
}

const WORKERS: usize = 2;
const STEPS: i64 = 60;

/// Trains while something happens to the processes; the variables at the end, and how often replicas went on in a new
/// session.
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
                work(worker as u32, target, folder, sync, STEPS).map_err(|e| format!("worker {worker}: {e}"))
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

/// There is no checkpoint to go back to.
#[test]
fn a_parameter_server_that_dies_is_taken_over_with_all_that_it_had() -> Fallible {
    let undisturbed = train(Aggregation::InOrder, None, |_, _| Ok(()))?;
    assert_eq!(undisturbed.1, 0);
    let disturbed = train(Aggregation::InOrder, None, |cluster, until_step| {
        until_step(10)?;
        // Nobody notices that a standby dies.
        cluster.kill("ps", 3)?;
        cluster.spawn("ps", 3)?;
        until_it_stands_by(cluster, 3, 2)?;
        until_step(20)?;
        cluster.kill("ps", 0)?;
        until_step(25)?;
        cluster.kill("ps", 1)?;
        cluster.spawn("ps", 0)?;
        until_it_stands_by(cluster, 0, 1)?;
        until_step(40)?;
        // What it was taken over from takes over in turn.
        cluster.kill("ps", 2)
    })?;
    assert!(disturbed.1 >= WORKERS as u32, "{}", disturbed.1);
    assert_eq!(disturbed.0, undisturbed.0);
    Ok(())
}

#[test]
fn gradients_in_accumulators_are_taken_over_too() -> Fallible {
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
fn checkpoints_are_saved_as_ever() -> Fallible {
    let folder = Folder::new("of-replicas")?;
    train(Aggregation::InOrder, Some(folder.path()), |_, _| Ok(()))?;
    assert!(latest_checkpoint(folder.path())?.is_some());
    Ok(())
}

/// A client's own graph: a variable and a queue on the parameter server.
struct Counter {
    session: Session,
    initialize: NodeId,
    count: NodeId,
    counted: [Output; 2],
}

fn counter(cluster: &Cluster) -> Fallible<Counter> {
    counter_of(cluster, 0)
}

/// Of a session of this worker.
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
    fn counted(&self) -> Fallible<[i64; 2]> {
        let [variable, queue] = self.counted;
        let values = self.session.step().fetch(variable).fetch(queue).timeout(LONG).run()?.values;
        Ok([values[0].item()?, values[1].item()?])
    }
}

#[test]
fn what_was_answered_is_there_and_what_was_not_is_done_once_or_never() -> Fallible {
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
        answered += counting.map_err(|_| "it panicked")?;
        cluster.wait_until_listening("ps", comes)?;
        counter = self::counter(&cluster)?;
        let [variable, queue] = counter.counted()?;
        assert!((answered..=answered + 1).contains(&variable), "{variable} after {answered}");
        // What the step did was done as one.
        assert_eq!(queue, variable);
        answered = variable;
        let before = cluster.log("ps", dies)?.matches(STANDS_BY).count();
        cluster.spawn("ps", dies)?;
        until_it_stands_by(&cluster, dies, before + 1)?;
    }
    Ok(())
}

#[test]
fn a_standby_that_says_nothing_holds_steps_up_by_name_and_one_that_has_ended_does_not() -> Fallible {
    let mut cluster = start(1, 1)?;
    let counter = counter(&cluster)?;
    counter.session.run(&[], &[], &[counter.initialize])?;
    cluster.signal("ps", 1, "STOP")?;
    let step = counter.session.step().target(counter.count).timeout(Duration::from_secs(2));
    let failed = step.run().err().ok_or("it was answered")?;
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
    // Whoever comes now is told everything.
    cluster.spawn("ps", 1)?;
    until_it_stands_by(&cluster, 1, 2)?;
    cluster.kill("ps", 0)?;
    cluster.wait_until_listening("ps", 1)?;
    assert_eq!(self::counter(&cluster)?.counted()?, [22, 22]);
    Ok(())
}

/// What is told goes in several messages, while steps change it; a Reset is told, too.
#[test]
fn a_standby_comes_while_steps_change_much() -> Fallible {
    // 36 MB.
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
    let comes =
        |cluster: &Cluster| -> Fallible<bool> { Ok(cluster.log("ps", 1)?.matches(STANDS_BY).count() == 2) };
    // Some of them before it has come, some while it is told, and one after.
    until("ps 1 stands by again", || {
        session.run(&[], &[], &[add])?;
        added += 1;
        comes(&cluster)
    })?;
    cluster.kill("ps", 0)?;
    cluster.wait_until_listening("ps", 1)?;
    let ends = open()?.run(&[], &ends, &[])?;
    assert_eq!([ends[0].item::<i32>()?, ends[1].item::<i32>()?], [added; 2]);

    cluster.spawn("ps", 0)?;
    until_it_stands_by(&cluster, 0, 1)?;
    Runtime::new()?.block_on(async {
        let mut master = Rpc::connect(&cluster, "worker", 0).await?.master;
        master.reset(pb::ResetRequest::default()).await?;
        Fallible::Ok(())
    })?;
    cluster.kill("ps", 1)?;
    cluster.wait_until_listening("ps", 0)?;
    let absent = open()?.run(&[], &[value], &[]).err().ok_or("it is there still")?;
    assert_eq!(absent.code(), Code::FailedPrecondition, "{absent}");
    Ok(())
}

/// The link between the two is a relay's, and the standby's process is seen to live meanwhile.
#[test]
fn a_standby_that_loses_its_link_goes_on_where_it_was() -> Fallible {
    let mut cluster = Cluster::reserve(&[("ps", 2), ("worker", 1)])?;
    let runtime = Runtime::new()?;
    let relay = Relay::start(runtime.handle(), cluster.address("ps", 0))?;
    cluster.reach(("ps", 1), ("ps", 0), relay.address);
    start_in(&mut cluster, 1, 1)?;
    let counter = counter(&cluster)?;
    counter.session.run(&[], &[], &[counter.initialize])?;
    for cut in [Link::Down, Link::Held, Link::Down] {
        counter.session.run(&[], &[], &[counter.count])?;
        relay.set(cut);
        let step = || counter.session.step().target(counter.count).timeout(Duration::from_secs(1)).run();
        // What it changes may be on its way already; nothing that follows is answered.
        let _ = step();
        let failed = step().err().ok_or("it was answered")?;
        assert_eq!(failed.code(), Code::DeadlineExceeded, "{failed}");
        assert!(failed.to_string().contains("/job:ps/replica:0/task:0"), "{failed}");
        let finished = thread::scope(|scope| -> Fallible {
            let waits =
                scope.spawn(|| counter.session.run(&[], &[], &[counter.count]).map_err(|e| e.to_string()));
            relay.set(Link::Up);
            waits.join().map_err(|_| "it panicked")??;
            Ok(())
        });
        finished?;
    }
    let counted = counter.counted()?;
    // Nobody has told it everything a second time, and it has all that there is.
    assert_eq!(cluster.log("ps", 1)?.matches(STANDS_BY).count(), 1);
    cluster.kill("ps", 0)?;
    // The relay still takes connections: only who ended can refuse them.
    drop(relay);
    cluster.wait_until_listening("ps", 1)?;
    assert_eq!(self::counter(&cluster)?.counted()?, counted);
    Ok(())
}

/// A worker that has not met the one that is silent finds the other; one that has does so when its connections break.
#[test]
fn who_is_silent_for_long_is_taken_over_and_ends_when_it_is_back() -> Fallible {
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
    assert!(cluster.log("ps", 0)?.contains("start this one again"));
    // What was asked of it meanwhile is not answered.
    assert_eq!(other.counted()?, [2, 2]);
    cluster.spawn("ps", 0)?;
    until_it_stands_by(&cluster, 0, 1)
}

/// Before the other has seen that it was gone, as after a short fall of its machine.
#[test]
fn a_process_that_comes_back_with_nothing_gives_way_to_its_standby() -> Fallible {
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
        Ok(opens.join().map_err(|_| "it panicked")??)
    })?;
    assert_eq!(counted, [1, 1]);
    Ok(())
}

/// As a client that tries again: the count when it is first answered.
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
fn what_a_standby_cannot_hold_is_refused_by_name() -> Fallible {
    let cluster = start(1, 1)?;
    let scope = Scope::new();
    let at = scope.device("/job:ps/task:0");
    let table = at.op("HashTableV2").attr("key_dtype", DType::Int64).attr("value_dtype", DType::Int64);
    let table = table.attr("shared_name", "words").output();
    let session = Session::connect(&cluster.target("worker", 0), scope.finish()?, SessionOptions::default())?;
    let failed = session.run(&[], &[], &[table.node]).err().ok_or("it was made")?;
    assert_eq!(failed.code(), Code::Unimplemented, "{failed}");
    assert!(failed.to_string().contains("'words'"), "{failed}");
    Ok(())
}
