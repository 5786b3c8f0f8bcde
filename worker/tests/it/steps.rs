//! Tests of steps that wait, fail or are cancelled, and of a worker's shutdown.

use crate::cluster::*;
use graph::{Code, Graph, TaskName, Tensor};
use proto::link::Extent;
use proto::{Status, convert};
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// Returns a graph in which `y` on the second task waits for `p` on the first task, which must be fed.
fn waits_for_feed() -> Test<Graph> {
    Ok(Graph::from_text(
        "p = Placeholder[dtype=float, shape=<*>] @\"/job:w/replica:0/task:0/device:CPU:0\"\n\
         y = Identity[T=float](p) @\"/job:w/replica:0/task:1/device:CPU:0\"\n",
    )?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receive_before_its_step_waits_for_it() -> Test {
    let tasks = cluster(1, |_| {})?;
    let device = tasks[0].device();
    let mut client = tasks[0].client().await?;
    let graph = register_nothing(&mut client).await?;
    let key = key(&device, &device, "edge_1_x");
    let mut early = client.clone();
    let receive = tokio::spawn({
        let request = bare_receive(5, &key);
        async move { early.recv_tensor(request).await }
    });
    let value = Tensor::vector(&[1i32, 2])?;
    client.run_graph(bare_run(&graph, 5, &[(&key, &value)])).await?;
    let reply = receive.await??.into_inner();
    assert!(reply.send_start_micros > 0 && !reply.is_dead);
    assert_eq!(convert::tensor_from_proto(reply.tensor.unwrap_or_default())?, value);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receive_for_a_step_that_never_starts_times_out() -> Test {
    let tasks = cluster(1, |config| config.start_deadline = Duration::from_millis(50))?;
    let device = tasks[0].device();
    let mut client = tasks[0].client().await?;
    let failed =
        client.recv_tensor(bare_receive(5, &key(&device, &device, "x"))).await.err().ok_or("it came")?;
    let failed = Status::from(failed);
    assert_eq!(failed.code, Code::DeadlineExceeded);
    assert!(failed.message.contains("step 5") && failed.message.contains(&tasks[0].name()), "{failed}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_receive_leaves_the_value_for_the_next() -> Test {
    let tasks = cluster(1, |_| {})?;
    let device = tasks[0].device();
    let mut client = tasks[0].client().await?;
    let graph = register_nothing(&mut client).await?;
    let key = key(&device, &device, "x");
    client.run_graph(bare_run(&graph, 5, &[])).await?;
    let mut request = tonic::Request::new(bare_receive(5, &key));
    request.set_timeout(Duration::from_millis(30));
    let failed = client.recv_tensor(request).await.err().ok_or("it came")?;
    assert!(matches!(failed.code(), tonic::Code::Cancelled | tonic::Code::DeadlineExceeded), "{failed}");
    client.run_graph(bare_run(&graph, 5, &[(&key, &Tensor::scalar(3i32))])).await?;
    let reply = client.recv_tensor(bare_receive(5, &key)).await?.into_inner();
    assert_eq!(convert::tensor_from_proto(reply.tensor.unwrap_or_default())?, Tensor::scalar(3i32));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_for_a_cleaned_up_step_fail() -> Test {
    let tasks = cluster(1, |_| {})?;
    let device = tasks[0].device();
    let mut client = tasks[0].client().await?;
    let graph = register_nothing(&mut client).await?;
    let key = key(&device, &device, "x");
    client.run_graph(bare_run(&graph, 5, &[])).await?;
    let mut waiter = client.clone();
    let request = bare_receive(5, &key);
    let waiting = tokio::spawn(async move { waiter.recv_tensor(request).await });
    client.cleanup_graph(proto::pb::CleanupGraphRequest { step_id: 5 }).await?;
    for failed in [
        waiting.await?.err(),
        client.recv_tensor(bare_receive(5, &key)).await.err(),
        client.run_graph(bare_run(&graph, 5, &[])).await.err(),
    ] {
        let failed = Status::from(failed.ok_or("a step after its end")?);
        assert_eq!((failed.code, failed.derived), (Code::Aborted, true));
        assert_eq!(failed.message, format!("Step 5 was cleaned up on {}.", tasks[0].name()));
    }
    client.cleanup_graph(proto::pb::CleanupGraphRequest { step_id: 77 }).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_a_run_cancels_the_step_and_notifies_peers() -> Test {
    let tasks = cluster(2, |_| {})?;
    for session in [Session::remote(&tasks).await?, Session::mixed(&tasks).await?] {
        let step = session.links.len() as i64 + rand::random_range(10..1 << 40);
        let registered = session.register(&waits_for_feed()?, &["p"], &["y"], &[]).await?;
        let (first, second) = (TaskName::new("w", 0), TaskName::new("w", 1));
        let run = session.part(&registered, &first, step, &[], &["y:0"]);
        let link = session.links[&first].clone();
        let dropped = tokio::spawn(async move { link.run_graph(run).await });
        // The second task's run waits for a value of the first task's run.
        let mut peer = session.part(&registered, &second, step, &[], &[]);
        peer.deadline = soon();
        let link = session.links[&second].clone();
        let peer = tokio::spawn(async move { link.run_graph(peer).await });
        started(&tasks[0], step).await?;
        dropped.abort();
        let failed = tokio::time::timeout(LONG, peer).await??.err().ok_or("it went on")?;
        assert_eq!((failed.code, failed.derived), (Code::Cancelled, true), "{failed}");
        assert!(failed.message.contains(&format!("Step {step} was cancelled")), "{failed}");
    }
    Ok(())
}

/// Waits until a step runs on a task, because a run that is cancelled before it starts fails with another
/// error.
async fn started(task: &Task, step_id: i64) -> Test {
    let deadline = Instant::now() + LONG;
    while !task.worker.is_running(step_id) {
        if Instant::now() > deadline {
            return Err("the step did not start".into());
        }
        tokio::task::yield_now().await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timed_out_step_names_the_values_it_waits_for() -> Test {
    let tasks = cluster(2, |_| {})?;
    for (step, session) in (1..).zip([Session::mixed(&tasks).await?, Session::remote(&tasks).await?]) {
        let registered = session.register(&waits_for_feed()?, &["p"], &["y"], &[]).await?;
        let first = TaskName::new("w", 0);
        // The first task is fed, but the second task never runs its part.
        let mut run = session.part(&registered, &first, step, &[("p:0", Tensor::scalar(1.0f32))], &["y:0"]);
        run.deadline = Some(Instant::now() + Duration::from_secs(1));
        let failed = session.links[&first].run_graph(run).await.err().ok_or("it ended")?;
        assert_eq!(failed.code, Code::DeadlineExceeded);
        for part in [&tasks[0].name(), &tasks[1].name(), &tasks[1].address] {
            assert!(failed.message.contains(part), "{failed}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn causes_are_distinguished_from_derived_failures() -> Test {
    let tasks = cluster(2, |_| {})?;
    let session = Session::remote(&tasks).await?;
    let graph = Graph::from_text(
        "p = Placeholder[dtype=float, shape=<*>] @\"/job:w/replica:0/task:0/device:CPU:0\"\n\
         q = Placeholder[dtype=float, shape=<*>] @\"/job:w/replica:0/task:0/device:CPU:0\"\n\
         bad = AddV2[T=float](p, q) @\"/job:w/replica:0/task:1/device:CPU:0\"\n",
    )?;
    let registered = session.register(&graph, &["p", "q"], &["bad"], &[]).await?;
    let feeds = [("p:0", Tensor::vector(&[1.0f32, 2.0])?), ("q:0", Tensor::vector(&[1.0f32, 2.0, 3.0])?)];
    let outcomes = session.outcomes(&registered, 1, &feeds, &["bad:0"]).await;
    let failures: Vec<(String, Code, bool)> = outcomes
        .into_iter()
        .filter_map(|(task, o)| o.err().map(|s| (task.to_string(), s.code, s.derived)))
        .collect();
    let expected =
        [(tasks[0].name(), Code::InvalidArgument, true), (tasks[1].name(), Code::InvalidArgument, false)];
    assert_eq!(failures, expected);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_cancels_steps_with_its_name_and_refuses_new_ones() -> Test {
    let tasks = cluster(2, |_| {})?;
    let session = Session::remote(&tasks).await?;
    let registered = session.register(&waits_for_feed()?, &["p"], &["y"], &[]).await?;
    let first = TaskName::new("w", 0);
    let run = session.part(&registered, &first, 1, &[], &["y:0"]);
    let link = session.links[&first].clone();
    let again = run.clone();
    let running = tokio::spawn(async move { link.run_graph(run).await });
    started(&tasks[0], 1).await?;
    tokio::time::timeout(LONG, tasks[0].worker.shutdown(Duration::from_millis(20))).await?;
    let failed = running.await?.err().ok_or("it went on")?;
    assert_eq!(failed.code, Code::Unavailable);
    assert!(failed.message.contains(&format!("{} is shutting down", tasks[0].name())), "{failed}");
    let again = proto::link::RunGraph { step_id: 2, ..again };
    let refused = tasks[0].worker.link().run_graph(again).await.err().ok_or("it started")?;
    assert_eq!(refused.code, Code::Unavailable);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partial_run_continues_until_its_last_call() -> Test {
    let tasks = cluster(2, |_| {})?;
    let session = Session::mixed(&tasks).await?;
    let registered = session.register(&waits_for_feed()?, &["p:0"], &["y:0"], &[]).await?;
    let value = Tensor::vector(&[1f32, 2.0])?;
    let parts = |step_id, extent, feeds: &[(&str, Tensor)], fetches: &[&str]| {
        let runs = registered.parts.keys().map(|task| {
            let run = session.part(&registered, task, step_id, feeds, fetches);
            let (link, run) = (session.links[task].clone(), proto::link::RunGraph { extent, ..run });
            async move { link.run_graph(run).await }
        });
        futures::future::join_all(runs)
    };
    let step_id = 100 + session.links.len() as i64;
    for outcome in parts(step_id, Extent::Part, &[], &[]).await {
        assert!(outcome?.recv.is_empty());
    }
    assert!(tasks.iter().all(|t| t.worker.is_running(step_id)));
    let fed = [("p:0", value.clone())];
    let outcomes = parts(step_id, Extent::LastPart, &fed, &["y:0"]).await;
    let fetched: Vec<_> =
        outcomes.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flat_map(|o| o.recv).collect();
    assert_eq!(fetched.into_iter().map(|f| f.1).collect::<Vec<_>>(), [value]);
    assert!(!tasks.iter().any(|t| t.worker.is_running(step_id)));
    for link in session.links.values() {
        link.cleanup_graph(step_id).await?;
    }

    // Cleaning up a partial run that waits for more calls ends it; later calls fail.
    parts(7, Extent::Part, &[], &[]).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    for link in session.links.values() {
        link.cleanup_graph(7).await?;
    }
    for outcome in parts(7, Extent::LastPart, &fed, &["y:0"]).await {
        assert_eq!(outcome.err().map(|s| s.code), Some(Code::Aborted));
    }
    for task in &tasks {
        task.worker.shutdown(Duration::from_secs(60)).await;
        assert!(!task.worker.is_running(7));
    }
    Ok(())
}

/// The threads on which `trim_memory` was called.
static TRIMMED_THREADS: Mutex<Option<HashSet<ThreadId>>> = Mutex::new(None);

fn trimmed_threads() -> usize {
    TRIMMED_THREADS.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(0, HashSet::len)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_thread_returns_its_memory_after_the_last_graph() -> Test {
    const THREADS: usize = 3;
    let tasks = cluster(1, |config| {
        config.threads = THREADS;
        config.trim_memory = || {
            let mut threads = TRIMMED_THREADS.lock().unwrap_or_else(PoisonError::into_inner);
            threads.get_or_insert_default().insert(std::thread::current().id());
        };
    })?;
    let session = Session::remote(&tasks).await?;
    let graph = Graph::from_text(
        "p = Placeholder[dtype=float, shape=<*>] @\"/job:w/replica:0/task:0/device:CPU:0\"\n\
         y = Identity[T=float](p) @\"/job:w/replica:0/task:0/device:CPU:0\"\n",
    )?;
    let (first, second) = (
        session.register(&graph, &["p"], &["y"], &[]).await?,
        session.register(&graph, &["p"], &["y"], &[]).await?,
    );
    session.run(&first, 1, &[("p:0", Tensor::scalar(1.0f32))], &["y:0"]).await?;
    for registered in [first, second] {
        assert_eq!(trimmed_threads(), 0, "there is a graph");
        for (task, part) in registered.parts {
            session.links[&task].deregister_graph(SESSION, &part).await?;
        }
    }
    // Memory is trimmed on the compute threads, on one blocking thread and on one thread of the runtime.
    let end = Instant::now() + LONG;
    while trimmed_threads() < THREADS + 2 {
        assert!(Instant::now() < end, "only {} threads gave back memory", trimmed_threads());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}
