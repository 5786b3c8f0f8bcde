//! Transfers of tensors between workers that are real servers on loopback ports.

use crate::cluster::*;
use bytes::Bytes;
use graph::{Bool8, Code, DType, Graph, Shape, TaskName, Tensor};
use half::{bf16, f16};
use proto::link::WorkerLink;
use std::time::{Duration, Instant};

/// Returns a graph in which `p` is fed at the first task, sent to the second and fetched as `y` at the first.
fn round_trip_graph(dtype: DType) -> Test<Graph> {
    Ok(Graph::from_text(&format!(
        "p = Placeholder[dtype={dtype}, shape=<*>] @\"/job:w/replica:0/task:0/device:CPU:0\"\n\
         y = Identity[T={dtype}](p) @\"/job:w/replica:0/task:1/device:CPU:0\"\n"
    ))?)
}

fn samples() -> Test<Vec<Tensor>> {
    let wide: Vec<f32> = (0..100_000).map(|i| i as f32).collect();
    Ok(vec![
        Tensor::scalar(1.5f32),
        Tensor::from_slice(&wide, Shape::new(&[100, 1000])?)?,
        Tensor::vector(&[1.0f64, f64::NAN, f64::INFINITY])?,
        Tensor::vector(&[f16::from_f32(0.5), f16::MAX])?,
        Tensor::vector(&[bf16::from_f32(0.5)])?,
        Tensor::vector(&[i8::MIN, i8::MAX])?,
        Tensor::vector(&[i16::MIN])?,
        Tensor::vector(&[7i32; 300])?,
        Tensor::from_slice(&[i64::MIN, i64::MAX], Shape::new(&[1, 2, 1])?)?,
        Tensor::vector(&[255u8])?,
        Tensor::vector(&[u16::MAX])?,
        Tensor::vector(&[u32::MAX])?,
        Tensor::vector(&[u64::MAX])?,
        Tensor::vector(&[Bool8::TRUE, Bool8::FALSE])?,
        Tensor::zeros(DType::Float, Shape::new(&[0, 3])?)?,
        Tensor::strings(
            vec![Bytes::new(), "a string".into(), vec![0u8; 100_000].into()],
            Shape::new(&[3, 1])?,
        )?,
    ])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_of_every_dtype_survive_transfers() -> Test {
    let tasks = cluster(2, |_| {})?;
    let mut step = 0;
    for session in [Session::remote(&tasks).await?, Session::mixed(&tasks).await?] {
        for value in samples()? {
            let registered = session.register(&round_trip_graph(value.dtype())?, &["p"], &["y"], &[]).await?;
            assert_eq!(registered.parts.len(), 2);
            for _ in 0..2 {
                step += 1;
                let back = session.run(&registered, step, &[("p:0", value.clone())], &["y:0"]).await?;
                assert_eq!(back, std::slice::from_ref(&value), "{}", value.dtype());
            }
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_tensor_is_transferred() -> Test {
    let tasks = cluster(2, |_| {})?;
    let session = Session::mixed(&tasks).await?;
    let registered = session.register(&round_trip_graph(DType::Int64)?, &["p"], &["y"], &[]).await?;
    let values: Vec<i64> = (0..8 << 20).collect();
    let value = Tensor::vector(&values)?;
    assert_eq!(value.num_bytes(), 64 << 20);
    let back = session.run(&registered, 1, &[("p:0", value.clone())], &["y:0"]).await?;
    assert!(back == [value]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn devices_of_one_task_exchange_by_pointer() -> Test {
    let tasks = cluster(2, |config| config.cpu_devices = 3)?;
    let session = Session::remote(&tasks).await?;
    let graph = Graph::from_text(
        "p = Placeholder[dtype=string, shape=<*>] @\"/job:w/replica:0/task:0/device:CPU:0\"\n\
         a = Identity[T=string](p) @\"/job:w/replica:0/task:1/device:CPU:2\"\n\
         b = Identity[T=string](a) @\"/job:w/replica:0/task:1/device:CPU:1\"\n\
         c = Identity[T=string](b) @\"/job:w/replica:0/task:0/device:CPU:1\"\n",
    )?;
    let registered = session.register(&graph, &["p"], &["c", "a"], &[]).await?;
    let value = Tensor::string("through four devices");
    for step in 1..20 {
        let back = session.run(&registered, step, &[("p:0", value.clone())], &["c:0", "a:0"]).await?;
        assert_eq!(back, [value.clone(), value.clone()]);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_receives_can_wait_at_once() -> Test {
    let tasks = cluster(1, |_| {})?;
    let device = tasks[0].device();
    let mut client = tasks[0].client().await?;
    let graph = register_nothing(&mut client).await?;
    let keys: Vec<String> = (0..1000).map(|i| key(&device, &device, &format!("edge{i}"))).collect();
    let receives = keys.iter().map(|key| {
        let (mut client, key) = (client.clone(), key.clone());
        tokio::spawn(async move { client.recv_tensor(bare_receive(1, &key)).await })
    });
    let receives: Vec<_> = receives.collect();
    let values: Vec<Tensor> = (0..1000i32).map(Tensor::scalar).collect();
    let feeds: Vec<_> = keys.iter().map(String::as_str).zip(&values).collect();
    client.run_graph(bare_run(&graph, 1, &feeds)).await?;
    for (receive, expected) in receives.into_iter().zip(values) {
        let reply = receive.await??.into_inner();
        assert_eq!(proto::convert::tensor_from_proto(reply.tensor.unwrap_or_default())?, expected);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timeline_and_partition_graphs_are_returned_on_request() -> Test {
    let tasks = cluster(2, |_| {})?;
    let session = Session::remote(&tasks).await?;
    let registered = session.register(&round_trip_graph(DType::Float)?, &["p"], &["y"], &[]).await?;
    let mut client = tasks[1].client().await?;
    let enable = proto::pb::LoggingRequest { enable_rpc_logging: true, ..Default::default() };
    client.logging(enable).await?;
    let (first, second) = (TaskName::new("w", 0), TaskName::new("w", 1));
    let feeds = [("p:0", Tensor::scalar(1.0f32))];
    let mut run = session.part(&registered, &second, 1, &[], &[]);
    run.options.record_timeline = true;
    run.options.record_partition_graphs = true;
    let (there, here) = tokio::join!(
        session.links[&first].run_graph(session.part(&registered, &first, 1, &feeds, &["y:0"])),
        session.links[&second].run_graph(run),
    );
    assert!(there?.step_stats.is_none());
    let outcome = here?;
    let stats = outcome.step_stats.ok_or("no timeline")?;
    assert_eq!(stats.dev_stats[0].device, tasks[1].device().name.to_string());
    let y = stats.dev_stats[0].node_stats.iter().find(|n| n.node_name == "y").ok_or("y did not run")?;
    assert!(y.all_start_micros > 0 && y.timeline_label.starts_with("y = Identity("), "{y:?}");
    assert!(outcome.partition_graphs[0].node.iter().any(|n| n.name == "y"));
    let fetch = proto::pb::LoggingRequest { fetch_step_id: vec![1], ..Default::default() };
    let logged = client.logging(fetch).await?.into_inner();
    let transfers = logged.step[0].step_stats.clone().unwrap_or_default();
    assert!(transfers.dev_stats[0].node_stats[0].timeline_label.starts_with("[4B] ["), "{transfers:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_name_a_dead_peer_and_its_address_in_time() -> Test {
    let limit = Duration::from_millis(300);
    let mut tasks = cluster(2, |config| config.connect_deadline = limit)?;
    let session = Session::remote(&tasks).await?;
    let registered = session.register(&round_trip_graph(DType::Float)?, &["p"], &["y"], &[]).await?;
    let gone = tasks.pop().ok_or("no second task")?;
    let (name, address) = (gone.name(), gone.address.clone());
    drop(gone);
    let started = Instant::now();
    let first = TaskName::new("w", 0);
    let run = session.part(&registered, &first, 1, &[("p:0", Tensor::scalar(1.0f32))], &["y:0"]);
    let failed = session.links[&first].run_graph(run).await.err().ok_or("a dead task answered")?;
    assert_eq!((failed.code, failed.derived), (Code::Unavailable, false));
    assert!(failed.message.contains(&name) && failed.message.contains(&address), "{failed}");
    assert!(started.elapsed() < LONG / 2);

    let link = proto::RemoteWorker::new(TaskName::new("w", 1), &address, limit)?;
    let failed = link.status(None).await.err().ok_or("a dead task answered")?;
    assert_eq!(failed.code, Code::Unavailable);
    assert!(failed.message.contains(&name) && failed.message.contains(&address), "{failed}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_peer_is_detected() -> Test {
    let mut tasks = cluster(2, |_| {})?;
    let session = Session::remote(&tasks).await?;
    let registered = session.register(&round_trip_graph(DType::Float)?, &["p"], &["y"], &[]).await?;
    let feeds = [("p:0", Tensor::scalar(1.0f32))];
    session.run(&registered, 1, &feeds, &["y:0"]).await?;

    let old = tasks.pop().ok_or("no second task")?;
    let (gone, address, task) = (old.name(), old.address.clone(), old.worker.task().clone());
    let config = worker_config(&tasks[0], &task, &address)?;
    drop(old);
    let listener = rebind(&address)?;
    let _new = Task::serve(config, listener)?;
    // Connections to the ended process may break during one step, whose error names the task; the next step's
    // errors say that the task has restarted.
    let mut step = 2;
    loop {
        let mut broke = false;
        // The first task's run fails because its key names an earlier incarnation, the second task's because
        // its session is lost.
        for (name, outcome) in session.outcomes(&registered, step, &feeds, &["y:0"]).await {
            let failed = outcome.err().ok_or("a lost session ran")?;
            if step == 2 && failed.code == Code::Unavailable && failed.message.contains(&gone) {
                broke = true;
                continue;
            }
            assert_eq!((failed.code, failed.restarted), (Code::Aborted, true), "{name}: {failed}");
        }
        if !broke {
            return Ok(());
        }
        step += 1;
    }
}

fn worker_config(first: &Task, task: &TaskName, address: &str) -> Test<anabranch_worker::WorkerConfig> {
    let mut cluster = proto::Cluster::new();
    cluster.insert("w", 0, &first.address)?;
    cluster.insert("w", 1, address)?;
    Ok(anabranch_worker::WorkerConfig::new(task.clone(), cluster))
}

/// Binds the port of a server that is shutting down.
fn rebind(address: &str) -> Test<std::net::TcpListener> {
    let deadline = Instant::now() + LONG;
    loop {
        match std::net::TcpListener::bind(address) {
            Ok(listener) => return Ok(listener),
            Err(e) if Instant::now() > deadline => return Err(e.into()),
            Err(_) => std::thread::yield_now(),
        }
    }
}
