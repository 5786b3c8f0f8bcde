//! Bad input, lost processes and impatient clients, on real servers: each gets the documented code by a deadline,
//! and the server's next step works.

mod support;

use anabranch::graph::Tensor;
use anabranch::proto::convert::tensor_to_proto;
use anabranch::proto::pb;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use support::Fallible;
use support::cluster::Cluster;
use support::rpc::{
    LONG, Rpc, assert_fails, attr, binary, constant, def, dtype, endless, in_body, node, on, placeholder,
    shape, splat, step, tensor, text, unary,
};
use tonic::Code;

const FLOAT: pb::DataType = pb::DataType::DtFloat;
const WORKER: &str = "/job:worker/replica:0/task:0";
const PS: &str = "/job:ps/replica:0/task:0";

/// What a failure that nobody has to wait for may take.
const SOON: Duration = Duration::from_secs(2);

fn cpu(task: &str) -> String {
    format!("{task}/device:CPU:0")
}

/// One worker by itself.
async fn single() -> Fallible<(Cluster, Rpc)> {
    let cluster = Cluster::start(&[("worker", 1)])?;
    let rpc = Rpc::connect(&cluster, "worker", 0).await?;
    Ok((cluster, rpc))
}

/// A parameter server, and a worker that gives up early on tasks that are not there.
async fn pair() -> Fallible<(Cluster, Rpc)> {
    let cluster = Cluster::start_with(&[("ps", 1), ("worker", 1)], &["--connect-deadline", "1"])?;
    let rpc = Rpc::connect(&cluster, "worker", 0).await?;
    Ok((cluster, rpc))
}

/// A session with a counter on the parameter server, and that it counts.
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

/// A step that counts and then never ends.
fn run_endless(rpc: &Rpc, session: &str) -> Running {
    let (rpc, request) = (rpc.clone(), step(session, &[], &["endless:0"], &["count"]));
    tokio::spawn(async move { rpc.run_step(request).await })
}

/// Waits until the counter of [`counter`] is so far.
async fn until_counted(rpc: &Rpc, session: &str, wanted: f32) -> Fallible {
    let wanted = Some(tensor_to_proto(&Tensor::scalar(wanted)));
    let deadline = Instant::now() + LONG;
    loop {
        let read = rpc.run_step(step(session, &[], &["here:0"], &[])).await?;
        if read.first().is_some_and(|t| t.tensor == wanted) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("the counter is {read:?}, not {wanted:?}").into());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_graphs_are_refused_by_node() -> Fallible {
    let (_cluster, rpc) = single().await?;
    let bad_attr = |name: &str, value: pb::AttrValue| {
        let mut sum = binary("sum", "AddV2", "a", "a");
        sum.attr.insert(name.to_owned(), value);
        def([constant("a", 1.0), sum])
    };
    let without = |name: &str| {
        let mut sum = binary("sum", "AddV2", "a", "a");
        sum.attr.remove(name);
        def([placeholder("p"), sum])
    };
    let matrix = |name: &str, dims: &[i64]| splat(name, dims);
    let ints = Tensor::vector(&[1i32, 2])?;
    let matmul = node("product", "MatMul", &["a", "b"], &[("T", dtype(FLOAT))]);
    let half_const = node("a", "Const", &[], &[("dtype", dtype(FLOAT))]);
    let typed_const = {
        let mut other = constant("a", 1.0);
        other.attr.insert("dtype".into(), dtype(pb::DataType::DtInt32));
        other
    };
    let cases = [
        (
            "a cycle of two",
            def([unary("x", "Neg", "y"), unary("y", "Neg", "x")]),
            Code::InvalidArgument,
            &["cycle", "x"][..],
        ),
        ("a node that reads itself", def([unary("x", "Neg", "x")]), Code::InvalidArgument, &["x"]),
        (
            "a cycle by control",
            def([unary("x", "Neg", "p"), node("p", "Placeholder", &["^x"], &[("dtype", dtype(FLOAT))])]),
            Code::InvalidArgument,
            &["cycle"],
        ),
        (
            "an unknown op",
            def([node("n", "NoSuchOp", &[], &[])]),
            Code::NotFound,
            &["Op type not registered 'NoSuchOp'", "n"],
        ),
        (
            "an unknown input",
            def([unary("a", "Neg", "b")]),
            Code::InvalidArgument,
            &["Node 'a': Unknown input node 'b'"],
        ),
        (
            "an unknown control input",
            def([node("a", "NoOp", &["^b"], &[])]),
            Code::InvalidArgument,
            &["a", "b"],
        ),
        (
            "an output that is not there",
            def([constant("a", 1.0), unary("b", "Neg", "a:1")]),
            Code::InvalidArgument,
            &["b", "a"],
        ),
        (
            "a number beyond all numbers",
            def([constant("a", 1.0), unary("b", "Neg", "a:99999999999999999999")]),
            Code::InvalidArgument,
            &["b"],
        ),
        ("one name twice", def([constant("a", 1.0), constant("a", 2.0)]), Code::InvalidArgument, &["'a'"]),
        ("no name", def([constant("", 1.0)]), Code::InvalidArgument, &[]),
        ("a malformed name", def([constant("a b", 1.0)]), Code::InvalidArgument, &["a b"]),
        (
            "too few inputs",
            def([constant("a", 1.0), node("n", "AddV2", &["a"], &[("T", dtype(FLOAT))])]),
            Code::InvalidArgument,
            &["n"],
        ),
        (
            "too many inputs",
            def([constant("a", 1.0), node("n", "Neg", &["a", "a"], &[("T", dtype(FLOAT))])]),
            Code::InvalidArgument,
            &["n"],
        ),
        (
            "inputs of two types",
            def([constant("a", 1.0), tensor("i", &ints), binary("n", "AddV2", "a", "i")]),
            Code::InvalidArgument,
            &["n"],
        ),
        (
            "an attribute of the wrong kind",
            bad_attr("T", text("float")),
            Code::InvalidArgument,
            &["sum", "T"],
        ),
        (
            "a type that the op does not take",
            bad_attr("T", dtype(pb::DataType::DtBool)),
            Code::InvalidArgument,
            &["sum", "T"],
        ),
        (
            "a type that is none",
            bad_attr("T", attr(pb::attr_value::Value::Type(4711))),
            Code::InvalidArgument,
            &["sum", "T"],
        ),
        ("a missing attribute", without("T"), Code::InvalidArgument, &["sum"]),
        ("a constant without a value", def([half_const]), Code::InvalidArgument, &["a", "value"]),
        ("a constant of another type", def([typed_const]), Code::InvalidArgument, &["a"]),
        (
            "shapes that do not fit",
            def([matrix("a", &[2, 3]), matrix("b", &[2, 3]), matmul]),
            Code::InvalidArgument,
            &["product"],
        ),
        (
            "a malformed device",
            def([on("/job:!!", constant("a", 1.0))]),
            Code::InvalidArgument,
            &["Malformed device specification '/job:!!'", "a"],
        ),
        (
            "a task that is not there",
            def([on("/job:worker/task:7", constant("a", 1.0))]),
            Code::InvalidArgument,
            &["a", "/job:worker/task:7"],
        ),
        (
            "a device that is not there",
            def([on("/device:GPU:3", constant("a", 1.0))]),
            Code::InvalidArgument,
            &["a", "GPU:3"],
        ),
        (
            "colocation with nobody",
            def([node(
                "a",
                "NoOp",
                &[],
                &[(
                    "_class",
                    attr(pb::attr_value::Value::List(pb::attr_value::ListValue {
                        s: vec![b"loc:@nobody".to_vec().into()],
                        ..Default::default()
                    })),
                )],
            )]),
            Code::InvalidArgument,
            &["a", "nobody"],
        ),
        (
            "a graph of the far future",
            pb::GraphDef {
                versions: Some(pb::VersionDef {
                    producer: 1 << 30,
                    min_consumer: 1 << 30,
                    bad_consumers: vec![],
                }),
                ..def([constant("a", 1.0)])
            },
            Code::InvalidArgument,
            &[],
        ),
    ];
    let mut wrong = Vec::new();
    for (what, graph, code, parts) in cases {
        match rpc.create_session(graph.clone()).await {
            Ok(_) => wrong.push(format!("{what}: accepted")),
            Err(s) if s.code() != code || parts.iter().any(|p| !s.message().contains(p)) => {
                wrong.push(format!("{what}: {code:?} {parts:?}, got {:?} {}", s.code(), s.message()));
            }
            Err(_) => {}
        }
        // As an extension the same is refused, and the session is as it was.
        let session = rpc.create_session(def([constant("before", 3.0)])).await?;
        let extend = pb::ExtendSessionRequest {
            session_handle: session.clone(),
            graph_def: Some(graph),
            current_graph_version: 0,
        };
        match rpc.master.clone().extend_session(extend).await {
            Ok(_) => wrong.push(format!("{what}: accepted as an extension")),
            Err(s) if s.code() != code => {
                wrong.push(format!("{what}: as an extension {:?} {}", s.code(), s.message()));
            }
            Err(_) => {}
        }
        rpc.run_step(step(&session, &[], &["before:0"], &[])).await?;
        rpc.close_session(&session).await?;
        rpc.check_well().await?;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Sizes that are stated but not there take no memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sizes_are_checked_before_memory_is_taken() -> Fallible {
    let (cluster, rpc) = single().await?;
    rpc.check_well().await?;
    let before = cluster.resident("worker", 0)?;
    let vast: &[i64] = &[1 << 40];
    let mut wrong = Vec::new();
    for dims in [vast, &[1 << 32, 1 << 32], &[i64::MAX], &[1 << 62, 4], &[-2], &[-1], &[1 << 20, 0, -5]] {
        match rpc.create_session(def([splat("c", dims)])).await {
            Ok(_) => wrong.push(format!("a constant {dims:?}: accepted")),
            Err(s) if !matches!(s.code(), Code::InvalidArgument | Code::ResourceExhausted) => {
                wrong.push(format!("a constant {dims:?}: {:?} {}", s.code(), s.message()));
            }
            Err(s) if !s.message().contains('c') => wrong.push(format!("{dims:?}: {}", s.message())),
            Err(_) => {}
        }
    }
    let long = |values: &[i64]| Tensor::vector(values);
    let index = ("Tidx", dtype(pb::DataType::DtInt64));
    let fill = |dims: &[i64]| -> Fallible<pb::GraphDef> {
        let attrs = [("T", dtype(FLOAT)), ("index_type", dtype(pb::DataType::DtInt64))];
        Ok(def([tensor("d", &long(dims)?), constant("v", 1.0), node("n", "Fill", &["d", "v"], &attrs)]))
    };
    let range = |from: i64, to: i64, by: i64| {
        let ends = [("a", from), ("b", to), ("s", by)].map(|(name, v)| tensor(name, &Tensor::scalar(v)));
        let mut nodes = ends.to_vec();
        nodes.push(node("n", "Range", &["a", "b", "s"], std::slice::from_ref(&index)));
        def(nodes)
    };
    let tile = |times: &[i64]| -> Fallible<pb::GraphDef> {
        let attrs = [("T", dtype(FLOAT)), ("Tmultiples", dtype(pb::DataType::DtInt64))];
        let x = splat("x", &vec![2; times.len()]);
        Ok(def([x, tensor("m", &long(times)?), node("n", "Tile", &["x", "m"], &attrs)]))
    };
    let random = |dims: &[i64]| -> Fallible<pb::GraphDef> {
        let attrs = [("dtype", dtype(FLOAT)), ("T", dtype(pb::DataType::DtInt64))];
        Ok(def([tensor("d", &long(dims)?), node("n", "RandomUniform", &["d"], &attrs)]))
    };
    let reshape = |dims: &[i64]| -> Fallible<pb::GraphDef> {
        let attrs = [("T", dtype(FLOAT)), ("Tshape", dtype(pb::DataType::DtInt64))];
        Ok(def([splat("x", &[4]), tensor("d", &long(dims)?), node("n", "Reshape", &["x", "d"], &attrs)]))
    };
    let graphs = [
        ("fill", fill(vast)?),
        ("fill beyond 64 bits", fill(&[1 << 40, 1 << 40])?),
        ("fill of negative size", fill(&[-4])?),
        ("range", range(0, 1 << 40, 1)),
        ("range without end", range(0, 10, 0)),
        ("range over all numbers", range(i64::MIN, i64::MAX, 1)),
        ("tile", tile(vast)?),
        ("tile beyond 64 bits", tile(&[1 << 40, 1 << 40])?),
        ("tile of negative size", tile(&[-1])?),
        ("random", random(vast)?),
        ("random of negative size", random(&[-1])?),
        ("reshape", reshape(vast)?),
        ("reshape with two unknowns", reshape(&[-1, -1])?),
    ];
    for (what, graph) in graphs {
        // Some are refused at once: shapes are inferred before anything runs.
        let failure = match rpc.create_session(graph).await {
            Err(status) => status,
            Ok(session) => {
                let run = in_body(step(&session, &[], &["n:0"], &[]));
                let reply = rpc.run_step(run).await;
                rpc.close_session(&session).await?;
                match reply {
                    Ok(_) => {
                        wrong.push(format!("{what}: done"));
                        continue;
                    }
                    Err(status) => status,
                }
            }
        };
        let code = failure.code();
        if !matches!(code, Code::InvalidArgument | Code::ResourceExhausted)
            || !failure.message().contains('n')
        {
            wrong.push(format!("{what}: {code:?} {}", failure.message()));
        }
    }
    // A feed of which the elements are missing.
    let session = rpc.create_session(def([placeholder("p"), unary("n", "Neg", "p")])).await?;
    for dims in [vast, &[-3], &[1 << 40, 1 << 40]] {
        let mut run = step(&session, &[("p:0", Tensor::scalar(1f32))], &["n:0"], &[]);
        for feed in &mut run.feed {
            feed.tensor.get_or_insert_default().tensor_shape = Some(shape(dims));
        }
        match rpc.run_step(run).await {
            Err(s) if matches!(s.code(), Code::InvalidArgument | Code::ResourceExhausted) => {}
            other => wrong.push(format!("a feed {dims:?}: {other:?}")),
        }
    }
    rpc.check_well().await?;
    let grown = cluster.resident("worker", 0)?.saturating_sub(before);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(grown < 64 << 20, "{grown} bytes more than before");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rubbish_on_the_port_harms_nobody() -> Fallible {
    let (mut cluster, rpc) = single().await?;
    let graph = def([constant("a", 1.0), unary("b", "Neg", "a")]);
    let create = pb::CreateSessionRequest { graph_def: Some(graph), ..Default::default() };
    let message = prost::Message::encode_to_vec(&create);
    for path in [
        "/tensorflow.MasterService/CreateSession",
        "/tensorflow.MasterService/RunStep",
        "/tensorflow.WorkerService/RegisterGraph",
        "/tensorflow.WorkerService/RunGraph",
        "/tensorflow.WorkerService/RecvTensor",
    ] {
        for len in [1, message.len() / 3, message.len() / 2, message.len() - 1] {
            let failure = rpc.call_bytes(path, &message[..len]).await.err().ok_or("it was accepted")?;
            assert!(
                matches!(failure.code(), Code::Internal | Code::InvalidArgument | Code::Aborted),
                "{path} of {len} bytes: {failure:?}"
            );
        }
    }
    let unknown = rpc.call_bytes("/tensorflow.MasterService/Nothing", &[]).await;
    assert_fails(unknown, Code::Unimplemented, &[]);
    rpc.check_well().await?;

    // Connections that speak something else: each is closed, or ignored, while others work.
    let mut noise = vec![0u8; 4096];
    let mut state = 1u64;
    for byte in &mut noise {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *byte = (state >> 56) as u8;
    }
    let http1 = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let bad_frame = [preface.clone(), vec![0xff; 64]].concat();
    let mut open = Vec::new();
    for bytes in [noise, http1, preface[..9].to_vec(), bad_frame, Vec::new()] {
        let mut stream = TcpStream::connect(cluster.address("worker", 0))?;
        stream.set_read_timeout(Some(Duration::from_millis(200)))?;
        stream.write_all(&bytes)?;
        // What it answers, if anything, is of no interest.
        let _ = stream.read(&mut [0; 1024]);
        open.push(stream);
        rpc.check_well().await?;
    }
    assert!(cluster.is_running("worker", 0)?);
    // Open connections of clients that say nothing do not keep a server from stopping.
    let start = Instant::now();
    assert!(cluster.stop("worker", 0)?.success());
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    drop(open);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_sessions_of_the_master() -> Fallible {
    let (_cluster, rpc) = single().await?;
    let text = "Session zz is not found.";
    let run = step("zz", &[], &["a:0"], &[]);
    assert_eq!(assert_fails(rpc.run_step(run.clone()).await, Code::Aborted, &[]), text);
    assert_eq!(assert_fails(rpc.run_step(in_body(run)).await, Code::Aborted, &[]), text);
    let extend = pb::ExtendSessionRequest { session_handle: "zz".into(), ..Default::default() };
    assert_eq!(assert_fails(rpc.master.clone().extend_session(extend).await, Code::Aborted, &[]), text);
    let restarted = "Session zz is not found. Possibly, this master has restarted.";
    assert_eq!(assert_fails(rpc.close_session("zz").await, Code::Aborted, &[]), restarted);
    let list = pb::ListDevicesRequest { session_handle: "zz".into() };
    let listed = rpc.master.clone().list_devices(list).await;
    assert_eq!(assert_fails(listed, Code::InvalidArgument, &[]), restarted);
    let partial = pb::RunStepRequest { partial_run_handle: "7".into(), ..step("zz", &[], &["a:0"], &[]) };
    let unprepared = "Must run PartialRunSetup before performing partial runs";
    assert_eq!(assert_fails(rpc.run_step(partial).await, Code::InvalidArgument, &[]), unprepared);
    rpc.check_well().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_that_ask_for_what_is_not_there() -> Fallible {
    let (_cluster, rpc) = single().await?;
    let graph = def([placeholder("p"), constant("a", 1.0), unary("n", "Neg", "p")]);
    let session = rpc.create_session(graph).await?;
    let one = || Tensor::scalar(1f32);
    let cases: [(pb::RunStepRequest, Code, &str); 11] = [
        (
            step(&session, &[], &[], &[]),
            Code::InvalidArgument,
            "Must specify at least one target to fetch or execute.",
        ),
        (step(&session, &[], &["x:0"], &[]), Code::NotFound, "FetchOutputs node x:0: not found"),
        (step(&session, &[], &["x"], &[]), Code::NotFound, "FetchOutputs node x:0: not found"),
        (
            step(&session, &[], &["a:1"], &[]),
            Code::InvalidArgument,
            "FetchOutputs a:1: output index too large, must be < 1",
        ),
        (
            step(&session, &[], &[], &["x"]),
            Code::NotFound,
            "PruneForTargets: Some target nodes not found: x ",
        ),
        (
            step(&session, &[("x:0", one())], &["a:0"], &[]),
            Code::NotFound,
            "FeedInputs: unable to find feed output x:0",
        ),
        (
            step(&session, &[("p:3", one())], &["n:0"], &[]),
            Code::InvalidArgument,
            "FeedInputs: p:3 should have output index < 1",
        ),
        (
            step(&session, &[("p:0", one()), ("p:0", one())], &["n:0"], &[]),
            Code::InvalidArgument,
            "Endpoint \"p:0\" fed more than once.",
        ),
        (
            step(&session, &[("p:0", one()), ("p", one())], &["n:0"], &[]),
            Code::InvalidArgument,
            "Endpoint \"p:0\" fed more than once.",
        ),
        (
            step(&session, &[("p:0", one())], &["p:0"], &[]),
            Code::InvalidArgument,
            "p:0 is both fed and fetched.",
        ),
        (
            step(&session, &[], &["n:0"], &[]),
            Code::InvalidArgument,
            "You must feed a value for placeholder tensor 'p' with dtype float\n\t [[{{node p}}]]",
        ),
    ];
    let mut wrong = Vec::new();
    for (request, code, text) in cases {
        for request in [request.clone(), in_body(request)] {
            match rpc.run_step(request).await {
                Err(s) if s.code() == code && s.message() == text => {}
                other => wrong.push(format!("{code:?} {text}\n got {other:?}")),
            }
        }
    }
    // A fed value of another type.
    let ints = step(&session, &[("p:0", Tensor::scalar(1i32))], &["n:0"], &[]);
    match rpc.run_step(ints).await {
        Err(s) if s.code() == Code::InvalidArgument && s.message().contains('p') => {}
        other => wrong.push(format!("an int32 for a float: {other:?}")),
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // The session has taken no harm.
    rpc.run_step(step(&session, &[("p", one())], &["n"], &[])).await?;
    let stale = pb::ExtendSessionRequest {
        session_handle: session.clone(),
        graph_def: Some(def([constant("b", 1.0)])),
        current_graph_version: 3,
    };
    let text = "Current version is 0 but caller expected 3.";
    assert_eq!(assert_fails(rpc.master.clone().extend_session(stale).await, Code::Aborted, &[]), text);
    let again = pb::ExtendSessionRequest {
        session_handle: session.clone(),
        graph_def: Some(def([constant("a", 1.0)])),
        current_graph_version: 0,
    };
    let text = "GraphDef argument to Extend includes node 'a', which was created by a previous call to Create or \
                Extend in this session.";
    assert_eq!(
        assert_fails(rpc.master.clone().extend_session(again).await, Code::InvalidArgument, &[]),
        text
    );
    let threads = pb::CreateSessionRequest {
        config: Some(pb::ConfigProto { use_per_session_threads: true, ..Default::default() }),
        ..Default::default()
    };
    let text = "Distributed session does not support session thread pool options.";
    let refused = rpc.master.clone().create_session(threads).await;
    assert_eq!(assert_fails(refused, Code::InvalidArgument, &[]), text);
    rpc.run_step(step(&session, &[("p", one())], &["n"], &[])).await?;
    rpc.close_session(&session).await?;
    rpc.check_well().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_handles_of_the_worker() -> Fallible {
    let (_cluster, rpc) = single().await?;
    let mut worker = rpc.worker.clone();
    let lost =
        format!("Session handle is not found: zz. Possibly this worker (\"{WORKER}\") just restarted.");
    let register = |session: &str| pb::RegisterGraphRequest {
        session_handle: session.into(),
        create_worker_session_called: true,
        graph_def: Some(def([on(&cpu(WORKER), constant("a", 1.0))])),
        ..Default::default()
    };
    assert_eq!(assert_fails(worker.register_graph(register("zz")).await, Code::Aborted, &[]), lost);
    let run = pb::RunGraphRequest {
        session_handle: "zz".into(),
        create_worker_session_called: true,
        graph_handle: "g".into(),
        step_id: 1,
        ..Default::default()
    };
    assert_eq!(assert_fails(worker.run_graph(run.clone()).await, Code::Aborted, &[]), lost);
    let body = pb::RunGraphRequest { store_errors_in_response_body: true, ..run.clone() };
    let body = worker.run_graph(body).await?.into_inner();
    assert_eq!((body.status_code, body.status_error_message), (Code::Aborted as i32, lost.clone()));

    let create = |session: &str| pb::CreateWorkerSessionRequest {
        session_handle: session.into(),
        ..Default::default()
    };
    let empty = worker.create_worker_session(create("")).await;
    assert_eq!(assert_fails(empty, Code::InvalidArgument, &[]), "Session must be non-empty.");
    worker.create_worker_session(create("s")).await?;
    worker.create_worker_session(create("s")).await?;
    let known = pb::RunGraphRequest { session_handle: "s".into(), ..run };
    let unknown = worker.run_graph(known.clone()).await;
    assert_eq!(assert_fails(unknown, Code::Aborted, &[]), "Graph handle is not found: g");
    let deregister = pb::DeregisterGraphRequest {
        session_handle: "s".into(),
        graph_handle: "g".into(),
        create_worker_session_called: true,
    };
    let text = "Graph handle is not found: g. Possibly, this worker just restarted.";
    assert_eq!(assert_fails(worker.deregister_graph(deregister).await, Code::Aborted, &[]), text);

    // Parts that are not placed, or not here.
    for device in ["", "/job:ps/replica:0/task:0/device:CPU:0", "nonsense"] {
        let mut request = register("s");
        request.graph_def = Some(def([on(device, constant("a", 1.0))]));
        assert_fails(worker.register_graph(request).await, Code::InvalidArgument, &["a"]);
    }

    let handle = worker.register_graph(register("s")).await?.into_inner().graph_handle;
    let known = pb::RunGraphRequest { graph_handle: handle, request_id: 99, ..known };
    worker.run_graph(known.clone()).await?;
    let twice = worker.run_graph(known).await;
    assert_fails(twice, Code::Aborted, &["The same RunGraph (Worker) request was received twice. "]);

    let delete = pb::DeleteWorkerSessionRequest { session_handle: "nobody".into() };
    worker.delete_worker_session(delete).await?;
    worker.cleanup_graph(pb::CleanupGraphRequest { step_id: 4711 }).await?;
    rpc.check_well().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tensors_that_cannot_be_received() -> Fallible {
    let (_cluster, rpc) = single().await?;
    let mut worker = rpc.worker.clone();
    let receive = |key: &str| pb::RecvTensorRequest {
        step_id: 5,
        rendezvous_key: key.to_owned(),
        ..Default::default()
    };
    for key in ["", "a;b", "a;xyz;b;c;0:0", ";1;b;c;0:0"] {
        let text = format!("Invalid  rendezvous key: {key}");
        let failed = assert_fails(worker.recv_tensor(receive(key)).await, Code::InvalidArgument, &[]);
        assert_eq!(failed, text);
    }
    let here = cpu(WORKER);
    let gpu = format!("{WORKER}/device:GPU:0;0000000000000001;{here};edge;0:0");
    let failed = assert_fails(worker.recv_tensor(receive(&gpu)).await, Code::InvalidArgument, &[]);
    assert_eq!(failed, "/device:GPU:0 unknown device.");
    let devices = worker.get_status(pb::GetStatusRequest {}).await?.into_inner().device_attributes;
    let incarnation = devices.first().ok_or("no device")?.incarnation;
    let other = incarnation ^ 1;
    let stale = format!("{here};{other:016x};{here};edge;0:0");
    let status = worker.recv_tensor(receive(&stale)).await.err().ok_or("it came")?;
    let text = format!(
        "RecvTensor expects a different device incarnation: {other} vs. {incarnation}. Your worker job \
         (\"{WORKER}\") was probably restarted. Check your worker job for the reason why it was restarted."
    );
    assert_eq!((status.code(), status.message()), (Code::Aborted, text.as_str()));
    let details = status.details();
    let wanted = anabranch::proto::WORKER_POSSIBLY_RESTARTED.as_bytes();
    assert!(details.windows(wanted.len()).any(|w| w == wanted), "{details:?}");

    // For a step that never runs, the caller's patience decides; the step's end does, too.
    let key = format!("{here};{incarnation:016x};{here};edge;0:0");
    let mut impatient = tonic::Request::new(receive(&key));
    impatient.set_timeout(Duration::from_millis(50));
    let start = Instant::now();
    let given_up = worker.recv_tensor(impatient).await.err().ok_or("it came")?;
    assert!(matches!(given_up.code(), Code::Cancelled | Code::DeadlineExceeded), "{given_up:?}");
    let waiting = tokio::spawn({
        let (mut worker, request) = (worker.clone(), receive(&key));
        async move { worker.recv_tensor(request).await }
    });
    while !waiting.is_finished() {
        worker.cleanup_graph(pb::CleanupGraphRequest { step_id: 5 }).await?;
    }
    assert_fails(waiting.await?, Code::Aborted, &["5"]);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    let once = pb::RecvTensorRequest { step_id: 5, request_id: 8, ..receive(&key) };
    assert_fails(worker.recv_tensor(once.clone()).await, Code::Aborted, &["Step 5"]);
    let twice = worker.recv_tensor(once).await;
    assert_fails(twice, Code::Aborted, &["The same RecvTensor (GrpcWorker) request was received twice. "]);
    rpc.check_well().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_step_runs_once() -> Fallible {
    let (_cluster, rpc) = pair().await?;
    let session = rpc.create_session(def(counter())).await?;
    rpc.run_step(step(&session, &[], &[], &["init"])).await?;
    let count = pb::RunStepRequest { request_id: 77, ..step(&session, &[], &[], &["count"]) };
    rpc.run_step(count.clone()).await?;
    for repeat in [count.clone(), in_body(count)] {
        let text = "The same RunStep (Master) request was received twice. ";
        assert_fails(rpc.run_step(repeat).await, Code::Aborted, &[text]);
    }
    let value = rpc.run_step(step(&session, &[], &["here:0"], &[])).await?;
    assert_eq!(value[0].tensor, Some(tensor_to_proto(&Tensor::scalar(2f32))));
    rpc.close_session(&session).await?;
    rpc.check_well().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_dies_in_a_step_is_named_at_once() -> Fallible {
    let (mut cluster, rpc) = pair().await?;
    let session = rpc.create_session(def(counter())).await?;
    rpc.run_step(step(&session, &[], &[], &["init"])).await?;
    let address = cluster.address("ps", 0).to_string();
    let running = run_endless(&rpc, &session);
    until_counted(&rpc, &session, 2.0).await?;
    assert!(!running.is_finished());
    let start = Instant::now();
    cluster.kill("ps", 0)?;
    assert_fails(running.await?, Code::Unavailable, &[PS, &address]);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());

    // A step to the dead one: refused by name, within the deadline for connecting.
    let start = Instant::now();
    let failed = rpc.run_step(in_body(step(&session, &[], &[], &["count"]))).await;
    assert_fails(failed, Code::Unavailable, &[PS, &address]);
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    let start = Instant::now();
    assert_fails(rpc.create_session(def([constant("a", 1.0)])).await, Code::Unavailable, &[PS, &address]);
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    // The session's end does not wait for the dead.
    let start = Instant::now();
    rpc.close_session(&session).await?;
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());

    // Without the dead one, sessions work.
    let filters = pb::ConfigProto { device_filters: vec!["/job:worker".into()], ..Default::default() };
    let request = pb::CreateSessionRequest {
        graph_def: Some(def([constant("a", 1.0)])),
        config: Some(filters),
        ..Default::default()
    };
    let session = rpc.master.clone().create_session(request).await?.into_inner().session_handle;
    rpc.run_step(step(&session, &[], &["a:0"], &[])).await?;
    rpc.close_session(&session).await?;

    // And with it, once it is back.
    cluster.spawn("ps", 0)?;
    cluster.wait_until_listening("ps", 0)?;
    rpc.check_well().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_task_has_forgotten() -> Fallible {
    let (mut cluster, rpc) = pair().await?;
    let session = rpc.create_session(def(counter())).await?;
    rpc.run_step(step(&session, &[], &[], &["init"])).await?;
    rpc.run_step(step(&session, &[], &["here:0"], &["count"])).await?;
    cluster.kill("ps", 0)?;
    cluster.spawn("ps", 0)?;
    cluster.wait_until_listening("ps", 0)?;
    for request in [
        step(&session, &[], &[], &["init"]),
        step(&session, &[], &["here:0"], &["count"]),
        in_body(step(&session, &[], &["here:0"], &[])),
    ] {
        assert_fails(rpc.run_step(request).await, Code::Aborted, &["restarted"]);
    }
    let fresh = rpc.create_session(def(counter())).await?;
    let uninitialised = rpc.run_step(step(&fresh, &[], &["here:0"], &[])).await;
    assert_fails(
        uninitialised,
        Code::FailedPrecondition,
        &["Attempting to use uninitialized value v", "{{node "],
    );
    rpc.run_step(step(&fresh, &[], &[], &["init"])).await?;
    rpc.run_step(step(&fresh, &[], &["here:0"], &["count"])).await?;
    rpc.close_session(&session).await?;
    rpc.close_session(&fresh).await?;
    rpc.check_well().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_never_came_is_named() -> Fallible {
    let mut cluster = Cluster::reserve(&[("ps", 2), ("worker", 1)])?;
    cluster.flag("--connect-deadline=0.5");
    cluster.spawn("worker", 0)?;
    cluster.wait_until_listening("worker", 0)?;
    let rpc = Rpc::connect(&cluster, "worker", 0).await?;
    let (first, second) = (cluster.address("ps", 0).to_string(), cluster.address("ps", 1).to_string());
    let start = Instant::now();
    let both = [PS, first.as_str(), "/job:ps/replica:0/task:1", second.as_str()];
    assert_fails(rpc.create_session(def([constant("a", 1.0)])).await, Code::Unavailable, &both);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    let all = pb::ListDevicesRequest::default();
    assert_fails(rpc.master.clone().list_devices(all).await, Code::Unavailable, &both);
    for index in 0..2 {
        cluster.spawn("ps", index)?;
        cluster.wait_until_listening("ps", index)?;
    }
    rpc.check_well().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_server_stops_at_once() -> Fallible {
    let (mut cluster, rpc) = pair().await?;
    rpc.check_well().await?;
    // A session and a connection stay open.
    rpc.create_session(def(counter())).await?;
    let start = Instant::now();
    assert!(cluster.stop("worker", 0)?.success());
    assert!(cluster.stop("ps", 0)?.success());
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    for job in ["worker", "ps"] {
        cluster.spawn(job, 0)?;
        cluster.wait_until_listening(job, 0)?;
    }
    Rpc::connect(&cluster, "worker", 0).await?.check_well().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_ends_steps_by_name() -> Fallible {
    let mut cluster = Cluster::start_with(&[("ps", 1), ("worker", 1)], &["--stop-grace", "0.3"])?;
    let rpc = Rpc::connect(&cluster, "worker", 0).await?;
    // First the process that runs the step, then the one that is its master.
    for job in ["ps", "worker"] {
        let session = rpc.create_session(def(counter())).await?;
        rpc.run_step(step(&session, &[], &[], &["init"])).await?;
        let running = run_endless(&rpc, &session);
        until_counted(&rpc, &session, 2.0).await?;
        let start = Instant::now();
        assert!(cluster.stop(job, 0)?.success());
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
        let task = format!("/job:{job}/replica:0/task:0");
        assert_fails(running.await?, Code::Unavailable, &[&task, "is shutting down"]);
        cluster.spawn(job, 0)?;
        cluster.wait_until_listening(job, 0)?;
    }
    Rpc::connect(&cluster, "worker", 0).await?.check_well().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_session_takes_its_steps_along_and_no_others() -> Fallible {
    let (_cluster, rpc) = pair().await?;
    let (first, second) =
        (rpc.create_session(def(counter())).await?, rpc.create_session(def(counter())).await?);
    rpc.run_step(step(&first, &[], &[], &["init"])).await?;
    let (cut_off, other) = (run_endless(&rpc, &first), run_endless(&rpc, &second));
    until_counted(&rpc, &second, 3.0).await?;
    let start = Instant::now();
    rpc.close_session(&first).await?;
    let text = "Step was cancelled by an explicit call to `Session::Close()`.";
    assert_eq!(assert_fails(cut_off.await?, Code::Cancelled, &[]), text);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert!(!other.is_finished());
    rpc.run_step(step(&second, &[], &["here:0"], &["count"])).await?;
    rpc.close_session(&second).await?;
    assert_eq!(assert_fails(other.await?, Code::Cancelled, &[]), text);
    rpc.check_well().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_away_frees_the_workers() -> Fallible {
    let (cluster, rpc) = pair().await?;
    let session = rpc.create_session(def(counter())).await?;
    rpc.run_step(step(&session, &[], &[], &["init"])).await?;
    for gone in 1..=3u8 {
        let client = Rpc::connect(&cluster, "worker", 0).await?;
        let mut request = tonic::Request::new(step(&session, &[], &["endless:0"], &["count"]));
        if gone == 3 {
            request.set_timeout(Duration::from_millis(300));
        }
        let running = tokio::spawn({
            let mut master = client.master.clone();
            async move { master.run_step(request).await }
        });
        until_counted(&rpc, &session, 1.0 + f32::from(gone)).await?;
        match gone {
            1 => running.abort(),
            2 => {
                running.abort();
                drop(client);
            }
            _ => {
                let late = running.await?.err().ok_or("it ended")?;
                assert!(matches!(late.code(), Code::DeadlineExceeded | Code::Cancelled), "{late:?}");
            }
        }
    }
    // Nothing is left running: both stop without a step to wait for.
    let mut cluster = cluster;
    for job in ["ps", "worker"] {
        let start = Instant::now();
        assert!(cluster.stop(job, 0)?.success());
        assert!(start.elapsed() < SOON, "{job}: {:?}", start.elapsed());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_wait_for_its_session_leaves_none() -> Fallible {
    let mut cluster = Cluster::reserve(&[("ps", 1), ("worker", 1)])?;
    cluster.spawn("worker", 0)?;
    cluster.wait_until_listening("worker", 0)?;
    let rpc = Rpc::connect(&cluster, "worker", 0).await?;
    let mut request = tonic::Request::new(pb::CreateSessionRequest::default());
    request.set_timeout(Duration::from_millis(200));
    let start = Instant::now();
    let late = rpc.master.clone().create_session(request).await.err().ok_or("there is no ps")?;
    assert!(matches!(late.code(), Code::DeadlineExceeded | Code::Cancelled | Code::Unavailable), "{late:?}");
    assert!(start.elapsed() < SOON);
    // A call that still waits for a task does not keep the server from stopping.
    let waiting = tokio::spawn({
        let rpc = rpc.clone();
        async move { rpc.create_session(pb::GraphDef::default()).await }
    });
    rpc.worker.clone().get_status(pb::GetStatusRequest {}).await?;
    let start = Instant::now();
    assert!(cluster.stop("worker", 0)?.success());
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_fails(waiting.await?, Code::Unavailable, &[]);
    Ok(())
}

#[test]
fn a_server_starts_soon_and_small() -> Fallible {
    let mut cluster = Cluster::reserve(&[("worker", 1)])?;
    let start = Instant::now();
    cluster.spawn("worker", 0)?;
    cluster.wait_until_listening("worker", 0)?;
    let took = start.elapsed();
    assert!(took < Duration::from_secs(1), "{took:?}");
    let resident = cluster.resident("worker", 0)?;
    assert!(resident < 40 << 20, "{resident} bytes");
    Ok(())
}
