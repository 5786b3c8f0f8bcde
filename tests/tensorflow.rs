//! Unmodified TensorFlow clients on our servers.

mod support;

use support::cluster::Cluster;
use support::{Fallible, python};

#[test]
fn between_graph_replicas_share_variables_by_name() -> Fallible {
    let cluster = Cluster::start(&[("ps", 1), ("worker", 2)])?;
    let spec = serde_json::json!({
        "ps": [cluster.address("ps", 0).to_string()],
        "worker": [cluster.address("worker", 0).to_string(), cluster.address("worker", 1).to_string()],
    });
    let mut replicas = Vec::new();
    for task in 0..2 {
        let mut client = python::script("linear_regression.py")?;
        client.args(["--target", &cluster.target("worker", task)]);
        client.args(["--cluster", &spec.to_string(), "--task", &task.to_string()]);
        replicas.push(python::start(&mut client)?);
    }
    for replica in replicas {
        let said = python::finish(replica)?;
        assert!(said.contains("w 0.1") || said.contains("w 0.09"), "{said}");
    }
    Ok(())
}

#[test]
fn a_session_behaves_as_on_the_peers_server() -> Fallible {
    let cluster = Cluster::start(&[("ps", 1), ("worker", 2)])?;
    let mut client = python::script("session.py")?;
    let said = python::run(client.args(["--target", &cluster.target("worker", 0)]))?;
    assert!(said.lines().filter(|l| l.starts_with("ok ")).count() >= 12, "{said}");
    Ok(())
}

#[test]
fn branches_and_loops_go_as_in_the_peers_own_process() -> Fallible {
    let cluster = Cluster::start(&[("worker", 2)])?;
    let mut client = python::script("control_flow.py")?;
    let said = python::run(client.args(["--target", &cluster.target("worker", 0)]))?;
    assert!(said.lines().filter(|l| l.starts_with("ok ")).count() >= 17, "{said}");
    Ok(())
}

#[test]
fn stacks_and_tensor_arrays_answer_as_in_the_peers_own_process() -> Fallible {
    let cluster = Cluster::start(&[("worker", 1)])?;
    let mut client = python::script("step_objects.py")?;
    let said = python::run(client.args(["--target", &cluster.target("worker", 0)]))?;
    assert!(said.contains(" 0 differences"), "{said}");
    Ok(())
}
