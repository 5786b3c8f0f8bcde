//! Unmodified TensorFlow clients on our servers.

use crate::support::cluster::Cluster;
use crate::support::{Fallible, op_table, python};
use std::collections::BTreeMap;
use std::net::TcpStream;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

/// Longest time that TensorFlow's server takes to start.
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
        let output = python::finish(replica)?;
        assert!(output.contains("w 0.1") || output.contains("w 0.09"), "{output}");
    }
    Ok(())
}

#[test]
fn sessions_behave_as_on_a_tensorflow_server() -> Fallible {
    let cluster = Cluster::start(&[("ps", 1), ("worker", 2)])?;
    let mut client = python::script("tests/tensorflow/session.py")?;
    let output = python::run(client.args(["--target", &cluster.target("worker", 0)]))?;
    assert!(checks(&output) >= 12, "{output}");
    Ok(())
}

#[test]
fn input_pipelines_return_the_same_elements_as_on_a_tensorflow_server() -> Fallible {
    let cluster = Cluster::start(&[("worker", 2)])?;
    let mut client = python::script("tests/tensorflow/datasets.py")?;
    client.args(["--target", &cluster.target("worker", 0), "--other", &cluster.target("worker", 1)]);
    let output = python::run(&mut client)?;
    assert!(output.contains("\n0 wrong"), "{output}");
    assert!(checks(&output) >= 100, "{output}");
    Ok(())
}

#[test]
fn checkpoints_and_summaries_are_compatible_with_tensorflow() -> Fallible {
    let cluster = Cluster::start(&[("ps", 2), ("worker", 1)])?;
    let mut client = python::script("tests/tensorflow/checkpoints.py")?;
    let output = python::run(client.args(["--target", &cluster.target("worker", 0)]))?;
    assert_eq!(checks(&output), 13, "{output}");
    Ok(())
}

#[test]
fn conditionals_and_loops_compute_the_same_as_in_a_tensorflow_process() -> Fallible {
    let cluster = Cluster::start(&[("worker", 2)])?;
    let mut client = python::script("tests/tensorflow/control_flow.py")?;
    let output = python::run(client.args(["--target", &cluster.target("worker", 0)]))?;
    assert!(checks(&output) >= 17, "{output}");
    Ok(())
}

/// Compares programs that are generated from seeds. `ANABRANCH_PROGRAMS_COUNT` sets their number,
/// `ANABRANCH_PROGRAMS_SEED` the first seed.
#[test]
fn random_branches_loops_and_calls_have_the_values_and_gradients_of_tensorflow() -> Fallible {
    let cluster = Cluster::start(&[("worker", 2)])?;
    let option = |name: &str, default: &str| std::env::var(name).unwrap_or(default.into());
    let (count, seed) = (option("ANABRANCH_PROGRAMS_COUNT", "24"), option("ANABRANCH_PROGRAMS_SEED", "140"));
    let mut client = python::script("tests/tensorflow/random_control_flow.py")?;
    client.args(["--target", &cluster.target("worker", 0), "--count", &count, "--seed", &seed]);
    let output = python::run(&mut client)?;
    assert!(output.contains(&format!("ok {count} programs")), "{output}");
    Ok(())
}

#[test]
fn stacks_and_tensor_arrays_behave_as_in_a_tensorflow_process() -> Fallible {
    let cluster = Cluster::start(&[("worker", 1)])?;
    let mut client = python::script("tests/tensorflow/step_objects.py")?;
    let output = python::run(client.args(["--target", &cluster.target("worker", 0)]))?;
    assert!(output.contains(" 0 differences"), "{output}");
    Ok(())
}

#[test]
fn collectives_of_clients_compute_the_defined_values_and_refuse_members_that_disagree() -> Fallible {
    let cluster = Cluster::start(&[("worker", 3)])?;
    let targets: Vec<String> = (0..3).map(|task| cluster.target("worker", task)).collect();
    let mut client = python::script("tests/tensorflow/collectives.py")?;
    let output = python::run(client.args(["--targets", &targets.join(",")]))?;
    assert_eq!(checks(&output), 14, "{output}");
    Ok(())
}

#[test]
fn collectives_between_our_servers_and_those_of_tensorflow_have_equal_bits() -> Fallible {
    let mut client = python::script("tests/tensorflow/mixed_collectives.py")?;
    let output = python::run(client.args(["--server", env!("CARGO_BIN_EXE_anabranch-worker")]))?;
    assert_eq!(checks(&output), 4, "{output}");
    Ok(())
}

#[test]
fn buckets_of_reductions_are_one_exchange_and_change_no_bits() -> Fallible {
    let mut client = python::script("tests/tensorflow/bucketed_collectives.py")?;
    let output = python::run(client.args(["--server", env!("CARGO_BIN_EXE_anabranch-worker")]))?;
    assert_eq!(checks(&output), 8, "{output}");
    Ok(())
}

#[test]
fn a_failed_member_of_a_collective_is_named_at_once_in_all_sessions_and_may_come_again() -> Fallible {
    let mut client = python::script("tests/tensorflow/failed_collectives.py")?;
    let output = python::run(client.args(["--server", env!("CARGO_BIN_EXE_anabranch-worker")]))?;
    assert_eq!(checks(&output), 5, "{output}");
    Ok(())
}

#[test]
fn a_multi_worker_mirrored_strategy_in_graph_mode_trains_on_our_servers() -> Fallible {
    let cluster = Cluster::start(&[("worker", 2)])?;
    let targets = [cluster.target("worker", 0), cluster.target("worker", 1)];
    let mut client = python::script("tests/tensorflow/multi_worker_mirrored.py")?;
    let output = python::run(client.args(["--targets", &targets.join(",")]))?;
    assert_eq!(checks(&output), 2, "{output}");
    Ok(())
}

#[test]
fn a_script_of_one_device_trains_on_two_workers_after_four_changed_lines() -> Fallible {
    let cluster = Cluster::start(&[("worker", 2)])?;
    let targets = [cluster.target("worker", 0), cluster.target("worker", 1)];
    let mut client = python::script("tests/tensorflow/collective_recipe.py")?;
    let output = python::run(client.args(["--targets", &targets.join(",")]))?;
    assert_eq!(checks(&output), 3, "{output}");
    Ok(())
}

/// Number of checks in `sessions.py`.
const SESSION_CHECKS: usize = 16;

/// Returns the number of passed checks in a script's output.
fn checks(output: &str) -> usize {
    output.lines().filter(|l| l.starts_with("ok ")).count()
}

#[test]
fn partial_runs_callables_timelines_and_options_behave_as_on_a_tensorflow_server() -> Fallible {
    let cluster = Cluster::start(&[("ps", 1), ("worker", 2)])?;
    let mut client = python::script("tests/tensorflow/sessions.py")?;
    client.args(["--target", &cluster.target("worker", 0)]);
    client.args(["--address-of-ps", &cluster.address("ps", 0).to_string()]);
    let output = python::run(client.arg("--log").arg(cluster.log_file("worker", 0)))?;
    assert_eq!(checks(&output), SESSION_CHECKS, "{output}");
    Ok(())
}

/// TensorFlow's own servers pass the checks of `sessions.py`, so the checks describe TensorFlow's behaviour.
#[test]
fn tensorflow_server_passes_the_checks_of_sessions() -> Fallible {
    let cluster = Cluster::reserve(&[("ps", 1), ("worker", 2)])?;
    let _peers = Peers::start(&cluster, &[("ps", 0), ("worker", 0), ("worker", 1)])?;
    let mut client = python::script("tests/tensorflow/sessions.py")?;
    client.args(["--is-peer", "--target", &cluster.target("worker", 0)]);
    let output = python::run(client.args(["--address-of-ps", &cluster.address("ps", 0).to_string()]))?;
    assert_eq!(checks(&output), SESSION_CHECKS, "{output}");
    Ok(())
}

/// TensorFlow's own servers, killed when dropped.
struct Peers(Vec<Child>);

impl Peers {
    /// Starts the given tasks, whose addresses `cluster` has reserved.
    fn start(cluster: &Cluster, tasks: &[(&str, usize)]) -> Fallible<Peers> {
        let mut spec: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for &(job, task) in tasks {
            spec.entry(job).or_default().push(cluster.address(job, task).to_string());
        }
        let mut peers = Peers(Vec::new());
        for &(job, task) in tasks {
            let config = serde_json::json!({"cluster": spec, "task": {"type": job, "index": task}});
            let mut server = python::process("benches/peer/tf_server.py")?;
            server.env("TF_CONFIG", config.to_string());
            peers.0.push(python::start(&mut server)?);
        }
        let deadline = Instant::now() + PEER_DEADLINE;
        for &(job, task) in tasks {
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
            // An error is ignored, because the process may have ended already.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

#[test]
fn objects_belong_to_the_session_or_container_to_which_tensorflow_gives_them() -> Fallible {
    let table = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ops-for-owners.json");
    std::fs::write(&table, op_table::json().to_string())?;
    let theirs = Cluster::reserve(&[("worker", 2)])?;
    let _peers = Peers::start(&theirs, &[("worker", 0), ("worker", 1)])?;
    let ours = Cluster::start(&[("worker", 2)])?;
    let mut client = python::script("tests/tensorflow/resource_owners.py")?;
    client.arg(&table);
    for task in 0..2 {
        client.args(["--target", &ours.target("worker", task), "--peer", &theirs.target("worker", task)]);
    }
    let output = python::run(&mut client)?;
    assert!(output.contains(", 0 differences"), "{output}");
    Ok(())
}

#[test]
fn the_debugger_of_a_client_sees_the_tensors_and_costs_of_all_tasks() -> Fallible {
    let cluster = Cluster::start(&[("ps", 1), ("worker", 1)])?;
    let mut client = python::script("tests/tensorflow/debugger.py")?;
    let output = python::run(client.args(["--target", &cluster.target("worker", 0)]))?;
    assert_eq!(checks(&output), 12, "{output}");
    Ok(())
}

#[test]
fn queues_and_other_synchronisation_behave_as_on_tensorflow_servers() -> Fallible {
    let cluster = Cluster::start(&[("ps", 1), ("worker", 2)])?;
    let mut client = python::script("tests/tensorflow/queues.py")?;
    for task in 0..2 {
        client.args(["--target", &cluster.target("worker", task)]);
    }
    let output = python::run(&mut client)?;
    assert!(output.contains(" 0 differences"), "{output}");
    Ok(())
}

#[test]
fn blocked_ops_end_with_their_step_and_session() -> Fallible {
    let cluster = Cluster::start(&[("worker", 1)])?;
    let mut client = python::script("tests/tensorflow/cancellations.py")?;
    let output = python::run(client.args(["--target", &cluster.target("worker", 0)]))?;
    assert_eq!(checks(&output), 9, "{output}");
    Ok(())
}

/// The checks run on one task, and then with branches, loops and functions on two other tasks.
#[test]
fn functions_and_functional_control_flow_compute_the_same_as_tensorflow() -> Fallible {
    let cluster = Cluster::start(&[("ps", 1), ("worker", 2)])?;
    for devices in ["", "/job:ps/task:0,/job:worker/task:1"] {
        let mut client = python::script("tests/tensorflow/functions.py")?;
        client.args(["--target", &cluster.target("worker", 0), "--devices", devices]);
        let output = python::run(&mut client)?;
        assert!(checks(&output) >= 12 && output.contains("ok fed_outputs"), "{output}");
    }
    Ok(())
}
