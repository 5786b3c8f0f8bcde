//! The commands `anabranch`, `anabranch-worker` and `anabranch-master`, run as processes.

use crate::support::Fallible;
use crate::support::cluster::{Cluster, free_port};
use client::{Session, SessionOptions};
use graph::{DType, Graph, PartialShape, Scope};
use prost::Message;
use proto::convert::{DefaultAttrs, graph_to_proto};
use proto::pb;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const ANABRANCH: &str = env!("CARGO_BIN_EXE_anabranch");
const WORKER: &str = env!("CARGO_BIN_EXE_anabranch-worker");
const MASTER: &str = env!("CARGO_BIN_EXE_anabranch-master");

/// The exit code and output of a command.
struct CommandResult {
    code: Option<i32>,
    out: String,
    err: String,
}

/// Runs a command to its end, without environment variables that describe a cluster.
fn run(program: &str, args: &[&str]) -> Fallible<CommandResult> {
    result_of(Command::new(program).args(args).env_remove("TF_CONFIG").env_remove("RUST_LOG").output()?)
}

fn result_of(output: Output) -> Fallible<CommandResult> {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(CommandResult { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) })
}

/// Returns a graph with a variable on the parameter server, a worker's node that reads it, and a node without
/// constraints.
fn graph() -> Fallible<Graph> {
    let scope = Scope::new();
    let ps = scope.device("/job:ps");
    let w = ps
        .op("VarHandleOp")
        .name("w")
        .attr("dtype", DType::Float)
        .attr("shape", PartialShape::from([2usize]))
        .output();
    let read = ps.op("ReadVariableOp").name("read").input(w).attr("dtype", DType::Float).output();
    let worker = scope.device("/job:worker/task:1");
    worker.op("Square").name("square").input(read).node();
    scope.op("Neg").name("anywhere").input(scope.constant(1.0f32)).node();
    Ok(scope.finish()?)
}

fn write(name: &str, bytes: &[u8]) -> Fallible<PathBuf> {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, bytes)?;
    Ok(path)
}

fn graph_def(name: &str) -> Fallible<String> {
    let bytes = graph_to_proto(&graph()?, DefaultAttrs::Keep)?.encode_to_vec();
    Ok(write(name, &bytes)?.display().to_string())
}

#[test]
fn graph_prints_its_input_as_text() -> Fallible {
    let file = graph_def("prints.pb")?;
    let result = run(ANABRANCH, &["graph", &file])?;
    assert_eq!(result.code, Some(0), "{}", result.err);
    assert_eq!(result.out, graph()?.to_text());
    let text = write("prints.txt", result.out.as_bytes())?;
    assert_eq!(run(ANABRANCH, &["graph", &text.display().to_string()])?.out, result.out);
    let piped = Command::new(ANABRANCH).args(["graph", "-"]).stdin(fs::File::open(&file)?).output()?;
    assert_eq!(result_of(piped)?.out, result.out);
    Ok(())
}

#[test]
fn graph_prints_dot() -> Fallible {
    let result = run(ANABRANCH, &["graph", &graph_def("draws.pb")?, "--format", "dot"])?;
    assert_eq!(result.code, Some(0), "{}", result.err);
    assert!(
        result.out.starts_with("digraph {") && result.out.contains("label=\"square\\nSquare\""),
        "{}",
        result.out
    );
    Ok(())
}

#[test]
fn graph_prints_partitions_and_explains_placement() -> Fallible {
    let file = graph_def("places.pb")?;
    let placed = ["graph", &file, "--cluster", "ps=1;worker=2"];
    let result = run(ANABRANCH, &placed)?;
    assert_eq!(result.code, Some(0), "{}", result.err);
    let parts: Vec<&str> = result.out.split("# /job:").skip(1).collect();
    let [ps, worker] = parts[..] else { return Err(format!("not two parts: {}", result.out).into()) };
    assert!(ps.starts_with("ps/replica:0/task:0") && ps.contains("read_S") && ps.contains("_Send"), "{ps}");
    assert!(worker.starts_with("worker/replica:0/task:1"), "{worker}");
    assert!(worker.contains("_Recv") && worker.contains("square = Square"), "{worker}");
    // A node without constraints is on the first device or, with `--master`, on the master's task.
    assert!(ps.contains("anywhere = Neg"), "{ps}");
    let at = |master: &str| run(ANABRANCH, &[&placed[..], &["--master", master, "--explain"]].concat());
    let result = at("/job:worker/task:0")?;
    let device = "/job:worker/replica:0/task:0/device:CPU:0";
    assert!(result.out.contains(&format!("# anywhere: (Neg): {device} [default]")), "{}", result.out);
    for line in
        ["# w: (VarHandleOp): /job:ps/replica:0/task:0/device:CPU:0 [as requested]", "# square: (Square): "]
    {
        assert!(result.out.contains(line), "{}", result.out);
    }
    // `anabranch graph` can read its own output, in which the explanations are comments.
    let again = write("explained.txt", result.out.split("\n# /job:").next().unwrap_or_default().as_bytes())?;
    assert_eq!(run(ANABRANCH, &["graph", &again.display().to_string()])?.code, Some(0));
    assert!(at("/job:worker/task:7")?.err.contains("no task"));
    let dot = run(ANABRANCH, &[&placed[..], &["--format", "dot", "--explain"]].concat())?;
    assert!(dot.out.starts_with("// ") && dot.out.matches("digraph {").count() == 2, "{}", dot.out);
    assert!(dot.out.contains("label=\"/job:ps/replica:0/task:0/device:CPU:0\""), "{}", dot.out);
    Ok(())
}

#[test]
fn graph_places_on_gpus_that_this_machine_lacks() -> Fallible {
    let text = "
        x = Const[dtype=float, value=float<2>{1.0, 2.0}]
        any = Const[dtype=int32, value=int32<>{-1}]
        text = Const[dtype=string, value=string<>{\"1\"}]
        number = StringToNumber[out_type=float](text)
        sum = AddV2[T=float](x, number)
        list = EmptyTensorList[element_dtype=float, shape_type=int32](any, any)
        pushed = TensorListPushBack[element_dtype=float](list, sum)
        texts = EmptyTensorList[element_dtype=string, shape_type=int32](any, any)
        length = TensorListLength(texts)
    ";
    let lines: String = text.trim().lines().map(|line| line.trim().to_owned() + "\n").collect();
    let file = write("gpus.txt", lines.as_bytes())?.display().to_string();
    let result = run(ANABRANCH, &["graph", &file, "--cluster", "worker=1:2", "--explain"])?;
    assert_eq!(result.code, Some(0), "{}", result.err);
    for (node, device) in [("sum: (AddV2)", "GPU:0"), ("pushed: (TensorListPushBack)", "GPU:0")]
        .into_iter()
        .filter(|_| cfg!(feature = "cuda"))
        // A list of strings is on the CPU, so its length is computed there.
        .chain([("number: (StringToNumber)", "CPU:0"), ("length: (TensorListLength)", "CPU:0")])
    {
        let line = format!("# {node}: /job:worker/replica:0/task:0/device:{device} ");
        assert!(result.out.contains(&line), "{line}: {}", result.out);
    }
    Ok(())
}

#[test]
fn graph_refuses_input_that_it_cannot_read_or_place() -> Fallible {
    let file = graph_def("refused.pb")?;
    let rubbish = write("rubbish.pb", b"\xff\xfe no graph")?.display().to_string();
    let text = write("rubbish.txt", b"x = Nothing(y")?.display().to_string();
    for (args, expected) in [
        (vec!["graph", "/nowhere/at/all.pb"], "/nowhere/at/all.pb"),
        (vec!["graph", &rubbish], "is no GraphDef"),
        (vec!["graph", &text], "rubbish.txt"),
        (vec!["graph", &file, "--cluster", "ps=1"], "square"),
        (vec!["graph", &file, "--cluster", "ps"], "'ps' is not job=tasks or job=tasks:gpus"),
        (vec!["graph", &file, "--cluster", "ps=1:x"], "'ps=1:x' is not job=tasks or job=tasks:gpus: invalid"),
        (vec!["graph", &file, "--cluster", "ps=1:65"], "more than"),
        (vec!["graph", &file, "--cluster", "ps=4000000000"], "more than"),
        (vec!["graph", &file, "--cluster", ""], "no tasks"),
    ] {
        let result = run(ANABRANCH, &args)?;
        assert_eq!(result.code, Some(1), "{args:?}: {}", result.err);
        assert!(
            result.err.starts_with("anabranch: ") && result.err.contains(expected),
            "{args:?}: {}",
            result.err
        );
        assert!(result.out.is_empty() && !result.err.contains("panicked"), "{args:?}: {}", result.err);
    }
    Ok(())
}

#[test]
fn ops_lists_ops_with_kernels_or_missing_ops() -> Fallible {
    let lines = |args: &[&str]| -> Fallible<Vec<String>> {
        let result = run(ANABRANCH, &[&["ops"], args].concat())?;
        assert_eq!((result.code, &*result.err), (Some(0), ""), "{args:?}");
        Ok(result.out.lines().map(str::to_owned).collect())
    };
    let supported = lines(&[])?;
    assert!(supported.len() > 900 && supported.is_sorted(), "{supported:?}");
    let missing = lines(&["--missing"])?;
    assert!(missing.is_sorted());
    for (op, is_supported) in
        [("MatMul", true), ("Switch", true), ("DeserializeIterator", true), ("PyFunc", false)]
    {
        let is_named = supported.iter().any(|line| line.split('\t').next() == Some(op));
        assert_eq!(is_named, is_supported, "{op}");
        assert_eq!(missing.iter().any(|name| name == op), !is_supported, "{op}");
    }
    // Each line names the devices with a kernel; GPU only if this build has a GPU kernel table.
    let on_gpus = if cfg!(feature = "cuda") { ",GPU" } else { "" };
    assert!(supported.contains(&format!("MatMul\tCPU{on_gpus}")));
    let named = lines(&["QueueDequeueMany"])?;
    assert_eq!(named, ["QueueDequeueMany\tCPU", "QueueDequeueManyV2\tCPU"]);
    assert_eq!(
        lines(&["--missing", "MatMul"])?,
        missing.iter().filter(|n| n.contains("MatMul")).cloned().collect::<Vec<_>>()
    );
    Ok(())
}

#[test]
fn help_names_every_flag() -> Fallible {
    let serve = [
        "--cluster",
        "--job",
        "--task",
        "--ps_hosts",
        "--worker_hosts",
        "TF_CONFIG",
        "--bind",
        "--cpu-devices",
        "--gpus",
        "--gpu-memory-fraction",
        "--gpu-take-all",
        "--gpu-no-tf32",
        "--gpu-no-graphs",
        "--gpu-no-autotune",
    ];
    for (program, args, flags) in [
        (ANABRANCH, &["--help"][..], &["demo", "doctor", "graph", "ops", "run", "worker"][..]),
        (ANABRANCH, &["ops", "--help"], &["--missing"]),
        (
            ANABRANCH,
            &["demo", "--help"],
            &["--model", "--mode", "local", "in-graph", "between-graph", "--steps", "--batch"],
        ),
        (
            ANABRANCH,
            &["graph", "--help"],
            &["--cluster", "--master", "--format", "--explain", "--soft-placement"],
        ),
        (ANABRANCH, &["worker", "--help"], &serve),
        (WORKER, &["--help"], &serve),
        (MASTER, &["--help"], &serve),
    ] {
        let result = run(program, args)?;
        assert_eq!(result.code, Some(0), "{}", result.err);
        for flag in flags {
            assert!(result.out.contains(flag), "{program} {args:?} does not name {flag}: {}", result.out);
        }
    }
    Ok(())
}

#[test]
fn server_reports_missing_or_invalid_flags() -> Fallible {
    for (program, args, expected) in [
        (WORKER, &[][..], "the cluster is not given: set --cluster"),
        (WORKER, &["--cluster", "ps=localhost:1"], "job is not given: set --job"),
        (WORKER, &["--cluster", "ps=localhost:1", "--job", "worker"], "no task /job:worker"),
        (WORKER, &["--cluster", "ps"], "--cluster: "),
        (WORKER, &["--cluster", r#"{"ps": "#], "--cluster: this is not JSON"),
        (WORKER, &["--cluster", r#"{"ps": ["localhost:1"]}"#], "job is not given: set --job"),
        (WORKER, &["--ps_hosts", "nowhere", "--job_name", "ps"], "ps_hosts"),
        (WORKER, &["--cluster", "ps=localhost:1", "--job", "ps", "--stop-grace=-1"], "--stop-grace"),
        (WORKER, &["--tf-config", "{"], "TF_CONFIG"),
        (MASTER, &["--cluster", "ps=localhost:1"], "no task /job:master"),
    ] {
        let result = run(program, args)?;
        assert_eq!(result.code, Some(1), "{args:?}: {}", result.err);
        assert!(
            result.err.contains(expected) && !result.err.contains("panicked"),
            "{args:?}: {}",
            result.err
        );
    }
    let unknown = run(WORKER, &["--no-such-flag"])?;
    assert_eq!(unknown.code, Some(2), "{}", unknown.err);
    Ok(())
}

/// Starts a server, waits until it logs the address on which it listens, and stops it with SIGTERM. Returns its log.
fn log_of_server(command: &mut Command) -> Fallible<String> {
    let mut server = command.env_remove("RUST_LOG").stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let log = BufReader::new(server.stderr.take().ok_or("no log")?);
    let mut log_text = String::new();
    let mut is_stopped = false;
    for line in log.lines() {
        log_text += &line?;
        log_text.push('\n');
        if log_text.contains(" listens on ") && !is_stopped {
            is_stopped = Command::new("kill").arg(server.id().to_string()).status()?.success();
        }
    }
    let status = server.wait()?;
    if is_stopped && status.success() { Ok(log_text) } else { Err(format!("{status}: {log_text}").into()) }
}

#[test]
fn server_finds_its_task_in_flags_or_environment() -> Fallible {
    let (ps, worker) = (free_port()?.to_string(), free_port()?.to_string());
    let expected = format!("/job:worker/replica:0/task:0 listens on {worker}");
    let cluster = format!("ps={ps};worker={worker}");
    let own = log_of_server(Command::new(WORKER).env_remove("TF_CONFIG").args([
        "--cluster",
        &cluster,
        "--job",
        "worker",
        "--task",
        "0",
    ]))?;
    assert!(own.contains(&expected), "{own}");
    let tutorial = log_of_server(Command::new(WORKER).env_remove("TF_CONFIG").args([
        format!("--ps_hosts={ps}"),
        format!("--worker_hosts={worker}"),
        "--job_name=worker".to_owned(),
        "--task_index=0".to_owned(),
    ]))?;
    assert!(tutorial.contains(&expected), "{tutorial}");
    let config = serde_json::json!({
        "cluster": {"ps": [ps], "worker": [worker]},
        "task": {"type": "ps", "index": 0},
    });
    let environment =
        log_of_server(Command::new(ANABRANCH).arg("worker").env("TF_CONFIG", config.to_string()))?;
    assert!(environment.contains("/job:ps/replica:0/task:0 listens on"), "{environment}");
    for (json, task) in [(&config["cluster"], &["--job", "worker"][..]), (&config, &[])] {
        let mut command = Command::new(WORKER);
        let flag =
            log_of_server(command.env_remove("TF_CONFIG").args(["--cluster", &json.to_string()]).args(task))?;
        let job = task.last().unwrap_or(&"ps");
        assert!(flag.contains(&format!("/job:{job}/replica:0/task:0 listens on")), "{flag}");
    }
    // If flags and TF_CONFIG are both given, the flags take precedence.
    let both =
        log_of_server(Command::new(WORKER).env("TF_CONFIG", config.to_string()).args(["--job", "worker"]))?;
    assert!(both.contains(&expected), "{both}");
    Ok(())
}

#[test]
fn port_in_use_is_an_error_with_the_address() -> Fallible {
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?.to_string();
    let result = run(WORKER, &["--cluster", &format!("ps={address}"), "--job", "ps"])?;
    assert_eq!(result.code, Some(1), "{}", result.err);
    assert!(result.err.contains(&address) && result.err.contains("cannot listen"), "{}", result.err);
    Ok(())
}

#[test]
fn closed_output_pipe_is_no_failure() -> Fallible {
    let scope = Scope::new();
    for i in 0..20_000 {
        scope.op("NoOp").name(&format!("n{i}")).node();
    }
    let bytes = graph_to_proto(&scope.finish()?, DefaultAttrs::Keep)?.encode_to_vec();
    let file = write("long.pb", &bytes)?;
    let mut command = Command::new(ANABRANCH);
    let mut printing =
        command.arg("graph").arg(file).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    drop(printing.stdout.take());
    let result = result_of(printing.wait_with_output()?)?;
    assert_eq!((result.code, &*result.err), (Some(0), ""));
    Ok(())
}

#[test]
fn run_avoids_the_folder_of_an_earlier_process() -> Fallible {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("left-behind");
    fs::create_dir_all(&folder)?;
    // The script creates the folder that an earlier process with the same process id would have left behind.
    let script = "mkdir -p \"$TMPDIR/anabranch-run-$$-0\"; exec \"$0\" run -- sh -c 'echo $PYTHONPATH'";
    let mut command = Command::new("sh");
    let ran =
        command.args(["-c", script, ANABRANCH]).env("TMPDIR", &folder).env_remove("PYTHONPATH").output()?;
    let result = result_of(ran)?;
    assert_eq!((result.code, &*result.err), (Some(0), ""));
    assert!(result.out.trim_end().ends_with("-1"), "{}", result.out);
    assert!(!Path::new(result.out.trim_end()).exists(), "{}", result.out);
    fs::remove_dir_all(folder)?;
    Ok(())
}

#[test]
fn separate_master_runs_steps_on_the_other_tasks() -> Fallible {
    let mut cluster = Cluster::start(&[("master", 1), ("ps", 1), ("worker", 1)])?;
    let scope = Scope::new();
    let ps = scope.device("/job:ps");
    let w = ps
        .op("VarHandleOp")
        .name("w")
        .attr("dtype", DType::Float)
        .attr("shape", PartialShape::from([0usize; 0]));
    let w = w.output();
    let assign =
        ps.op("AssignVariableOp").input(w).input(ps.constant(3.0f32)).attr("dtype", DType::Float).node();
    let read = ps.op("ReadVariableOp").name("read").input(w).attr("dtype", DType::Float).output();
    let square = scope.device("/job:worker").square(read);
    // A node without constraints runs on the master's own task.
    let anywhere = scope.op("Neg").name("anywhere").input(square).output();
    let session = Session::connect(&cluster.target("master", 0), scope.finish()?, SessionOptions::default())?;
    session.run(&[], &[], &[assign])?;
    let options = pb::RunOptions { output_partition_graphs: true, ..Default::default() };
    let step = session.step().fetch(anywhere).options(options).run()?;
    assert_eq!(step.values[0].item::<f32>()?, -9.0);
    let parts = step.metadata.ok_or("no metadata")?.partition_graphs;
    for (node, job) in [("read", "ps"), ("Square", "worker"), ("anywhere", "master")] {
        let found = parts.iter().flat_map(|part| &part.node).find(|n| n.name == node);
        let device = &found.ok_or_else(|| format!("no node {node}"))?.device;
        assert_eq!(*device, format!("/job:{job}/replica:0/task:0/device:CPU:0"), "{node}");
    }
    session.close()?;
    for job in ["worker", "ps", "master"] {
        assert!(cluster.stop(job, 0)?.success(), "{job}");
    }
    Ok(())
}
