//! Tasks and clients that die, stop, or never start.

use super::{PS, SOON, WORKER, counter, cpu, pair, run_endless, until_counted};
use crate::support::Fallible;
use crate::support::cluster::Cluster;
use crate::support::rpc::{Rpc, assert_fails, bytes, constant, def, in_body, on, step};
use anabranch::proto::pb;
use std::time::{Duration, Instant};
use tonic::Code;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn death_of_a_task_fails_the_step_at_once_with_its_name() -> Fallible {
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

    // A new step on the dead task fails at once with the task's name.
    let start = Instant::now();
    let failed = rpc.run_step(in_body(step(&session, &[], &[], &["count"]))).await;
    assert_fails(failed, Code::Unavailable, &[PS, &address]);
    assert!(start.elapsed() < Duration::from_millis(800), "{:?}", start.elapsed());
    let start = Instant::now();
    assert_fails(rpc.create_session(def(counter())).await, Code::Unavailable, &[PS, &address]);
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    // Closing the session does not wait for the dead task.
    let start = Instant::now();
    rpc.close_session(&session).await?;
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());

    // Sessions whose filters exclude the dead task work.
    let filters = pb::ConfigProto { device_filters: vec!["/job:worker".into()], ..Default::default() };
    let request = pb::CreateSessionRequest {
        graph_def: bytes(&def([constant("a", 1.0)])),
        config: Some(filters),
        ..Default::default()
    };
    let session = rpc.master.clone().create_session(request).await?.into_inner().session_handle;
    rpc.run_step(step(&session, &[], &["a:0"], &[])).await?;
    rpc.close_session(&session).await?;

    // New sessions that use the task work once it has been restarted.
    cluster.spawn("ps", 0)?;
    cluster.wait_until_listening("ps", 0)?;
    rpc.check_health().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_task_fails_steps_of_earlier_sessions() -> Fallible {
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
    rpc.check_health().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_that_never_started_is_named_in_the_error() -> Fallible {
    let mut cluster = Cluster::reserve(&[("ps", 2), ("worker", 1)])?;
    cluster.add_flag("--connect-deadline=0.5");
    cluster.spawn("worker", 0)?;
    cluster.wait_until_listening("worker", 0)?;
    let rpc = Rpc::connect(&cluster, "worker", 0).await?;
    let (first, second) = (cluster.address("ps", 0).to_string(), cluster.address("ps", 1).to_string());
    let start = Instant::now();
    let both = [PS, first.as_str(), "/job:ps/replica:0/task:1", second.as_str()];
    // A node whose device names only a job needs all tasks of the job.
    let on_ps = || def([on("/job:ps", constant("a", 1.0))]);
    assert_fails(rpc.create_session(on_ps()).await, Code::Unavailable, &both);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    let filtered = pb::ConfigProto { device_filters: vec!["/job:ps/task:1".into()], ..Default::default() };
    let request = pb::CreateSessionRequest { config: Some(filtered), ..Default::default() };
    let filtered = rpc.master.clone().create_session(request).await;
    assert_fails(filtered, Code::Unavailable, &[both[2], both[3]]);
    // The client repeats a failed call at once. The master does not wait again for a task that did not answer within
    // the connect deadline, and uses the task once it runs.
    let start = Instant::now();
    for _ in 0..3 {
        let (rpc, on_second) = (&rpc, def([on(both[2], constant("a", 1.0))]));
        assert_fails(rpc.create_session(on_second).await, Code::Unavailable, &both[2..]);
    }
    assert!(start.elapsed() < Duration::from_millis(1400), "{:?}", start.elapsed());
    // A session does not wait for tasks that its graph does not need; such tasks join when they run and an extension of
    // the graph needs them.
    let session = rpc.create_session(def([constant("a", 1.0)])).await?;
    rpc.run_step(step(&session, &[], &["a:0"], &[])).await?;
    let more = def([on(PS, constant("b", 2.0))]);
    let extend = pb::ExtendSessionRequest {
        session_handle: session.clone(),
        graph_def: bytes(&more),
        ..Default::default()
    };
    let refused = rpc.master.clone().extend_session(extend.clone()).await;
    assert_fails(refused, Code::Unavailable, &both[..2]);
    let all = pb::ListDevicesRequest::default();
    assert_fails(rpc.master.clone().list_devices(all).await, Code::Unavailable, &both);
    for index in 0..2 {
        cluster.spawn("ps", index)?;
        cluster.wait_until_listening("ps", index)?;
    }
    rpc.master.clone().extend_session(extend).await?;
    rpc.run_step(step(&session, &[], &["a:0", "b:0"], &[])).await?;
    rpc.check_health().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_that_do_not_need_a_lost_task_still_run() -> Fallible {
    let (mut cluster, rpc) = pair().await?;
    let mut graph = counter();
    graph.push(on(&cpu(WORKER), constant("local", 1.0)));
    let session = rpc.create_session(def(graph)).await?;
    rpc.run_step(step(&session, &[], &["local:0"], &["init"])).await?;
    cluster.kill("ps", 0)?;
    rpc.run_step(step(&session, &[], &["local:0"], &[])).await?;
    cluster.spawn("ps", 0)?;
    cluster.wait_until_listening("ps", 0)?;
    rpc.run_step(step(&session, &[], &["local:0"], &[])).await?;
    let lost = rpc.run_step(step(&session, &[], &["local:0"], &["count"])).await;
    assert_fails(lost, Code::Aborted, &[PS, "restarted"]);
    rpc.run_step(step(&session, &[], &["local:0"], &[])).await?;
    rpc.close_session(&session).await?;
    rpc.check_health().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn step_that_times_out_names_the_task_that_it_waits_for() -> Fallible {
    let (_cluster, rpc) = pair().await?;
    let session = rpc.create_session(def(counter())).await?;
    let mut request = in_body(step(&session, &[], &["endless:0"], &[]));
    request.options = Some(pb::RunOptions { timeout_in_ms: 300, ..Default::default() });
    let start = Instant::now();
    let parts = [PS, session.as_str(), "it waits for"];
    let text = assert_fails(rpc.run_step(request).await, Code::DeadlineExceeded, &parts);
    assert!(!text.contains("waits for /job:worker"), "{text}");
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    rpc.check_health().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_server_stops_at_once() -> Fallible {
    let (mut cluster, rpc) = pair().await?;
    rpc.check_health().await?;
    // An open session and an open connection do not delay the stop.
    rpc.create_session(def(counter())).await?;
    let start = Instant::now();
    assert!(cluster.stop("worker", 0)?.success());
    assert!(cluster.stop("ps", 0)?.success());
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    for job in ["worker", "ps"] {
        cluster.spawn(job, 0)?;
        cluster.wait_until_listening(job, 0)?;
    }
    Rpc::connect(&cluster, "worker", 0).await?.check_health().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_server_fails_its_steps_with_its_name() -> Fallible {
    let mut cluster = Cluster::start_with(&[("ps", 1), ("worker", 1)], &["--stop-grace", "0.3"])?;
    let rpc = Rpc::connect(&cluster, "worker", 0).await?;
    // The first round stops the task that runs the step's node, the second round the step's master.
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
    Rpc::connect(&cluster, "worker", 0).await?.check_health().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_a_session_cancels_only_its_own_steps() -> Fallible {
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
    rpc.check_health().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_of_clients_that_disappear_are_cancelled() -> Fallible {
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
                let late = running.await?.err().ok_or("the step succeeded")?;
                assert!(matches!(late.code(), Code::DeadlineExceeded | Code::Cancelled), "{late:?}");
            }
        }
    }
    // No step runs any more, so both servers stop at once.
    let mut cluster = cluster;
    for job in ["ps", "worker"] {
        let start = Instant::now();
        assert!(cluster.stop(job, 0)?.success());
        assert!(start.elapsed() < SOON, "{job}: {:?}", start.elapsed());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_that_waits_for_a_task_does_not_block_the_server() -> Fallible {
    let mut cluster = Cluster::reserve(&[("ps", 1), ("worker", 1)])?;
    cluster.spawn("worker", 0)?;
    cluster.wait_until_listening("worker", 0)?;
    let rpc = Rpc::connect(&cluster, "worker", 0).await?;
    let on_ps = || def([on(PS, constant("a", 1.0))]);
    let create = pb::CreateSessionRequest { graph_def: bytes(&on_ps()), ..Default::default() };
    let mut request = tonic::Request::new(create);
    request.set_timeout(Duration::from_millis(200));
    let start = Instant::now();
    let late = rpc
        .master
        .clone()
        .create_session(request)
        .await
        .err()
        .ok_or("a session with a missing ps was created")?;
    assert!(matches!(late.code(), Code::DeadlineExceeded | Code::Cancelled | Code::Unavailable), "{late:?}");
    assert!(start.elapsed() < SOON);
    // A call that still waits for a task does not keep the server from stopping.
    let waiting = tokio::spawn({
        let rpc = rpc.clone();
        let graph = on_ps();
        async move { rpc.create_session(graph).await }
    });
    rpc.worker.clone().get_status(pb::GetStatusRequest {}).await?;
    let start = Instant::now();
    assert!(cluster.stop("worker", 0)?.success());
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_fails(waiting.await?, Code::Unavailable, &[]);
    Ok(())
}

#[test]
fn server_starts_within_a_second_in_little_memory() -> Fallible {
    let mut cluster = Cluster::reserve(&[("worker", 1)])?;
    let start = Instant::now();
    cluster.spawn("worker", 0)?;
    cluster.wait_until_listening("worker", 0)?;
    let took = start.elapsed();
    assert!(took < Duration::from_secs(1), "{took:?}");
    let resident_bytes = cluster.resident_bytes("worker", 0)?;
    assert!(resident_bytes < 40 << 20, "{resident_bytes} bytes");
    Ok(())
}
