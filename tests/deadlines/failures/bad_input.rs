//! Requests with invalid graphs, tensor values, sizes and bytes.

use super::{FLOAT, single};
use crate::support::Fallible;
use crate::support::rpc::{
    assert_fails, attr, binary, bytes, constant, def, dtype, in_body, node, on, placeholder, shape, splat,
    step, tensor, text, unary,
};
use anabranch::graph::Tensor;
use anabranch::proto::pb;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use tonic::Code;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_graphs_are_refused_with_the_node() -> Fallible {
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
    let ints = Tensor::vector(&[1i32, 2])?;
    let half_const = node("a", "Const", &[], &[("dtype", dtype(FLOAT))]);
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
    for (case, graph, code, parts) in cases {
        match rpc.create_session(graph.clone()).await {
            Ok(_) => wrong.push(format!("{case}: accepted")),
            Err(s) if s.code() != code || parts.iter().any(|p| !s.message().contains(p)) => {
                wrong.push(format!("{case}: {code:?} {parts:?}, got {:?} {}", s.code(), s.message()));
            }
            Err(_) => {}
        }
        // ExtendSession refuses the same invalid graph and leaves the session unchanged.
        let session = rpc.create_session(def([constant("before", 3.0)])).await?;
        let extend = pb::ExtendSessionRequest {
            session_handle: session.clone(),
            graph_def: bytes(&graph),
            current_graph_version: 0,
        };
        match rpc.master.clone().extend_session(extend).await {
            Ok(_) => wrong.push(format!("{case}: accepted as an extension")),
            Err(s) if s.code() != code => {
                wrong.push(format!("{case}: as an extension {:?} {}", s.code(), s.message()));
            }
            Err(_) => {}
        }
        rpc.run_step(step(&session, &[], &["before:0"], &[])).await?;
        rpc.close_session(&session).await?;
        rpc.check_health().await?;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// A step that needs a missing op fails, and names all missing ops of the graph; the rest of the graph runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_op_fails_only_the_steps_that_need_it() -> Fallible {
    let (_cluster, rpc) = single().await?;
    let graph = def([constant("a", 1.0), node("n", "NoSuchOp", &["a"], &[]), node("m", "NorThis", &[], &[])]);
    let session = rpc.create_session(graph).await?;
    let extend = pb::ExtendSessionRequest {
        session_handle: session.clone(),
        graph_def: bytes(&def([unary("later", "Neg", "n"), unary("other", "Neg", "a")])),
        current_graph_version: 0,
    };
    rpc.master.clone().extend_session(extend).await?;
    rpc.run_step(step(&session, &[], &["other:0"], &[])).await?;
    let missing = ["Op type not registered 'NoSuchOp'", "{{node n}}", "NorThis"];
    for fetch in ["n:0", "later:0"] {
        assert_fails(rpc.run_step(step(&session, &[], &[fetch], &[])).await, Code::NotFound, &missing);
    }
    assert_fails(rpc.run_step(step(&session, &[], &[], &["n"])).await, Code::NotFound, &missing);
    rpc.run_step(step(&session, &[], &["a:0"], &[])).await?;
    rpc.close_session(&session).await?;
    Ok(())
}

/// Errors that only a kernel can detect fail the step with the node's name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernel_errors_fail_the_step_with_the_node() -> Fallible {
    let (_cluster, rpc) = single().await?;
    let mut typed = constant("n", 1.0);
    typed.attr.insert("dtype".into(), dtype(pb::DataType::DtInt32));
    let index = [("Tparams", dtype(FLOAT)), ("Tindices", dtype(pb::DataType::DtInt32))];
    let graphs = [
        ("a constant of another type", def([typed])),
        (
            "matrices that do not fit",
            def([
                splat("a", &[2, 3]),
                splat("b", &[2, 3]),
                node("n", "MatMul", &["a", "b"], &[("T", dtype(FLOAT))]),
            ]),
        ),
        ("shapes that do not fit", def([splat("a", &[2]), splat("b", &[3]), binary("n", "AddV2", "a", "b")])),
        (
            "an index beyond",
            def([
                splat("a", &[2]),
                tensor("i", &Tensor::scalar(7i32)),
                node("n", "Gather", &["a", "i"], &index),
            ]),
        ),
    ];
    let mut wrong = Vec::new();
    for (case, graph) in graphs {
        let failure = match rpc.create_session(graph).await {
            Err(status) => status,
            Ok(session) => {
                let reply = rpc.run_step(in_body(step(&session, &[], &["n:0"], &[]))).await;
                rpc.close_session(&session).await?;
                match reply {
                    Ok(_) => {
                        wrong.push(format!("{case}: done"));
                        continue;
                    }
                    Err(status) => status,
                }
            }
        };
        if failure.code() != Code::InvalidArgument || !failure.message().contains("{{node n}}") {
            wrong.push(format!("{case}: {:?} {}", failure.code(), failure.message()));
        }
        rpc.check_health().await?;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// The server allocates no memory for a message with a huge shape and few elements.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sizes_are_checked_before_memory_is_allocated() -> Fallible {
    let (cluster, rpc) = single().await?;
    rpc.check_health().await?;
    let before = cluster.resident_bytes("worker", 0)?;
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
    for (case, graph) in graphs {
        // Shape inference refuses some graphs when the session is created, before a step runs.
        let failure = match rpc.create_session(graph).await {
            Err(status) => status,
            Ok(session) => {
                let run = in_body(step(&session, &[], &["n:0"], &[]));
                let reply = rpc.run_step(run).await;
                rpc.close_session(&session).await?;
                match reply {
                    Ok(_) => {
                        wrong.push(format!("{case}: done"));
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
            wrong.push(format!("{case}: {code:?} {}", failure.message()));
        }
    }
    // The shape in the feed's message is invalid, or has more elements than the message contains.
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
    rpc.check_health().await?;
    let grown = cluster.resident_bytes("worker", 0)?.saturating_sub(before);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(grown < 64 << 20, "{grown} bytes more than before");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_bytes_on_the_port_do_not_disturb_other_clients() -> Fallible {
    let (mut cluster, rpc) = single().await?;
    let graph = def([constant("a", 1.0), unary("b", "Neg", "a")]);
    let create = pb::CreateSessionRequest { graph_def: bytes(&graph), ..Default::default() };
    let message = prost::Message::encode_to_vec(&create);
    for path in [
        "/tensorflow.MasterService/CreateSession",
        "/tensorflow.MasterService/RunStep",
        "/tensorflow.WorkerService/RegisterGraph",
        "/tensorflow.WorkerService/RunGraph",
        "/tensorflow.WorkerService/RecvTensor",
    ] {
        for len in [1, message.len() / 3, message.len() / 2, message.len() - 1] {
            let failure =
                rpc.call_bytes(path, &message[..len]).await.err().ok_or("the message was accepted")?;
            assert!(
                matches!(failure.code(), Code::Internal | Code::InvalidArgument | Code::Aborted),
                "{path} of {len} bytes: {failure:?}"
            );
        }
    }
    let unknown = rpc.call_bytes("/tensorflow.MasterService/Nothing", &[]).await;
    assert_fails(unknown, Code::Unimplemented, &[]);
    rpc.check_health().await?;

    // Connections that do not speak HTTP/2 are closed or ignored, while other clients are served.
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
        // The result is ignored, because the server may or may not answer.
        let _ = stream.read(&mut [0; 1024]);
        open.push(stream);
        rpc.check_health().await?;
    }
    assert!(cluster.is_running("worker", 0)?);
    // Open connections of silent clients do not keep a server from stopping.
    let start = Instant::now();
    assert!(cluster.stop("worker", 0)?.success());
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    drop(open);
    Ok(())
}
