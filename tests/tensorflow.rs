//! Unmodified TensorFlow clients on our servers.

mod support;

use std::net::TcpStream;
use std::process::Child;
use std::time::{Duration, Instant};
use support::cluster::Cluster;
use support::{Fallible, python};

/// TensorFlow takes its time to start.
const PEER_DEADLINE: Duration = Duration::from_secs(120);

#[test]
fn between_graph_replicas_share_variables_by_name() -> Fallible {
    let cluster = Cluster::start(&[("ps", 1), ("worker", 2)])?;
    let spec = serde_json::json!({
        "ps": [cluster.address("ps", 0).to_string()],
        "worker": [cluster.address("worker", 0).to_string(), cluster.address("worker", 1).to_string()],
    });
    let mut replicas = Vec::new();
    for task in 0..2 {
        let mut client = python::script("tests/tensorflow/linear_regression.py")?;
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
    let mut client = python::script("tests/tensorflow/session.py")?;
    let said = python::run(client.args(["--target", &cluster.target("worker", 0)]))?;
    assert!(checks(&said) >= 12, "{said}");
    Ok(())
}

#[test]
fn input_pipelines_give_what_they_give_on_the_peers_server() -> Fallible {
    let cluster = Cluster::start(&[("worker", 2)])?;
    let mut client = python::script("tests/tensorflow/datasets.py")?;
    client.args(["--target", &cluster.target("worker", 0), "--other", &cluster.target("worker", 1)]);
    let said = python::run(&mut client)?;
    assert!(said.contains("\n0 wrong"), "{said}");
    assert!(checks(&said) >= 100, "{said}");
    Ok(())
}

#[test]
fn checkpoints_and_summaries_are_the_peers() -> Fallible {
    let cluster = Cluster::start(&[("ps", 2), ("worker", 1)])?;
    let mut client = python::script("tests/tensorflow/checkpoints.py")?;
    let said = python::run(client.args(["--target", &cluster.target("worker", 0)]))?;
    assert_eq!(checks(&said), 12, "{said}");
    Ok(())
}

#[test]
fn branches_and_loops_go_as_in_the_peers_own_process() -> Fallible {
    let cluster = Cluster::start(&[("worker", 2)])?;
    let mut client = python::script("tests/tensorflow/control_flow.py")?;
    let said = python::run(client.args(["--target", &cluster.target("worker", 0)]))?;
    assert!(checks(&said) >= 17, "{said}");
    Ok(())
}

#[test]
fn stacks_and_tensor_arrays_answer_as_in_the_peers_own_process() -> Fallible {
    let cluster = Cluster::start(&[("worker", 1)])?;
    let mut client = python::script("tests/tensorflow/step_objects.py")?;
    let said = python::run(client.args(["--target", &cluster.target("worker", 0)]))?;
    assert!(said.contains(" 0 differences"), "{said}");
    Ok(())
}

const SESSION_CHECKS: usize = 15;

fn checks(said: &str) -> usize {
    said.lines().filter(|l| l.starts_with("ok ")).count()
}

#[test]
fn partial_runs_callables_timelines_and_options_are_as_on_the_peers_server() -> Fallible {
    let cluster = Cluster::start(&[("ps", 1), ("worker", 2)])?;
    let mut client = python::script("tests/tensorflow/sessions.py")?;
    client.args(["--target", &cluster.target("worker", 0)]);
    client.args(["--address-of-ps", &cluster.address("ps", 0).to_string()]);
    let said = python::run(client.arg("--log").arg(cluster.log_file("worker", 0)))?;
    assert_eq!(checks(&said), SESSION_CHECKS, "{said}");
    Ok(())
}

/// The control: what is expected of our servers is what the peer's own do.
#[test]
fn the_peers_server_behaves_as_expected_of_ours() -> Fallible {
    let cluster = Cluster::reserve(&[("ps", 1), ("worker", 2)])?;
    let _peers = Peers::start(&cluster)?;
    let mut client = python::script("tests/tensorflow/sessions.py")?;
    client.args(["--is-peer", "--target", &cluster.target("worker", 0)]);
    let said = python::run(client.args(["--address-of-ps", &cluster.address("ps", 0).to_string()]))?;
    assert_eq!(checks(&said), SESSION_CHECKS, "{said}");
    Ok(())
}

/// Servers of TensorFlow's, killed at the end.
struct Peers(Vec<Child>);

impl Peers {
    fn start(cluster: &Cluster) -> Fallible<Peers> {
        let address = |job, index| cluster.address(job, index).to_string();
        let tasks = [("ps", 0), ("worker", 0), ("worker", 1)];
        let spec = serde_json::json!({
            "ps": [address("ps", 0)],
            "worker": [address("worker", 0), address("worker", 1)],
        });
        let mut peers = Peers(Vec::new());
        for (job, task) in tasks {
            let config = serde_json::json!({"cluster": spec, "task": {"type": job, "index": task}});
            let mut server = python::script("benches/peer/tf_server.py")?;
            server.env("TF_CONFIG", config.to_string());
            peers.0.push(python::start(&mut server)?);
        }
        let deadline = Instant::now() + PEER_DEADLINE;
        for (job, task) in tasks {
            while TcpStream::connect(cluster.address(job, task)).is_err() {
                if Instant::now() > deadline {
                    return Err(format!("the peer's /job:{job}/task:{task} does not start").into());
                }
                std::thread::park_timeout(Duration::from_millis(50));
            }
        }
        Ok(peers)
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        for server in &mut self.0 {
            // It may have ended already.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

#[test]
fn steps_wait_for_each_other_as_on_the_peers_servers() -> Fallible {
    let cluster = Cluster::start(&[("ps", 1), ("worker", 2)])?;
    let mut client = python::script("tests/tensorflow/queues.py")?;
    for task in 0..2 {
        client.args(["--target", &cluster.target("worker", task)]);
    }
    let said = python::run(&mut client)?;
    assert!(said.contains(" 0 differences"), "{said}");
    Ok(())
}

#[test]
fn what_waits_ends_with_its_step_and_its_session() -> Fallible {
    let cluster = Cluster::start(&[("worker", 1)])?;
    let mut client = python::script("tests/tensorflow/cancellations.py")?;
    let said = python::run(client.args(["--target", &cluster.target("worker", 0)]))?;
    assert_eq!(checks(&said), 9, "{said}");
    Ok(())
}

/// On one task, and with branches, loops and functions spread over two others.
#[test]
fn functions_and_control_flow_over_them_give_what_the_peer_gives() -> Fallible {
    let cluster = Cluster::start(&[("ps", 1), ("worker", 2)])?;
    for devices in ["", "/job:ps/task:0,/job:worker/task:1"] {
        let mut client = python::script("tests/tensorflow/functions.py")?;
        client.args(["--target", &cluster.target("worker", 0), "--devices", devices]);
        let said = python::run(&mut client)?;
        assert!(checks(&said) >= 12 && said.contains("ok fed_outputs"), "{said}");
    }
    Ok(())
}
