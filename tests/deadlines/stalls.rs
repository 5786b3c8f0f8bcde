//! Tests of collectives that wait: the log and the error name the missing member and its action. Tests of the spans of
//! collectives.

use crate::support::Fallible;
use crate::support::cluster::Cluster;
use anabranch::client::{Session, SessionOptions};
use anabranch::graph::builder::CollectiveReduction;
use anabranch::graph::{Code, DType, NodeId, Output, Scope};
use anabranch::proto::pb;
use std::time::{Duration, Instant};

const WORKERS: u32 = 3;

/// The number by which `RunOptions` denotes a full trace.
const FULL_TRACE: i32 = 3;

/// The sums over all workers of one value each; the last worker takes its value from a queue.
struct Sums {
    sums: Vec<Output>,
    enqueue: NodeId,
}

fn sums(scope: &Scope) -> Sums {
    let at = |task: u32| scope.device(&format!("/job:worker/task:{task}/device:CPU:0"));
    let last = at(WORKERS - 1);
    let types = || vec![DType::Float];
    let queue = last.op("FIFOQueueV2").attr("component_types", types()).output();
    let one = last.constant(1.0f32);
    let enqueue = last.op("QueueEnqueueV2").name("enqueue").input(queue).input(vec![one]);
    let enqueue = enqueue.attr("Tcomponents", types()).node();
    let dequeue = last.op("QueueDequeueV2").name("dequeue").input(queue);
    let dequeue = dequeue.attr("component_types", types()).output();
    let sum = |task: u32| {
        let at = at(task);
        let x = if task == WORKERS - 1 { dequeue } else { at.constant(2.0f32) };
        let group = at.collective_group(WORKERS as i32, 5);
        at.all_reduce(x, group.instance(at.constant(9)), CollectiveReduction::Sum)
    };
    Sums { sums: (0..WORKERS).map(sum).collect(), enqueue }
}

fn session(cluster: &Cluster) -> Fallible<(Session, Sums)> {
    let scope = Scope::new();
    let sums = sums(&scope);
    let session = Session::connect(&cluster.target("worker", 0), scope.finish()?, SessionOptions::default())?;
    Ok((session, sums))
}

/// Runs a step whose last member waits for the queue. Checks that the error comes in time, and that it contains all of
/// `texts`.
fn stall(session: &Session, sums: &Sums, texts: &[&str]) -> Fallible {
    let begin = Instant::now();
    let error = session.run(&[], &sums.sums, &[]).err().ok_or("the step has ended")?;
    let took = begin.elapsed();
    let text = error.to_string();
    assert_eq!(error.code(), Code::DeadlineExceeded, "{text}");
    assert!(took < Duration::from_secs(4), "{took:?}");
    for part in texts {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
    Ok(())
}

#[test]
fn a_member_that_waits_elsewhere_is_named_with_its_node() -> Fallible {
    let flags = ["--collective-timeout", "3", "--stall-warn", "1"];
    let cluster = Cluster::start_with(&[("worker", WORKERS as usize)], &flags)?;
    let (session, sums) = session(&cluster)?;
    let waits = "/job:worker/replica:0/task:2: its step ";
    // In the first step the group is not complete, so only the leader knows the members that have joined.
    let texts =
        ["2 of 3 members have come", "not among them: ", waits, " waits for 'dequeue'", "waited 3.0 s"];
    stall(&session, &sums, &texts)?;
    for task in 0..2 {
        let log = cluster.log("worker", task)?;
        let lines: Vec<&str> = log.lines().filter(|line| line.contains("has waited")).collect();
        // The waiting collective is logged after one second and after two.
        assert_eq!(lines.len(), 2, "{log}");
        for line in lines {
            for part in ["CollectiveReduceV2", "(group 5 of 3, instance 9)", waits, "waits for 'dequeue'"] {
                assert!(line.contains(part), "no {part:?} in: {line}");
            }
        }
    }
    assert!(!cluster.log("worker", 2)?.contains("has waited"));
    // The next step succeeds, so in the step after it the members wait for each other's elements.
    session.run(&[], &[], &[sums.enqueue])?;
    let values = session.run(&[], &sums.sums, &[])?;
    assert_eq!(values[0].item::<f32>()?, 5.0);
    let texts = ["waits for /job:worker/replica:0/task:2/device:CPU:0; ", waits, " waits for 'dequeue'"];
    stall(&session, &sums, &texts)?;
    Ok(())
}

#[test]
fn a_stopped_member_does_not_answer() -> Fallible {
    let flags = ["--collective-timeout", "2", "--stall-warn", "100"];
    let cluster = Cluster::start_with(&[("worker", WORKERS as usize)], &flags)?;
    let (session, sums) = session(&cluster)?;
    session.run(&[], &[], &[sums.enqueue])?;
    session.run(&[], &sums.sums, &[])?;
    cluster.signal("worker", 2, "STOP")?;
    let stopped = stall(&session, &sums, &["/job:worker/replica:0/task:2: it does not answer"]);
    cluster.signal("worker", 2, "CONT")?;
    stopped
}

#[test]
fn a_traced_step_shows_the_spans_of_collectives() -> Fallible {
    let cluster = Cluster::start(&[("worker", WORKERS as usize)])?;
    let (session, sums) = session(&cluster)?;
    session.run(&[], &[], &[sums.enqueue])?;
    let options = pb::RunOptions { trace_level: FULL_TRACE, ..Default::default() };
    let step = session.step().options(options).fetch(sums.sums[0]).fetch(sums.sums[2]);
    let metadata = step.fetch(sums.sums[1]).run()?.metadata.unwrap_or_default();
    let devices = metadata.step_stats.unwrap_or_default().dev_stats;
    let nodes = devices.iter().flat_map(|device| &device.node_stats);
    let is_sum = |node: &&pb::NodeExecStats| node.timeline_label.contains("= CollectiveReduceV2(");
    let spans: Vec<_> = nodes.filter(is_sum).collect();
    assert_eq!(spans.len(), WORKERS as usize);
    for span in spans {
        let note = " [4 bytes, exchange in 1 phase, 3 members]";
        assert!(span.timeline_label.ends_with(note), "{}", span.timeline_label);
        assert!(span.op_end_rel_nanos > span.op_start_rel_nanos, "{span:?}");
    }
    Ok(())
}
