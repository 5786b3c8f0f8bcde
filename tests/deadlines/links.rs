//! Transfers of tensors between server processes over each transport: results, failures of a task, and memory
//! use.

use crate::support::Fallible;
use crate::support::cluster::Cluster;
use anabranch::client::{Session, SessionOptions};
use anabranch::graph::{Code, DType, Output, Scope, Shape, Tensor};
use std::time::{Duration, Instant};

const PS: &str = "/job:ps/task:0";
const WORKER: &str = "/job:worker/task:0";
const TRANSPORTS: [&str; 4] = ["auto", "shm", "tcp", "grpc"];

/// Number of floats in a tensor that is too large to be sent before the receiver requests it.
const LARGE: usize = 20_000_000;

/// A session with a variable on the parameter server; the worker reads it with `pull` and adds to it with
/// `push`.
struct Model {
    session: Session,
    init: Output,
    pull: Output,
    push: Output,
}

fn model(cluster: &Cluster, len: usize) -> Fallible<Model> {
    model_of(cluster, len, 1.0)
}

/// Builds a model of `len` parameters that are initialised to `initial`; each push adds 1 to all of them.
fn model_of(cluster: &Cluster, len: usize, initial: f32) -> Fallible<Model> {
    let scope = Scope::new();
    let on = |device: &str, op: &'static str, inputs: &[Output]| {
        inputs.iter().fold(scope.op(op).device(device), |node, &input| node.input(input)).output()
    };
    let dims = scope.constant(Tensor::vector(&[i32::try_from(len)?])?);
    let all = |device: &str, value: f32| on(device, "Fill", &[dims, scope.constant(Tensor::scalar(value))]);
    let variable = || {
        let shape = anabranch::graph::PartialShape::from(&Shape::new(&[len])?);
        Ok::<_, anabranch::graph::Error>(
            scope
                .op("VariableV2")
                .name(&format!("v{len}"))
                .device(PS)
                .attr("dtype", DType::Float)
                .attr("shape", shape)
                .output(),
        )
    };
    let v = variable()?;
    let init = on(PS, "Assign", &[v, all(PS, initial)]);
    let on_ps = on(PS, "Identity", &[v]);
    let pull = on(WORKER, "Sum", &[on_ps, scope.constant(Tensor::vector(&[0i32])?)]);
    let gradient = on(WORKER, "Identity", &[all(WORKER, 1.0)]);
    let push = on(PS, "AssignAdd", &[v, gradient]);
    let session = Session::connect(&cluster.target("worker", 0), scope.finish()?, SessionOptions::default())?;
    Ok(Model { session, init, pull, push })
}

fn pair(transport: &str) -> Fallible<Cluster> {
    Cluster::start_with(&[("ps", 1), ("worker", 1)], &["--transport", transport, "--connect-deadline", "1"])
}

#[test]
fn variables_are_pulled_and_pushed_over_every_transport() -> Fallible {
    for transport in TRANSPORTS {
        let cluster = pair(transport)?;
        for len in [1, 1000, 100_000, LARGE] {
            let model = model(&cluster, len)?;
            model.session.run(&[], &[], &[model.init.node])?;
            for round in 1..4 {
                let sum = model.session.run(&[], &[model.pull], &[])?;
                let expected = round as f32 * len as f32;
                let sum = sum[0].item::<f32>()?;
                assert!(
                    (sum - expected).abs() <= expected * 1e-4,
                    "{transport}, {len}: {sum}, not {expected}"
                );
                model.session.run(&[], &[], &[model.push.node])?;
            }
            model.session.close()?;
        }
    }
    Ok(())
}

#[test]
fn death_of_a_sending_ps_fails_steps_at_once_with_its_name() -> Fallible {
    for transport in TRANSPORTS {
        let mut cluster = pair(transport)?;
        let model = model(&cluster, LARGE)?;
        model.session.run(&[], &[], &[model.init.node])?;
        model.session.run(&[], &[model.pull], &[])?;
        let address = cluster.address("ps", 0).to_string();
        let (failed, took) = std::thread::scope(|scope| {
            let steps = scope.spawn(|| {
                // Runs steps until a step fails.
                loop {
                    let ran = model.session.run(&[], &[model.pull], &[model.push.node]);
                    if let Err(error) = ran {
                        return (error, Instant::now());
                    }
                }
            });
            std::thread::park_timeout(Duration::from_millis(300));
            let killed = Instant::now();
            cluster.kill("ps", 0).map_err(|e| e.to_string())?;
            let (error, at) = steps.join().map_err(|_| "the client panicked")?;
            Ok::<_, String>((error, at.saturating_duration_since(killed)))
        })?;
        assert_eq!(failed.code(), Code::Unavailable, "{transport}: {failed}");
        assert!(failed.to_string().contains("/job:ps/replica:0/task:0"), "{transport}: {failed}");
        assert!(failed.to_string().contains(&address), "{transport}: {failed}");
        assert!(took < Duration::from_secs(5), "{transport}: {took:?}");
        // Sessions that use the restarted parameter server work.
        cluster.spawn("ps", 0)?;
        cluster.wait_until_listening("ps", 0)?;
        let fresh = self::model(&cluster, 100_000)?;
        fresh.session.run(&[], &[], &[fresh.init.node])?;
        for _ in 0..3 {
            assert_eq!(fresh.session.run(&[], &[fresh.pull], &[])?, [Tensor::scalar(100_000f32)]);
        }
    }
    Ok(())
}

#[test]
fn steps_on_a_stopped_ps_time_out_and_it_resumes() -> Fallible {
    // Six tensors of `LEN` floats exceed the limit on the unacknowledged bytes of a link.
    const LEN: usize = 4_000_000;
    for transport in TRANSPORTS {
        let cluster = pair(transport)?;
        let model = model(&cluster, LEN)?;
        model.session.run(&[], &[], &[model.init.node])?;
        model.session.run(&[], &[model.pull], &[])?;
        model.session.run(&[], &[], &[model.push.node])?;
        cluster.signal("ps", 0, "STOP")?;
        for _ in 0..6 {
            let late = model.session.step().target(model.push.node).timeout(Duration::from_secs(1)).run();
            let late = late.err().ok_or("the step succeeded")?;
            assert_eq!(late.code(), Code::DeadlineExceeded, "{transport}: {late}");
            assert!(late.to_string().contains("/job:ps/replica:0/task:0"), "{transport}: {late}");
        }
        cluster.signal("ps", 0, "CONT")?;
        // Each push that was in progress when the ps stopped has been applied as a whole or not at all.
        let sum = model.session.run(&[], &[model.pull], &[])?[0].item::<f32>()? / LEN as f32;
        let is_whole = |x: f32| (x - x.round()).abs() < 1e-3;
        assert!(is_whole(sum) && (1.9..=8.1).contains(&sum), "{transport}: {sum}");
        model.session.run(&[], &[], &[model.push.node])?;
        let next = model.session.run(&[], &[model.pull], &[])?[0].item::<f32>()? / LEN as f32;
        assert!(is_whole(next) && next > sum + 0.9, "{transport}: {next} after {sum}");
    }
    Ok(())
}

#[test]
fn memory_of_sent_tensors_is_reused() -> Fallible {
    for transport in ["shm", "tcp"] {
        let cluster = pair(transport)?;
        let resident = |cluster: &Cluster| -> Fallible<u64> {
            Ok(cluster.resident_bytes("ps", 0)? + cluster.resident_bytes("worker", 0)?)
        };
        let model = model(&cluster, LARGE)?;
        model.session.run(&[], &[], &[model.init.node])?;
        let round = || -> Fallible {
            model.session.run(&[], &[model.pull], &[])?;
            model.session.run(&[], &[], &[model.push.node])?;
            Ok(())
        };
        (0..5).try_for_each(|_| round())?;
        let before = resident(&cluster)?;
        (0..25).try_for_each(|_| round())?;
        let after = resident(&cluster)?;
        assert!(after < before + (100 << 20), "{transport}: from {before} to {after} bytes");
    }
    Ok(())
}

#[test]
fn zeros_take_no_memory_and_closing_a_session_frees_its_memory() -> Fallible {
    const VARIABLE: u64 = 4 * LARGE as u64;
    const SOME: u64 = 60 << 20;
    for transport in ["auto", "tcp"] {
        let cluster = pair(transport)?;
        let resident =
            || Fallible::Ok((cluster.resident_bytes("ps", 0)?, cluster.resident_bytes("worker", 0)?));
        let before = resident()?;
        let model = model_of(&cluster, LARGE, 0.0)?;
        model.session.run(&[], &[], &[model.init.node])?;
        let zeros = resident()?;
        assert!(zeros.0 < before.0 + SOME, "{transport}: zeros take {} bytes", zeros.0 - before.0);
        assert_eq!(model.session.run(&[], &[model.pull], &[])?[0].item::<f32>()?, 0.0, "{transport}");
        model.session.run(&[], &[], &[model.push.node])?;
        let sum = model.session.run(&[], &[model.pull], &[])?[0].item::<f32>()?;
        assert!((sum / LARGE as f32 - 1.0).abs() < 1e-4, "{transport}: {sum}");
        model.session.close()?;
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let (ps, worker) = resident()?;
            // If tensors are sent over shared memory, the variable counts as resident memory of the worker
            // too.
            if ps.saturating_sub(before.0).max(worker.saturating_sub(before.1)) < VARIABLE + SOME {
                break;
            }
            assert!(
                Instant::now() < deadline,
                "{transport}: {ps}, {worker} bytes are resident, {before:?} before"
            );
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }
    Ok(())
}
