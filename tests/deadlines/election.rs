//! The chief's process dies or is stopped: another replica becomes the chief, and requests of the old chief are
//! refused.

use crate::support::Fallible;
use crate::support::cluster::Cluster;
use crate::support::job::Job;
use crate::support::replica::PATIENCE;
use anabranch::client::{Error, Session, SessionOptions};
use anabranch::graph::{Code, DType, Graph, NodeId, Output, PartialShape, Scope, Tensor};
use anabranch::proto::Epoch;
use std::thread;
use std::time::{Duration, Instant};

fn job(name: &str, lease: Duration) -> Fallible<Job> {
    Job::start(name, |config| config.lease = lease, false)
}

/// Returns the final variables of a job in which no process fails.
fn undisturbed() -> Fallible<Vec<Tensor>> {
    job("undisturbed", PATIENCE)?.finish(PATIENCE)
}

#[test]
fn another_replica_replaces_a_chief_that_dies() -> Fallible {
    let mut job = job("chief-dies", PATIENCE)?;
    job.until_step(15)?;
    let (term, chief) = job.until_chief(0)?;
    let died = Instant::now();
    job.cluster.kill("worker", chief)?;
    let (_, next) = job.until_chief(term)?;
    assert!(next != chief && died.elapsed() < Duration::from_secs(5), "{next}, after {:?}", died.elapsed());
    // The restarted replica joins as a worker.
    job.cluster.spawn("worker", chief)?;
    let found = job.finish(PATIENCE).map_err(|e| format!("{e}\n{}", job.logs()))?;
    assert_eq!(found, undisturbed()?);
    Ok(())
}

#[test]
fn chief_that_is_stopped_past_its_lease_resumes_as_a_worker() -> Fallible {
    let mut job = job("chief-stops", Duration::from_millis(600))?;
    job.until_step(15)?;
    let (term, chief) = job.until_chief(0)?;
    job.cluster.signal("worker", chief, "STOP")?;
    let (_, next) = job.until_chief(term)?;
    assert_ne!(next, chief);
    job.cluster.signal("worker", chief, "CONT")?;
    let found = job.finish(PATIENCE).map_err(|e| format!("{e}\n{}", job.logs()))?;
    assert_eq!(found, undisturbed()?);
    let log = job.cluster.log("worker", chief)?;
    assert!(log.contains(&format!("its term {term} is over")), "{log}");
    Ok(())
}

/// A graph with a counter on the parameter server.
struct Counter {
    graph: Graph,
    value: Output,
    count: NodeId,
    set: NodeId,
}

fn counter() -> Fallible<Counter> {
    let scope = Scope::new();
    let on = scope.device("/job:ps/task:0");
    let v = on
        .op("VarHandleOp")
        .name("v")
        .attr("dtype", DType::Int64)
        .attr("shape", PartialShape::scalar())
        .attr("shared_name", "v");
    let v = v.output();
    let count = on.assign_add_variable(v, on.constant(1i64));
    let set = on.assign_variable(v, on.constant(1_000_000i64));
    let value = on.read_variable(v, DType::Int64);
    Ok(Counter { graph: scope.finish()?, value, count, set })
}

fn session(cluster: &Cluster, worker: usize, graph: &Graph, epoch: Option<i64>) -> Result<Session, Error> {
    let mut options = SessionOptions { deadline: Some(PATIENCE), ..SessionOptions::default() };
    if let Some(number) = epoch {
        Epoch { name: "job".to_owned(), number }.write(&mut options.config);
    }
    Session::connect(&cluster.target("worker", worker), graph.clone(), options)
}

#[test]
fn stopped_master_changes_nothing_after_its_epoch() -> Fallible {
    let cluster = Cluster::start(&[("ps", 1), ("worker", 2)])?;
    let Counter { graph, value, count, set } = counter()?;
    let first = session(&cluster, 0, &graph, Some(3))?;
    let unbound = session(&cluster, 1, &graph, None)?;
    first.run(&[], &[], &[set])?;
    let refused = thread::scope(|scope| -> Fallible<Error> {
        let counting = scope.spawn(|| {
            loop {
                if let Err(error) = first.run(&[], &[], &[count]) {
                    return error;
                }
            }
        });
        let deadline = Instant::now() + PATIENCE;
        while unbound.run(&[], &[value], &[])?[0].item::<i64>()? < 1_000_050 {
            assert!(Instant::now() < deadline);
        }
        cluster.signal("worker", 0, "STOP")?;
        let second = session(&cluster, 1, &graph, Some(4))?;
        second.run(&[], &[], &[set])?;
        cluster.signal("worker", 0, "CONT")?;
        Ok(counting.join().map_err(|_| "the first client panicked")?)
    })?;
    let over = "epoch 3 of 'job' is over: /job:ps/replica:0/task:0 has seen epoch 4";
    let is_refusal = |error: &Error| error.code() == Code::Aborted && error.to_string().contains(over);
    assert!(is_refusal(&refused), "{refused}");
    let again = first.run(&[], &[], &[set]).err().ok_or("a session whose epoch is over was served")?;
    let anew = session(&cluster, 0, &graph, Some(3)).err().ok_or("an epoch that is over began")?;
    assert!(is_refusal(&again) && is_refusal(&anew), "{again}, {anew}");
    assert_eq!(unbound.run(&[], &[value], &[])?[0].item::<i64>()?, 1_000_000);
    // The server still serves sessions that were opened without an epoch.
    unbound.run(&[], &[], &[count])?;
    Ok(())
}
