//! Tasks and clients that go away, stop, or never come.

use crate::support::Fallible;
use crate::support::cluster::Cluster;
use crate::support::rpc::{Rpc, assert_fails, bytes, constant, def, in_body, on, step};
use crate::{PS, SOON, WORKER, counter, cpu, pair, run_endless, until_counted};
use anabranch::proto::pb;
use std::time::{Duration, Instant};
use tonic::Code;

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

    // A step to the dead one: refused by name, at once.
    let start = Instant::now();
    let failed = rpc.run_step(in_body(step(&session, &[], &[], &["count"]))).await;
    assert_fails(failed, Code::Unavailable, &[PS, &address]);
    assert!(start.elapsed() < Duration::from_millis(800), "{:?}", start.elapsed());
    let start = Instant::now();
    assert_fails(rpc.create_session(def(counter())).await, Code::Unavailable, &[PS, &address]);
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    // The session's end does not wait for the dead.
    let start = Instant::now();
    rpc.close_session(&session).await?;
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());

    // Without the dead one, sessions work.
    let filters = pb::ConfigProto { device_filters: vec!["/job:worker".into()], ..Default::default() };
    let request = pb::CreateSessionRequest {
        graph_def: bytes(&def([constant("a", 1.0)])),
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
    // A job stands for all of its tasks.
    let on_ps = || def([on("/job:ps", constant("a", 1.0))]);
    assert_fails(rpc.create_session(on_ps()).await, Code::Unavailable, &both);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    let filtered = pb::ConfigProto { device_filters: vec!["/job:ps/task:1".into()], ..Default::default() };
    let request = pb::CreateSessionRequest { config: Some(filtered), ..Default::default() };
    let filtered = rpc.master.clone().create_session(request).await;
    assert_fails(filtered, Code::Unavailable, &[both[2], both[3]]);
    // Clients repeat the call at once: who was waited for is not waited for again, and is there when he is there.
    let start = Instant::now();
    for _ in 0..3 {
        let (rpc, on_second) = (&rpc, def([on(both[2], constant("a", 1.0))]));
        assert_fails(rpc.create_session(on_second).await, Code::Unavailable, &both[2..]);
    }
    assert!(start.elapsed() < Duration::from_millis(1400), "{:?}", start.elapsed());
    // Whom nothing needs is not waited for; he joins when he is there and something does.
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
    rpc.check_well().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_needs_nothing_of_a_lost_task_goes_on() -> Fallible {
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
    rpc.check_well().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_step_names_the_task_that_it_waits_for() -> Fallible {
    let (_cluster, rpc) = pair().await?;
    let session = rpc.create_session(def(counter())).await?;
    let mut request = in_body(step(&session, &[], &["endless:0"], &[]));
    request.options = Some(pb::RunOptions { timeout_in_ms: 300, ..Default::default() });
    let start = Instant::now();
    let parts = [PS, session.as_str(), "it waits for"];
    let text = assert_fails(rpc.run_step(request).await, Code::DeadlineExceeded, &parts);
    assert!(!text.contains("waits for /job:worker"), "{text}");
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
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
async fn a_start_that_waits_for_a_task_holds_up_nothing() -> Fallible {
    let mut cluster = Cluster::reserve(&[("ps", 1), ("worker", 1)])?;
    cluster.spawn("worker", 0)?;
    cluster.wait_until_listening("worker", 0)?;
    let rpc = Rpc::connect(&cluster, "worker", 0).await?;
    let on_ps = || def([on(PS, constant("a", 1.0))]);
    let create = pb::CreateSessionRequest { graph_def: bytes(&on_ps()), ..Default::default() };
    let mut request = tonic::Request::new(create);
    request.set_timeout(Duration::from_millis(200));
    let start = Instant::now();
    let late = rpc.master.clone().create_session(request).await.err().ok_or("there is no ps")?;
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
