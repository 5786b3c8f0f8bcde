//! Invalid input, dead processes and clients that give up, on real servers: each call fails with the documented code
//! within a deadline, and the server's next step works.

mod bad_input;
mod handles;
mod processes;

use crate::support::Fallible;
use crate::support::cluster::Cluster;
use crate::support::rpc::{LONG, Rpc, attr, binary, constant, dtype, endless, node, on, shape, step, unary};
use anabranch::graph::Tensor;
use anabranch::proto::convert::tensor_to_proto;
use anabranch::proto::pb;
use std::time::{Duration, Instant};

const FLOAT: pb::DataType = pb::DataType::DtFloat;
const WORKER: &str = "/job:worker/replica:0/task:0";
const PS: &str = "/job:ps/replica:0/task:0";

/// Longest time within which a call must fail if its failure does not wait for a deadline.
const SOON: Duration = Duration::from_secs(2);

fn cpu(task: &str) -> String {
    format!("{task}/device:CPU:0")
}

/// Starts a cluster of one worker.
async fn single() -> Fallible<(Cluster, Rpc)> {
    let cluster = Cluster::start(&[("worker", 1)])?;
    let rpc = Rpc::connect(&cluster, "worker", 0).await?;
    Ok((cluster, rpc))
}

/// Starts a parameter server and a worker, with a connect deadline of 1 s.
async fn pair() -> Fallible<(Cluster, Rpc)> {
    let cluster = Cluster::start_with(&[("ps", 1), ("worker", 1)], &["--connect-deadline", "1"])?;
    let rpc = Rpc::connect(&cluster, "worker", 0).await?;
    Ok((cluster, rpc))
}

/// Returns a graph with a counter on the parameter server, its increment `count`, and a node `endless` that waits until
/// its step is cancelled.
fn counter() -> Vec<pb::NodeDef> {
    let device = cpu(PS);
    let variable = node(
        "v",
        "VariableV2",
        &[],
        &[("dtype", dtype(FLOAT)), ("shape", attr(pb::attr_value::Value::Shape(shape(&[]))))],
    );
    vec![
        on(&device, variable),
        on(&device, constant("one", 1.0)),
        on(&device, binary("init", "Assign", "v", "one")),
        on(&device, binary("count", "AssignAdd", "v", "one")),
        on(&cpu(WORKER), unary("here", "Identity", "v")),
        endless("endless", &device),
    ]
}

type Running = tokio::task::JoinHandle<Result<Vec<pb::NamedTensorProto>, tonic::Status>>;

/// Starts a step that increments the counter and then waits until it is cancelled.
fn run_endless(rpc: &Rpc, session: &str) -> Running {
    let (rpc, request) = (rpc.clone(), step(session, &[], &["endless:0"], &["count"]));
    tokio::spawn(async move { rpc.run_step(request).await })
}

/// Waits until the variable of [`counter`] equals `value`.
async fn until_counted(rpc: &Rpc, session: &str, value: f32) -> Fallible {
    let value = Some(tensor_to_proto(&Tensor::scalar(value)));
    let deadline = Instant::now() + LONG;
    loop {
        let read = rpc.run_step(step(session, &[], &["here:0"], &[])).await?;
        if read.first().is_some_and(|t| t.tensor == value) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("the counter is {read:?}, not {value:?}").into());
        }
    }
}
